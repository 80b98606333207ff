"""A lease as its holder has it: the messages, the deadline, and the right to settle."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_mq.errors import CorruptLog, LeaseLost
from spark_mq.ledger.intervals import Interval, subtract
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settle import SettleOutcome
from spark_mq.message import ReceivedMessage, to_received
from spark_mq.operations.keep_alive import LeaseKeepAlive
from spark_mq.parquet.reader import MessageReader, to_delivery_table
from spark_mq.parquet.schema import DELIVERED_COLUMNS, DELIVERY_SCHEMA
from spark_mq.util.validation import SECOND, check_duration, shown, to_datetime

if TYPE_CHECKING:
    from spark_mq.group import ConsumerGroup

__all__ = ["Lease", "SettleResult", "result_of"]


@dataclass(frozen=True, slots=True)
class SettleResult:
    """What a settle did: messages ``settled`` by it, and messages that were ``already_settled``."""

    settled: int
    already_settled: int = 0


class Lease:
    """Messages held by one worker until they are settled or ``expires_at`` passes. Made by :meth:`ConsumerGroup.lease`. Thread-safe.

    The ``lease_id`` is the right to settle. Settling without sequences covers all that this object has not settled yet.
    """

    def __init__(self, group: ConsumerGroup, lease_id: str, worker_id: str, expires_at: int, ranges: Sequence[Range]) -> None:
        self.group = group
        self.lease_id = lease_id
        self.worker_id = worker_id
        self.ranges = tuple(ranges)
        self._expires_at = expires_at
        self._left: list[Interval] = [(r.first, r.last) for r in ranges]
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Lease({self.lease_id!r}, {len(self)} messages, expires_at={self.expires_at.isoformat()})"

    def __len__(self) -> int:
        return sum(r.message_count for r in self.ranges)

    @property
    def expires_at(self) -> datetime:
        """When the lease ends unless it is extended (aware, UTC)."""
        return to_datetime(self._expires_at)

    @cached_property
    def messages(self) -> list[ReceivedMessage]:
        """The messages, in the order of their sequence. As :meth:`table`."""
        try:
            return to_received(self.table())
        except UnicodeDecodeError:
            self._give_up_unreadable()
            return to_received(self.table())

    def table(self) -> pa.Table:
        """The messages as an Arrow table with the columns of DELIVERY_SCHEMA, in the order of their sequence.

        What turns out to be unreadable only now (a broken page, a file that was deleted since) is dead at once, and no more in this lease.
        """
        try:
            return self._read()
        except CorruptLog:
            self._give_up_unreadable()
            return self._read()

    def _give_up_unreadable(self) -> None:
        good = self.group.verified(self.ranges, self.lease_id, whole=True)
        bad = subtract([(r.first, r.last) for r in self.ranges], [(r.first, r.last) for r in good])
        with self._lock:
            self.ranges = good
        self.forget(bad)

    def _read(self) -> pa.Table:
        if not self.ranges:
            return DELIVERY_SCHEMA.empty_table()
        log = self.group.queue.log
        index = log.index(max(r.last for r in self.ranges))
        ranges = sorted(self.ranges, key=attrgetter("first"))
        pieces = [(piece, r) for r in ranges for piece in index.slices(r.first, r.last)]
        payload = MessageReader(log.files, DELIVERED_COLUMNS).read(*(piece for piece, _ in pieces))
        held = {"lease_id": self.lease_id, "lease_expires_at": self._expires_at}
        return to_delivery_table(payload, pieces, DELIVERY_SCHEMA, held)

    # -- settling: each one commit at most, those of several threads share one

    def ack(self, sequences: Iterable[int] | None = None, *, message_ids: Iterable[str] | None = None) -> SettleResult:
        """Done. Raises LeaseLost for what is not held any more (the rest is settled)."""
        return self.group.ack(self, sequences, message_ids=message_ids)

    def nack(
        self,
        sequences: Iterable[int] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
        delay: Any = None,
        error: str | None = None,
    ) -> SettleResult:
        """Failed, to be tried again after the group's retry policy or `delay`.

        Naming messages blames them; without, the culprit is unknown. Raises LeaseLost.
        """
        return self.group.nack(self, sequences, message_ids=message_ids, delay=delay, error=error)

    def reject(
        self, sequences: Iterable[int] | None = None, *, message_ids: Iterable[str] | None = None, error: str | None = None
    ) -> SettleResult:
        """Can never be processed: to the dead letters. Raises LeaseLost."""
        return self.group.reject(self, sequences, message_ids=message_ids, error=error)

    def release(self) -> SettleResult:
        """Gives back what is left, uncounted, as if it had not been leased. Raises LeaseLost."""
        return self.group.release(self)

    def extend(self, timeout: Any = None) -> SettleResult:
        """Moves the deadline to now + `timeout` (the group's visibility timeout), never earlier. Raises LeaseLost."""
        from spark_mq.operations.settle import extend

        result, deadline = extend(self.group, self.lease_id, None if timeout is None else check_duration("timeout", timeout))
        with self._lock:
            self._expires_at = max(self._expires_at, deadline)
        return result

    @contextlib.contextmanager
    def keep_alive(self, max_lease_duration: Any = "30m") -> Iterator[Lease]:
        """While the block runs, the lease is extended in the background, by its own timeout, for `max_lease_duration` at most.

        with lease.keep_alive():
            work_on(lease.messages)
            lease.ack()
        """
        alive = self.extender(check_duration("max_lease_duration", max_lease_duration))
        try:
            yield self
        finally:
            alive.stop()

    def extender(self, limit: int) -> LeaseKeepAlive:
        """Starts what extends the lease in the background, for `limit` microseconds at most, until it is stopped."""
        timeout = min(limit, (self.ranges[0].expires_at or 0) - (self.ranges[0].leased_at or 0))
        return LeaseKeepAlive(lambda wanted: self.extend(wanted / SECOND), timeout, limit)

    # -- what is known of it here

    def left(self) -> list[Interval]:
        """What this object has not settled yet."""
        with self._lock:
            return list(self._left)

    def forget(self, settled: Iterable[Interval]) -> None:
        """Takes note of what has been settled."""
        with self._lock:
            self._left = subtract(self._left, settled)


def result_of(lease_ids: Sequence[str], outcomes: Sequence[SettleOutcome], missing: Sequence[str] = ()) -> SettleResult:
    """The sum of the outcomes of some leases' settles. Raises LeaseLost, with that sum, if anything was not held.

    ``missing``: message ids that were named, and that no lease holds.
    """
    result = SettleResult(sum(o.settled for o in outcomes), sum(o.already_settled for o in outcomes))
    lost = [part for o in outcomes for part in o.lost]
    if lost or missing:
        each = [f"{first}..{last} {why}" for first, last, why in lost] + [f"no message with the id {shown(one)}" for one in missing]
        told = "; ".join(each[:5]) + (f" and {len(each) - 5} more" if len(each) > 5 else "")
        all_ids = dict.fromkeys(lease_id for lease_id, o in zip(lease_ids, outcomes, strict=True) if o.lost)
        named = ", ".join(all_ids or dict.fromkeys(lease_ids))
        brief = named if len(named) <= 400 else f"{named[:400]}..."
        raise LeaseLost(
            f"lease {brief} does not hold these messages any more: {told} ({result.settled} settled)",
            lease_id=named, lost=lost, message_ids=list(missing), result=result,
        )  # fmt: skip
    return result
