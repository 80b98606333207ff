"""Hold a lease for a worker, with what only its worker has to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

from spark_mq.lease import Lease
from spark_mq.ledger.intervals import Interval, from_sequences, subtract
from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.settle import REJECT, SettlePart
from spark_mq.message import ReceivedMessage
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import OUTAGES, find_store_failure, may_be_outage
from spark_mq.operations.settle import HeldLease
from spark_mq.operations.work_report import reported_work


class WorkerLease(Lease):
    """The lease that a handler gets, and what its worker asks it."""

    @property
    def group(self) -> GroupLedger:
        return self._ledger

    @property
    def is_suspect(self) -> bool:
        """Return whether its messages failed as part of a whole lease before."""
        return self._ranges[0].suspect

    def intervals(self) -> list[Interval]:
        """Return the places of the messages that can be read."""
        return [(r.first, r.last) for r in self._ranges]

    @property
    def held(self) -> HeldLease:
        """Return what is not settled yet, and how long the lease lasts."""
        return self._held

    def check_outcomes(self, outcomes: Iterable[str | None]) -> None:
        """Raise LeaseLost if the outcomes of a handler do not fit what it has appended."""
        self._guard.check_outcomes(outcomes, "handler")

    def reported(self) -> AbstractContextManager[Callable[..., Any]]:
        """Return the block in which a handler is called. It yields a caller that reports it."""
        return reported_work([(self._ledger, lambda: self._ranges)], self.worker_id)

    # -- its time

    def limit_extensions(self, limit: int | None) -> int:
        """Let extensions end after `limit` microseconds, if any. Return how long each may be."""
        if limit is not None:
            return self._start_limit(limit)
        self._held.ends_at = None
        return self._timeout

    def has_expired(self, now: int) -> bool:
        return now > self._held.expires_at

    def has_ended(self) -> bool:
        """Return whether its longest duration is over, and it has expired."""
        return self._held.has_ended(self._ledger.now())

    # -- its messages

    def lanes(self) -> dict[int, int]:
        """Return the lane of each message by sequence. A group without order has none."""
        index = self._ledger.messages.index(self._ranges[-1].last)
        if not is_ordered(index, self._ledger.last_settings):
            return {}
        lanes: dict[int, int] = {}
        for r in self._ranges:
            for slot, first, last in index.slot_runs(r.first, r.last):
                if (lane := index.layout.lane_of(slot)) is not None:
                    lanes.update(dict.fromkeys(range(first, last + 1), lane))
        return lanes

    def deliveries(self) -> dict[int, int]:
        """Return the number of unsettled messages by delivery count."""
        index = self._ledger.messages.index(max((r.last for r in self._ranges), default=0))
        counts: dict[int, int] = {}
        left = self._held.unsettled()
        for r in self._ranges:
            settled = subtract([(r.first, r.last)], left)
            parts = subtract([(r.first, r.last)], settled)
            if count := sum(index.count(first, last) for first, last in parts):
                counts[r.delivery_count] = counts.get(r.delivery_count, 0) + count
        return counts

    def keep(self, messages: list[ReceivedMessage], rejected: Mapping[str, Sequence[int]]) -> int:
        """Keep some messages, and reject the others by reason, in one commit. Return how many."""
        self.messages = messages
        if not rejected:
            return 0
        parts = [
            SettlePart(REJECT, self.lease_id, from_sequences(sequences), error=why)
            for why, sequences in rejected.items()
        ]
        try:
            outcomes = self._ledger.settle(parts)
        except OUTAGES:
            self._store_failed = True
            raise
        kept = from_sequences(message.sequence for message in messages)
        index = self._ledger.messages.index(max(r.last for r in self._ranges))
        with self._lock:
            self._ranges = tuple(piece for r in self._ranges for piece in r.within(kept, index))
        self._held.mark_settled(from_sequences(chain.from_iterable(rejected.values())))
        for part, outcome in zip(parts, outcomes, strict=True):
            self._held.note_settle(part, outcome)
        return sum(outcome.settled for outcome in outcomes)

    # -- its store

    def suspected_outage(self, error: Exception | None) -> Exception | None:
        """Return the error of a handler, or of this lease, that may be one of a failing store."""
        if self._outage is None and not may_be_outage(error):
            return None
        return error or self._outage

    def met_outage(self, error: Exception) -> bool:
        """Return whether a handler failed because the queue's store does."""
        # Its error alone is no proof, because it may be one of another store, for ever.
        return self._outage is not None or (
            may_be_outage(error)
            and (self._store_failed or find_store_failure(self._ledger, self.lease_id) is not None)
        )
