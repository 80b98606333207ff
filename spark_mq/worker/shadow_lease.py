"""Hand settled messages to a handler as a lease that settles nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal

import pyarrow as pa

from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Grant
from spark_mq.ledger.intervals import Interval, from_sequences, intersect, subtract
from spark_mq.ledger.ranges import LEASED, Range
from spark_mq.ledger.settle import REJECT, SettleOutcome, SettlePart
from spark_mq.message import MessageSelector, ReceivedMessage
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.find_messages import check_ids
from spark_mq.operations.settle import SettleResult, summarize
from spark_mq.operations.sinks import check_schema_mode
from spark_mq.parquet.schema import DELIVERY_SCHEMA
from spark_mq.util.clock import SECOND, Duration, to_datetime
from spark_mq.util.validation import validate_duration, validate_error

__all__ = ["ShadowLease"]

_WORKER: Final = "shadow-replay"
_DURATION: Final = 3600 * SECOND  # that its messages seem to be held


class ShadowLease(Lease):
    """The messages of one call of a shadow replay's handler.

    The handler uses it as any lease. Settles are noted in ``parts``, and no ledger changes. An
    append to the sink writes nothing. Rows are those of a table with at least the columns of
    `DELIVERY_SCHEMA` but the lease's own.
    """

    def __init__(
        self, ledger: GroupLedger, rows: pa.Table, messages: list[ReceivedMessage]
    ) -> None:
        lease_id, now = f"shadow-{uuid.uuid4().hex}", ledger.now()
        places = from_sequences(one.sequence for one in messages)
        until = now + _DURATION
        ranges = tuple(
            Range(first, last, LEASED, last - first + 1, lease_id, _WORKER, now, until)
            for first, last in places
        )
        super().__init__(ledger, _WORKER, Grant(ranges, lease_id=lease_id, expires_at=until))
        self._rows = rows
        self.messages = messages
        self.parts: list[SettlePart] = []

    def table(self) -> pa.Table:
        """Return the messages as :meth:`Lease.table`."""
        own = {"lease_id": self.lease_id, "lease_expires_at": to_datetime(self._held.expires_at)}
        count = self._rows.num_rows
        columns = [
            pa.repeat(pa.scalar(own[field.name], field.type), count)
            if field.name in own
            else self._rows[field.name].cast(field.type)
            for field in DELIVERY_SCHEMA
        ]
        return pa.table(columns, schema=DELIVERY_SCHEMA)

    def append(self, rows: Any, *, schema_mode: Literal["merge"] | None = None) -> bool:
        """Write nothing. Return True, as if the rows were new."""
        check_schema_mode(schema_mode)
        return True

    def extend(
        self,
        timeout: Duration | None = None,
        sequences: MessageSelector | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> SettleResult:
        """Extend nothing, because nothing expires. Return the number of named messages."""
        if timeout is not None:
            validate_duration("timeout", timeout)
        found, missing = self._named(sequences, message_ids)
        count = _count(self._held.granted if found is None else found)
        return summarize([self.lease_id], [SettleOutcome(settled=count)], missing)

    def _settle(
        self, verb: str, sequences: MessageSelector | None, message_ids: Iterable[str] | None,
        delay: Duration | None = None, error: str | None = None,
    ) -> SettleResult:  # fmt: skip
        pause = None if delay is None else validate_duration("delay", delay, zero=True)
        text = validate_error(error)
        found, missing = self._named(sequences, message_ids)
        left, granted = self._held.unsettled(), self._held.granted
        wanted = left if found is None else intersect(found, left)
        self._note(SettlePart(verb, self.lease_id, wanted, delay=pause, error=text))
        named = wanted if found is None else found
        why = "which this lease never held"
        outcome = SettleOutcome(
            settled=_count(wanted),
            already_settled=_count(intersect(named, granted)) - _count(wanted),
            lost=[(first, last, why) for first, last in subtract(named, granted)],
        )
        return summarize([self.lease_id], [outcome], missing)

    def _named(
        self, sequences: MessageSelector | None, message_ids: Iterable[str] | None
    ) -> tuple[list[Interval] | None, list[str]]:
        """Return the named messages, or None if none are named, and the ids that nobody has."""
        if message_ids is None:
            if sequences is None:
                return None, []
            named = from_sequences(sequences)
            # A range names what it has, and gaps between messages are no error.
            return (intersect(named, self._held.granted) if isinstance(sequences, range) else named
                    ), []  # fmt: skip
        wanted = set(check_ids(message_ids))
        found = [one for one in self.messages if one.message_id in wanted]
        missing = wanted - {one.message_id for one in found}
        return from_sequences(one.sequence for one in found), sorted(missing)

    def _note(self, part: SettlePart) -> None:
        if part.intervals:
            with self._lock:
                self.parts.append(part)
            self._held.mark_settled(part.intervals)

    def _keep(self, messages: list[ReceivedMessage], rejected: Mapping[str, Sequence[int]]) -> int:
        """Keep some messages, and note that the others are rejected. Return their number."""
        self.messages = messages
        for why, sequences in rejected.items():
            self._note(SettlePart(REJECT, self.lease_id, from_sequences(sequences), error=why))
        gone = set(chain.from_iterable(rejected.values()))
        kept = pa.array([one not in gone for one in self._rows["sequence"].to_pylist()], pa.bool_())
        self._rows = self._rows.filter(kept)
        places = from_sequences(one.sequence for one in messages)
        self._ranges = tuple(
            r._replace(first=first, last=last, message_count=last - first + 1)
            for r in self._ranges
            for first, last in intersect([(r.first, r.last)], places)
        )
        return len(gone)


def _count(intervals: Iterable[Interval]) -> int:
    return sum(last - first + 1 for first, last in intervals)
