"""Route each lease of a batch to its group, and check that this driver still holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from spark_mq.errors import InvalidOption, StreamFenced
from spark_mq.group import ConsumerGroup
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settle import SettleOutcome, SettlePart
from spark_mq.ledger.stream_batch import fence_app_id, parse_lease_id, rows_held_by_batch
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import OUTAGES
from spark_mq.operations.work_report import reported_work


class LeaseRouter:
    """Settles each lease in its group. A union of queues has several groups."""

    def __init__(self, groups: Sequence[ConsumerGroup]) -> None:
        self.groups = tuple(groups)
        self._of: dict[str, ConsumerGroup] = {}  # by stream
        self._numbers: dict[str, int] = {}  # by lease id, the last number of its stream
        self.outage: Exception | None = None  # of the last settle, if a store failed

    def of(self, lease_id: str) -> ConsumerGroup:
        """Return the group of a lease. Raise InvalidOption if it is of another group or queue."""
        parts = parse_lease_id(lease_id)
        if parts is None:
            return self.groups[0]
        if parts[0] not in self._of:
            self._of[parts[0]] = self._find(lease_id, parts[0])
        return self._of[parts[0]]

    def settle(self, wanted: Sequence[SettlePart]) -> list[SettleOutcome]:
        """Settle in one commit for each group. Return the outcomes in the order of `wanted`."""
        self.outage = None
        groups = [self.of(part.lease_id) for part in wanted]
        outcomes: dict[int, SettleOutcome] = {}
        for group in dict.fromkeys(groups):
            mine = [at for at, owner in enumerate(groups) if owner is group]
            try:
                settled = group._ledger.settle([wanted[at] for at in mine])
            except OUTAGES as error:
                self.outage = error
                raise
            outcomes.update(zip(mine, settled, strict=True))
        return [outcomes[at] for at in range(len(wanted))]

    def reported_work(self, lease_ids: Sequence[str]) -> AbstractContextManager[Callable[..., Any]]:
        ledgers = [(self.of(lease_id)._ledger, lease_id) for lease_id in lease_ids]
        return reported_work(
            [(own, partial(_ranges, own, lease_id)) for own, lease_id in ledgers], None
        )

    def begin(self, lease_ids: Sequence[str]) -> None:
        """Find the groups and keep the transaction numbers of a batch that may be a replay."""
        self.outage = None
        self._numbers = {
            lease_id: self._txn_number(self.of(lease_id), lease_id) for lease_id in lease_ids
        }

    def check(self, lease_ids: Sequence[str]) -> None:
        """Raise StreamFenced, before Spark commits the batch, if another driver has taken it over.

        An expired lease is no reason to end the query, because its messages are delivered again.
        """
        for lease_id in lease_ids:
            parts = parse_lease_id(lease_id)
            if parts is None:
                continue
            stream, n, _ = parts
            ledger = self.of(lease_id)._ledger.current()
            holders = {
                r.lease_id for r in ledger.ranges_at(rows_held_by_batch(ledger, f"{stream}/{n}/"))
            } - {lease_id}
            number = self._txn_number(self.of(lease_id), lease_id)
            # Without a number from its start it was no replay, so 2n + 1 is its own.
            if holders or number > self._numbers.get(lease_id, 2 * n + 1):
                raise StreamFenced(
                    f"batch {n} of stream {stream} was taken over by another driver on this "
                    f"checkpoint. This query ends; use one checkpoint for one query",
                    stream=stream,
                    batch=n,
                    mark=number,
                )

    def _find(self, lease_id: str, stream: str) -> ConsumerGroup:
        known = [group for group in self.groups if self._txn_number(group, lease_id)]
        if holder := next((group for group in known if _holds(group, lease_id)), None):
            return holder
        others = [
            ConsumerGroup(group._context, name)
            for group in known
            for name in group._context.ledgers.groups()
            if name != group.name
        ]
        wrong = next((group for group in others if _holds(group, lease_id)), None)
        if known and wrong is None:
            return known[0]  # all of it has expired, or was taken over
        source = f"was leased by {wrong!r}" if wrong else "was leased from another queue"
        raise InvalidOption(
            f"the batch of stream {stream} {source}, but for_each_batch settles "
            f"{', '.join(map(repr, self.groups))}: use the path and consumerGroup of the stream. "
            f"For a union of queues, give the other groups by more_groups=[...]",
            option="group",
            value=", ".join(group.name for group in self.groups),
        )

    @staticmethod
    def _txn_number(group: ConsumerGroup, lease_id: str) -> int:
        parts = parse_lease_id(lease_id)
        leases = group._context.ledgers
        return (
            leases.txn_number(leases.read(group.name), fence_app_id(parts[0])) if parts else None
        ) or 0


def _ranges(ledger: GroupLedger, lease_id: str) -> list[Range]:
    return ledger.current().held(lease_id)


def _holds(group: ConsumerGroup, lease_id: str) -> bool:
    ledger = group._ledger.current()
    return bool(ledger.rows_held(lease_id))
