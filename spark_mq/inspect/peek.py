"""Look at messages without leasing them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import CorruptLog, InvalidOption
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import LEASED, Range
from spark_mq.ledger.slots import SlotLayout
from spark_mq.ledger.states import DELAYED, STATE_NAMES
from spark_mq.ledger.walk import range_of, walk
from spark_mq.message import to_headers
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.parquet.reader import MessageReader, cut_rows
from spark_mq.util.clock import optional_datetime
from spark_mq.util.records import Record
from spark_mq.util.validation import invalid, validate_choice, validate_count, validate_text

_COLUMNS: Final = (
    "message_id", "key", "value", "headers", "published_at", "deliver_at", "expires_at", "priority",
)  # fmt: skip
_ROWS: Final = 50_000  # rows whose keys or ids a search reads together
_MAX_SEQUENCE: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PeekedMessage(Record):
    """A message of the queue, with its state in a group.

    Attributes
    ----------
    sequence
        The position in the queue.
    message_id, key, headers
        As published. ``message_id`` is None if the message cannot be read.
    value
        The payload. None if the message cannot be read.
    published_at, deliver_at, expires_at
        Aware datetimes in UTC, or None.
    priority, lane
        Its priority, and the lane of its key. None without a key, or if the queue has no lanes.
    group, state
        The group, and the message's state in it: "ready", "delayed", "leased", "dead", "blocked",
        "transferring" or "settled". None for a look at the queue.
    delivery_count, failure_count
        Deliveries and failures in the group.
    lease_id, worker_id, leased_until
        Its lease, its worker and its deadline, if it is leased.
    available_at
        When it is due, if it is delayed.
    reason, error
        Why it is dead or blocked, and the text of its last failure.
    unreadable
        Why the message cannot be read, or None.
    """

    sequence: int
    message_id: str | None = None
    key: str | None = None
    value: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    published_at: datetime | None = None
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    priority: int = 0
    lane: int | None = None
    group: str | None = None
    state: str | None = None
    delivery_count: int = 0
    failure_count: int = 0
    lease_id: str | None = None
    worker_id: str | None = None
    leased_until: datetime | None = None
    available_at: datetime | None = None
    reason: str | None = None
    error: str | None = None
    unreadable: str | None = None


def peek_queue(
    context: QueueContext, n: int, wanted: Wanted, after: int | None
) -> list[PeekedMessage]:
    validate_count("n", n)
    index = context.messages.index()
    first = _first(context, after)
    pieces = index.slices(first, index.last_sequence)
    return _read(context, ((piece, None) for piece in pieces), n, wanted)


def peek_group(
    context: QueueContext,
    group: GroupLedger,
    n: int,
    wanted: Wanted,
    *,
    state: str | None,
    after: int | None,
) -> list[PeekedMessage]:
    validate_count("n", n)
    if state is not None:
        validate_choice("state", state, STATE_NAMES)
    ledger, index, now = group.current(), context.messages.index(), context.now()
    pieces = (
        (part, PeekedMessage(piece.first, group=group.name, **shown))
        for piece in walk(ledger, index, now, _first(context, after))
        if piece.has_state(state)
        for shown in [shown_range(piece.state, range_of(piece, ledger, index))]
        for part in index.slices(piece.first, piece.last)
    )
    return _read(context, pieces, n, wanted)


def find_sequences(context: QueueContext, n: int, wanted: Wanted) -> list[int]:
    """Return the newest messages with a key or an id, as sequences, the newest first."""
    index = context.messages.index()
    reader = MessageReader(context.messages.files, wanted.columns)
    sequences: list[int] = []
    pieces = list(index.slices(_first(context, None), index.last_sequence))
    for piece in reversed(pieces):
        for part in reversed(list(cut_rows(piece, _ROWS))):
            try:
                rows = wanted.rows(reader.read(part))
            except CorruptLog:
                continue
            sequences += [part.first + row for row in reversed(rows)]
            if len(sequences) >= n:
                return sequences[:n]
    return sequences


def named_sequences(
    context: QueueContext, sequence: int | None, names: Mapping[str, str | None], n: int = 1
) -> list[int]:
    """Return the message of a sequence, or the newest with an id or key. Raise InvalidOption."""
    given = {name: value for name, value in names.items() if value is not None}
    if (sequence is not None) + len(given) != 1:
        offered = " or ".join(f"{name}=..." for name in names)
        raise InvalidOption(
            f"a message has one kind of name: give a sequence, {offered}",
            option="sequence",
            value=sequence,
        )
    if sequence is not None:
        return [validate_count("sequence", sequence, least=0, most=_MAX_SEQUENCE)]
    sequences = find_sequences(context, n, Wanted(**given))
    if not sequences:
        ((name, value),) = given.items()
        problem = (
            f"is not there: no retained message of {context.path} has this "
            f"{name.removeprefix('message_')}. For a trimmed message, give its sequence"
        )
        raise invalid(name, value, problem)
    return sequences


def _first(context: QueueContext, after: int | None) -> int:
    """Return the first sequence that may be read. Those up to the horizon may be gone."""
    low = context.horizon() + 1
    if after is None:
        return low
    return max(low, validate_count("after", after, least=0, most=_MAX_SEQUENCE) + 1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A key and an id to look for. None matches all. Raises InvalidOption if one is no text."""

    key: str | None = None
    message_id: str | None = None

    def __post_init__(self) -> None:
        for name in self.columns:
            validate_text(name, getattr(self, name))

    @property
    def columns(self) -> list[str]:
        given = (("key", self.key), ("message_id", self.message_id))
        return [name for name, value in given if value is not None]

    def rows(self, table: pa.Table) -> list[int]:
        masks = [pc.equal(table[name], getattr(self, name)) for name in self.columns]
        mask = masks[0] if len(masks) == 1 else pc.and_(*masks)
        rows: list[int] = pc.indices_nonzero(mask).to_pylist()
        return rows


