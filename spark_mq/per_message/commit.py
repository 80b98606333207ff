"""Settle messages of a feed, and lease more, in one commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from spark_mq.errors import LeaseLost, SparkMQError
from spark_mq.handler import log_outcomes
from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Grant
from spark_mq.ledger.commands import Command
from spark_mq.ledger.settle import SettleCommand, SettleOutcome
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.outages import settle_with_retry
from spark_mq.operations.settle import summarize
from spark_mq.per_message.keeper import LeaseKeeper
from spark_mq.per_message.state import FeedOptions, WorkState

__all__ = ["FeedCommits"]

_log = logging.getLogger("spark_mq.worker")


class FeedCommits:
    """Commits the settles and leases of a feed."""

    def __init__(
        self, ledger: GroupLedger, options: FeedOptions, state: WorkState, keeper: LeaseKeeper
    ) -> None:
        self._ledger, self._worker_id = ledger, options.lease.worker_id
        self._state, self._keeper = state, keeper

    def settle(
        self,
        commands: Sequence[SettleCommand],
        also: Callable[[], Sequence[Command[Any]]] = list,
    ) -> tuple[list[SettleOutcome], list[Any]] | None:
        """Settle, and run other operations in the same commit. Wait as long as the store fails.

        Return the outcomes, and the results or errors of the others, or None if the work ends.
        """
        state = self._state
        done = settle_with_retry(self._ledger, commands, also, state.over, self._before_retry)
        if done is None:
            _log.warning("some messages could not be settled: their leases are left to expire")
            return None
        for command, outcome in zip(commands, done[0], strict=True):
            state.count(command.verb, outcome.settled)
        log_outcomes(self._ledger.name, self._ledger.now(), zip(commands, done[0], strict=True))
        try:
            summarize([command.lease_id for command in commands], done[0])
        except LeaseLost as lost:
            _log.warning("some leases lost messages, which are redelivered: %s", lost)
        return done

    def _before_retry(self, granted: Sequence[Any]) -> None:
        self._give_back(granted)
        self._keeper.remove_limit()

    def _give_back(self, granted: Sequence[Any]) -> None:
        """Release the lease that came with a settle that failed."""
        for acquired in granted:
            if isinstance(acquired, Grant) and acquired.ranges:
                try:
                    Lease(self._ledger, self._worker_id, acquired).release()
                except SparkMQError as error:
                    _log.warning("a lease could not be released and will expire: %s", error)
