"""A lease as its holder has it: the messages, the deadline, and the right to settle."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_mq.checks import check_duration, to_datetime
from spark_mq.errors import LeaseLost
from spark_mq.index import Slice
from spark_mq.intervals import Interval, from_sequences, subtract
from spark_mq.messages import DELIVERY_SCHEMA, Received, received
from spark_mq.ranges import Range
from spark_mq.settling import ACK, NACK, REJECT, RELEASE, Outcome, Settle

if TYPE_CHECKING:
    from spark_mq.group import ConsumerGroup

__all__ = ["Lease", "SettleResult", "deliver", "result_of"]


@dataclass(frozen=True, slots=True)
class SettleResult:
    """What a settle did: messages ``settled`` by it, and messages that were ``already_settled``."""

    settled: int
    already_settled: int = 0


class Lease:
    """Messages held by one worker until they are settled or ``expires_at`` passes. Made by :meth:`ConsumerGroup.lease`.

    The ``lease_id`` is the right to settle. Settling without sequences covers all that this object has not settled yet.
    """

    def __init__(self, group: ConsumerGroup, lease_id: str, worker_id: str, expires_at: int, ranges: Sequence[Range]) -> None:
        self.group = group
        self.lease_id = lease_id
        self.worker_id = worker_id
        self.ranges = tuple(ranges)
        self._expires_at = expires_at
        self._left: list[Interval] = [(r.first, r.last) for r in ranges]

    def __repr__(self) -> str:
        return f"Lease({self.lease_id!r}, {len(self)} messages, expires_at={self.expires_at.isoformat()})"

    def __len__(self) -> int:
        return sum(r.message_count for r in self.ranges)

    @property
    def expires_at(self) -> datetime:
        """When the lease ends unless it is extended (aware, UTC)."""
        return to_datetime(self._expires_at)

    @cached_property
    def messages(self) -> list[Received]:
        """The messages, in the order of their sequence."""
        return received(self.table())

    def table(self) -> pa.Table:
        """The messages as an Arrow table with the columns of DELIVERY_SCHEMA, in the order of their sequence."""
        log = self.group.queue.log
        index = log.index(self.ranges[-1].last)
        parts = [
            deliver(payload, piece, r.delivery_count, self.lease_id, self._expires_at)
            for r in self.ranges
            for piece, payload in log.read(index.slices(r.first, r.last))
        ]
        return pa.concat_tables(parts).sort_by("sequence")

    def ack(self, sequences: Iterable[int] | None = None) -> SettleResult:
        """Done. Raises LeaseLost for what is not held any more."""
        return self._settle(Settle(ACK, self.lease_id, *self._which(sequences)))

    def nack(self, sequences: Iterable[int] | None = None, *, delay: Any = None, error: str | None = None) -> SettleResult:
        """Failed, to be tried again after the group's backoff or `delay`. Naming messages blames them; without, the culprit is unknown."""
        pause = None if delay is None else check_duration("delay", delay, zero=True)
        intervals, whole = self._which(sequences)
        return self._settle(Settle(NACK, self.lease_id, intervals, whole, pause, error, jitter=random.random()))

    def reject(self, sequences: Iterable[int] | None = None, *, error: str | None = None) -> SettleResult:
        """Can never be processed: to the dead letters."""
        intervals, whole = self._which(sequences)
        return self._settle(Settle(REJECT, self.lease_id, intervals, whole, error=error))

    def release(self) -> SettleResult:
        """Gives back what is left, uncounted, as if it had not been leased."""
        return self._settle(Settle(RELEASE, self.lease_id, *self._which(None)))

    def extend(self, timeout: Any = None) -> SettleResult:
        """Moves the deadline to now + `timeout` (the group's visibility timeout), never earlier."""
        result = self.group.extend(self.lease_id, timeout)
        held = self.group.ledger()
        deadlines = [r.expires_at for r in held.select(held.where(held.held_by(self.lease_id))) if r.expires_at]
        self._expires_at = max([self._expires_at, *deadlines])
        return result

    def _which(self, sequences: Iterable[int] | None) -> tuple[list[Interval], bool]:
        """The intervals that are meant, and whether that is the whole lease."""
        return (list(self._left), True) if sequences is None else (from_sequences(sequences), False)

    def _settle(self, wanted: Settle) -> SettleResult:
        if not wanted.intervals:
            return SettleResult(0)
        outcome = self.group.settle([wanted])[0]
        self._left = subtract(self._left, outcome.ranges)
        return result_of([self.lease_id], [outcome])


def result_of(lease_ids: Sequence[str], outcomes: Sequence[Outcome]) -> SettleResult:
    """The sum of the outcomes of some leases' settles. Raises LeaseLost, with that sum, if anything was not held."""
    result = SettleResult(sum(o.settled for o in outcomes), sum(o.already_settled for o in outcomes))
    lost = [part for o in outcomes for part in o.lost]
    if lost:
        told = "; ".join(f"{first}..{last} {why}" for first, last, why in lost[:5]) + (
            f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        )
        named = ", ".join(dict.fromkeys(lease_id for lease_id, o in zip(lease_ids, outcomes, strict=True) if o.lost))
        raise LeaseLost(
            f"lease {named} does not hold these messages any more: {told} ({result.settled} settled)",
            lease_id=named, lost=lost, result=result,
        )  # fmt: skip
    return result


def deliver(payload: pa.Table, piece: Slice, delivery_count: int, lease_id: str, expires_at: int) -> pa.Table:
    """Messages as a lease hands them out (DELIVERY_SCHEMA), from the payload of a slice; columns not read are left out."""
    n = payload.num_rows
    given = {
        "sequence": pa.array(range(piece.first, piece.first + n), pa.int64()),
        "delivery_count": pa.repeat(pa.scalar(delivery_count, pa.int32()), n),
        "lease_id": pa.repeat(pa.scalar(lease_id, pa.string()), n),
        "lease_expires_at": pa.repeat(pa.scalar(expires_at, pa.int64()).cast(pa.timestamp("us", tz="UTC")), n),
    }
    fields = [f for f in DELIVERY_SCHEMA if f.name in given or f.name in payload.schema.names]
    return pa.table([given[f.name] if f.name in given else payload[f.name] for f in fields], schema=pa.schema(fields))