_Found = tuple[FileSlice, PeekedMessage | None]


def _read(
    context: QueueContext, slices: Iterable[_Found], n: int, wanted: Wanted
) -> list[PeekedMessage]:
    messages: list[PeekedMessage] = []
    files, layout = context.messages.files, SlotLayout(context.messages.lanes)
    search = MessageReader(files, wanted.columns)
    reader = MessageReader(files, _COLUMNS)
    for piece, described in slices:
        left = n - len(messages)
        if left <= 0:
            break
        base = described or PeekedMessage(piece.first)
        head = [piece.part(0, min(left, piece.rows))]
        parts = _matching(search, piece, wanted, left) if wanted.columns else head
        for part in parts:
            messages += _messages(reader, part, base, layout)
    return messages[:n]


def _matching(
    reader: MessageReader, piece: FileSlice, wanted: Wanted, n: int
) -> Iterator[FileSlice]:
    """Yield at most `n` matching rows of a slice. Skip unreadable rows."""
    for part in cut_rows(piece, _ROWS):
        try:
            rows = wanted.rows(reader.read(part))
        except CorruptLog:
            continue
        for row in rows[:n]:
            yield part.part(row, 1)
        n -= len(rows)
        if n <= 0:
            return


def _messages(
    reader: MessageReader, piece: FileSlice, base: PeekedMessage, layout: SlotLayout
) -> Iterator[PeekedMessage]:
    try:
        rows = reader.read(piece).to_pylist()
    except CorruptLog as error:
        for row in range(piece.rows):
            yield replace(base, sequence=piece.first + row, unreadable=str(error))
        return
    for row, values in enumerate(rows):
        given: dict[str, Any] = {name: values[name] for name in _COLUMNS}
        given["headers"] = to_headers(given["headers"])
        given["priority"] = given["priority"] or 0
        given["lane"] = layout.lane(given["key"])
        yield replace(base, sequence=piece.first + row, **given)


def shown_range(state: str, r: Range) -> dict[str, Any]:
    """Return what the views of a message show of its range."""
    leased = state == LEASED
    return {
        "state": state,
        "delivery_count": r.delivery_count,
        "failure_count": r.failure_count,
        "lease_id": r.lease_id if leased else None,
        "worker_id": r.worker if leased else None,
        "leased_until": optional_datetime(r.expires_at) if leased else None,
        "available_at": optional_datetime(r.available_at) if state == DELAYED else None,
        "reason": r.reason,
        "error": r.error,
    }
