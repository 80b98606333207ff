"""Hold, extend and settle the leases of a feed."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from spark_mq.errors import LeaseLost, SparkMQError
from spark_mq.handler import log_outcomes
from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.settle import ACK, Settle, SettleOutcome, SettlePart
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.keep_alive import KeepAlive
from spark_mq.operations.outages import OUTAGES, outage_pause
from spark_mq.operations.settle import extend, summarize
from spark_mq.operations.work_report import VerdictLog, isolation_text
from spark_mq.util.show import show_count
from spark_mq.worker.state import WorkState

__all__ = ["FeedCommits", "HeldLeases", "More", "returned_places"]

_log = logging.getLogger("spark_mq.worker")

_MAX_PAUSE: Final = 5.0  # seconds between two tries to settle, while its lease may expire

More = Callable[[], Sequence[Acquire]]  # the leases that a commit may add


class HeldLeases:
    """The leases of a feed, extended until their tasks are settled.

    `on_end` gets each that expires after its longest duration, `limit` in microseconds.
    """

    def __init__(self, ledger: GroupLedger, limit: int, on_end: Callable[[Lease], None]) -> None:
        self._ledger, self._limit, self._on_end = ledger, limit, on_end
        self._keep_alive = KeepAlive(self._extend, self._end_at_limit)
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        self._open: Counter[str] = Counter()  # tasks of each lease that are not settled yet
        self._unlimited: dict[str, Lease] = {}  # extended without a limit, in an outage

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases[lease.lease_id] = lease
        timeout = lease._start_limit(self._limit)
        self._keep_alive.add(lease.lease_id, timeout, self._limit)

    def open(self, lease: Lease, tasks: int) -> None:
        """Hold a lease until so many tasks are closed."""
        with self._lock:
            self._open[lease.lease_id] = tasks

    def close(self, leases: Iterable[Lease]) -> None:
        """Close one task of each lease given. The last one of a lease ends its extensions."""
        ended = list[Lease]()
        with self._lock:
            for lease in leases:
                self._open[lease.lease_id] -= 1
                if self._open[lease.lease_id] <= 0:
                    ended.append(lease)
        for lease in ended:
            self.remove(lease)

    def remove(self, lease: Lease) -> None:
        self.stop_extending(lease)
        with self._lock:
            self._leases.pop(lease.lease_id, None)
            self._open.pop(lease.lease_id, None)

    def stop_extending(self, lease: Lease) -> None:
        self._keep_alive.remove(lease.lease_id)

    def remove_limit(self, leases: Iterable[Lease]) -> None:
        """Extend leases without a limit, because finished tasks wait for a failing store."""
        kept = {lease.lease_id: lease for lease in leases}
        with self._lock:
            self._unlimited.update(kept)
        for lease in kept.values():
            lease._held.ends_at = None
        self._keep_alive.set_limit(kept, None)

    def restore_limits(self) -> None:
        """Limit the leases that an outage has left, each for the whole duration from now."""
        if not self._unlimited:
            return
        with self._lock:
            leases, self._unlimited = self._unlimited, {}
        for lease in leases.values():
            lease._start_limit(self._limit)
        self._keep_alive.set_limit(leases, self._limit)

    def stop(self) -> None:
        """Stop. No extension starts after this returns."""
        self._keep_alive.stop()

    def _extend(self, lease_ids: Sequence[str], timeout: int) -> None:
        _, deadline = extend(self._ledger, lease_ids, timeout)
        with self._lock:
            held = [self._leases[one] for one in lease_ids if one in self._leases]
        for lease in held:
            lease._held.move_deadline(deadline)

    def _end_at_limit(self, lease_id: str) -> bool:
        """Return whether a lease has ended, and end its tasks then."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return True
        if ended := lease._has_ended():
            self._on_end(lease)
        return ended


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
        self._isolates = False  # whether the feed has had suspects lately
        self._verdict_log = VerdictLog(ledger.name, isolation=self._isolation)

    def settle(
        self,
        parts: Sequence[SettlePart],
        leases: Sequence[Lease],
        also: More = list,
        *,
        failed: bool = False,
    ) -> tuple[list[SettleOutcome], list[Any]] | None:
        """Settle messages of leases, and lease more in the same commit. Retry in an outage.

        Return the outcomes, and the grants or errors of the leases, or None if the work ends.
        """
        settle, failures = Settle(tuple(parts)), 0
        while True:
            others = [] if failures else list(also())  # nothing more while the store fails
            outcomes, granted = self._try(settle, others)
            if not isinstance(outcomes, Exception):
                self._note(parts, outcomes, leases, failed)
                return outcomes, granted
            for grant in granted:
                if isinstance(grant, Grant) and grant.ranges:
                    self.give_back(self.lease_of(grant))
            self._wait_on(leases)
            if not isinstance(outcomes, OUTAGES):
                raise outcomes
            pause, failures = outage_pause(failures, _MAX_PAUSE), failures + 1
            _log.warning("could not settle, trying again in %.1f s: %s", pause, outcomes)
            if self._state.over.wait(pause):
                _log.warning("some messages could not be settled: their leases are left to expire")
                return None

    def _try(self, settle: Settle, others: Sequence[Acquire]) -> tuple[Any, list[Any]]:
        """Return the result or error of each command. An error of the store is that of all."""
        try:
            outcomes, *granted = self._ledger.committer.run([settle, *others])
        except OUTAGES as error:
            return error, []
        return outcomes, granted

    def ack_all(self, lease: Lease, also: More) -> tuple[bool, list[Any]]:
        """Ack a lease before its handler, and lease more in the same commit.

        Return whether the handler may have the messages, and the grants or errors of the leases.
        """
        part = SettlePart(ACK, lease.lease_id, lease._held.unsettled(), whole=True)
        if (done := self.settle([part], [lease], also)) is None:
            return False, []
        (outcome,), granted = done
        return outcome.settled == len(lease), granted

    def watch(self, lease: Lease) -> None:
        """Log and count what a handler settles itself."""
        lease._held.on_settle = self._note_own

    def _note_own(self, part: SettlePart, outcome: SettleOutcome) -> None:
        self._state.count(part.verb, outcome.settled)
        self._verdict_log.add([part], [outcome])

    def lease_of(self, grant: Grant) -> Lease:
        return Lease(self._ledger, self._worker_id, grant)

    def note_suspects(self, lease: Lease) -> None:
        """Log how far the isolation is if the feed has a lease of suspects for the first time."""
        if self._isolates or not lease._ranges[0].suspect:
            return
        self._isolates = True
        text, name = isolation_text([self._ledger]), self._ledger.name
        shown = f"leased {show_count(len(lease), 'message')} of a lease that failed"
        _log.info("group %s: %s", name, ", ".join([shown, text] if text else [shown]))

    def _isolation(self) -> str:
        """Return how far the isolation is. Without suspects lately, the store is not asked."""
        text = isolation_text([self._ledger]) if self._isolates else ""
        self._isolates = bool(text)
        return text

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
        parts: Sequence[SettlePart],
        outcomes: Sequence[SettleOutcome],
        leases: Iterable[Lease],
        failed: bool,
    ) -> None:
        held = {lease.lease_id: lease._held for lease in leases}
        settled = list(zip(parts, outcomes, strict=True))
        for part, outcome in settled:
            self._state.count(part.verb, outcome.settled)
            held[part.lease_id].mark_settled(outcome.ranges)
        if self._verdict_log.add(parts, outcomes) and failed:
            log_outcomes(self._ledger.name, self._ledger.now(), settled)
        try:
            summarize([part.lease_id for part in parts], outcomes)
        except LeaseLost as lost:
            _log.warning("some leases lost messages, which are redelivered: %s", lost)


def returned_places(
    parts: Sequence[SettlePart], outcomes: Sequence[SettleOutcome]
) -> set[tuple[str, int, int]]:
    """Return the messages that came back with an earlier one of their key, by lease."""
    return {
        (part.lease_id, first, last)
        for part, outcome in zip(parts, outcomes, strict=True)
        for first, last in outcome.returned
    }
