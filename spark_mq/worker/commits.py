"""Settle tasks and lease more in one commit, however long the store fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spark_mq.errors import LeaseLost, SparkMQError
from spark_mq.handler import log_outcomes
from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.settle import ACK, SettleCommand, SettleOutcome
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.outages import OUTAGES, settle_with_retry
from spark_mq.operations.settle import summarize
from spark_mq.operations.work_report import VerdictLog
from spark_mq.worker.state import WorkState

__all__ = ["FeedCommits", "More", "returned_places"]

_log = logging.getLogger("spark_mq.worker")

More = Callable[[], Sequence[Acquire]]  # the leases that a commit may add


class FeedCommits:
    """Commits the settles of a feed, and logs and counts them.

    Each failure of the store calls `wait_on` with the leases whose settle is tried again.
    """

    def __init__(
        self,
        ledger: GroupLedger,
        worker_id: str,
        state: WorkState,
        wait_on: Callable[[Sequence[Lease]], None],
    ) -> None:
        self._ledger, self._worker_id = ledger, worker_id
        self._state, self._wait_on = state, wait_on
        self._verdict_log = VerdictLog(ledger.name)

    def settle(
        self,
        commands: Sequence[SettleCommand],
        leases: Sequence[Lease],
        also: More = list,
        *,
        failed: bool = False,
    ) -> tuple[list[SettleOutcome], list[Any]] | None:
        """Settle messages of leases, and lease more in the same commit.

        Return the outcomes, and the grants or errors of the leases, or None if the work ends.
        """

        def before_retry(granted: Sequence[Any]) -> None:
            for grant in granted:
                if isinstance(grant, Grant) and grant.ranges:
                    self.give_back(self.lease_of(grant))
            self._wait_on(leases)

        done = settle_with_retry(self._ledger, commands, also, self._state.over, before_retry)
        if done is None:
            _log.warning("some messages could not be settled: their leases are left to expire")
            return None
        self._note(commands, done[0], leases, failed)
        return done

    def ack_all(self, lease: Lease, also: More) -> tuple[bool, list[Any]]:
        """Ack a lease before its handler, and lease more in the same commit.

        Return whether the handler may have the messages, and the grants or errors of the leases.
        """
        command = SettleCommand(ACK, lease.lease_id, lease._held.unsettled(), whole=True)
        if (done := self.settle([command], [lease], also)) is None:
            return False, []
        (outcome,), granted = done
        return outcome.settled == len(lease), granted

    def lease_of(self, grant: Grant) -> Lease:
        return Lease(self._ledger, self._worker_id, grant)

    def give_back(self, lease: Lease) -> None:
        """Release a lease of which no handler got anything."""
        try:
            lease.release()
        except (SparkMQError, *OUTAGES) as error:
            _log.warning("a lease could not be released and will expire: %s", error)

    def flush_log(self) -> None:
        self._verdict_log.flush()

    def _note(
        self,
        commands: Sequence[SettleCommand],
        outcomes: Sequence[SettleOutcome],
        leases: Iterable[Lease],
        failed: bool,
    ) -> None:
        held = {lease.lease_id: lease._held for lease in leases}
        settled = list(zip(commands, outcomes, strict=True))
        for command, outcome in settled:
            self._state.count(command.verb, outcome.settled)
            held[command.lease_id].mark_settled(outcome.ranges)
        self._verdict_log.add(commands, outcomes)
        if failed:
            log_outcomes(self._ledger.name, self._ledger.now(), settled)
        try:
            summarize([command.lease_id for command in commands], outcomes)
        except LeaseLost as lost:
            _log.warning("some leases lost messages, which are redelivered: %s", lost)


def returned_places(
    commands: Sequence[SettleCommand], outcomes: Sequence[SettleOutcome]
) -> set[tuple[str, int, int]]:
    """Return the messages that came back with an earlier one of their key, by lease."""
    return {
        (command.lease_id, first, last)
        for command, outcome in zip(commands, outcomes, strict=True)
        for first, last in outcome.returned
    }
