"""Trace one message, and list the finished messages of a group."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import CorruptLog, InvalidOption, SparkMQError, StorageError
from spark_mq.ledger.log_fingerprints import REWOUND
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.ranges import HEADER, SETTLED, UNREAD
from spark_mq.operations.context import QueueContext, group_not_found
from spark_mq.operations.history import (
    OUTCOMES,
    dead_letter_of,
    died_in,
    find_earlier,
    find_later,
    find_redriver,
    last_ends,
    read_history,
    was_repaired,
)
from spark_mq.operations.life import Trace, TraceEvent, outcomes_in
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.storage.history_table import FAILURES
from spark_mq.util.clock import to_datetime
from spark_mq.util.columns import sort_rows
from spark_mq.util.validation import validate_choice, validate_count, validate_name

_INSTANT: Final = pa.timestamp("us", tz="UTC")
# One row for each finished message, with its last delivery in ``leased_at``. The columns of
# _PAYLOAD may follow.
FINISHED_SCHEMA: Final = pa.schema(
    [
        pa.field("sequence", pa.int64()),
        pa.field("consumer_group", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("delivery_count", pa.int32()),
        pa.field("failure_count", pa.int32()),
        pa.field("published_at", _INSTANT),
        pa.field("first_leased_at", _INSTANT),
        pa.field("leased_at", _INSTANT),
        pa.field("settled_at", _INSTANT),
        pa.field("worker_id", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("error", pa.string()),
    ]
)

_PAYLOAD: Final = ("message_id", "key", "value", "headers")


def trace(context: QueueContext, sequence: int) -> Trace:
    validate_count("sequence", sequence, least=0, most=2**63 - 1)
    return _trace(context, sequence, frozenset([sequence]), back=True, on=True)


def _trace(
    context: QueueContext, sequence: int, seen: frozenset[int], *, back: bool, on: bool
) -> Trace:
    index = _index_with(context, sequence)
    names = ["message_id", "published_at", "headers"]
    ((piece, payload),) = _payload(context, index, sequence, sequence, names)
    row = payload.to_pylist()[0]
    past = _of_this_message(read_history(context, sequence=sequence).to_pylist())
    events = _events(past)
    earlier, later, letter = None, list[int](), dead_letter_of(row["headers"])
    if back and letter is not None and row["message_id"] is not None:
        earlier = find_earlier(context, sequence, row["message_id"], letter)
    if on and any(event.outcome == "dead_lettered" for event in events):
        later = find_later(context, sequence, row["message_id"])

    redriven = None
    if letter is not None and (earlier is not None or not back):
        redriven = _redrive_event(context, piece, letter, row["headers"])
        events.insert(0, redriven)

    def follow(sequence: int | None, **ways: bool) -> Iterator[Trace]:
        if (
            sequence is not None and sequence not in seen
        ):  # anybody can write a header that leads in circles
            with contextlib.suppress(InvalidOption):  # a header may name any message
                yield _trace(context, sequence, seen | {sequence}, **ways)

    ((slot, _, _),) = index.slot_runs(sequence, sequence)
    return Trace(
        sequence,
        piece.first >> 32,
        row["published_at"],
        row["message_id"],
        row["message_id"] is not None,
        tuple(events),
        tuple(_blocked_groups(context, sequence)),
        next(follow(earlier, back=True, on=False), None),
        tuple(message for sequence in later for message in follow(sequence, back=False, on=True)),
        redriven_at=None if redriven is None else redriven.at,
        priority=index.layout.priority(slot),
        lane=index.layout.lane_of(slot),
        outcomes=outcomes_in(past),
    )


def _index_with(context: QueueContext, sequence: int) -> MessageIndex:
    """Return an index that knows a message. Raise InvalidOption if there is none."""
    index = context.messages.index(sequence)
    if sequence <= index.forgotten_to:
        index = context.messages.full_index(sequence)
    if index.first_at_or_after(sequence) != sequence:
        raise InvalidOption(
            f"sequence={sequence}: no message of {context.path} has it; the last one published "
            f"is {index.last_sequence}",
            option="sequence",
            value=sequence,
        )
    return index


def _events(rows: list[dict[str, Any]]) -> list[TraceEvent]:
    return [
        TraceEvent(
            at=r["committed_at"],
            group=r["consumer_group"],
            **{name: r[name] for name in TraceEvent.__slots__ if name in r},
        )
        for r in _with_own_errors(rows)
    ]


def _redrive_event(
    context: QueueContext, piece: FileSlice, letter: int, headers: Any
) -> TraceEvent:
    """Return the event that published a copy, which has no failures and no deliveries yet."""
    user, detail = find_redriver(context, letter)
    return TraceEvent(
        at=to_datetime(piece.committed_at),
        version=piece.first >> 32,
        group=died_in(headers) or "",
        event="repaired" if was_repaired(headers) else "redriven",
        state=UNREAD,
        outcome=None,
        operation="redrive",
        lease_id=None,
        worker_id=None,
        delivery_count=0,
        failure_count=0,
        reason=None,
        error=None,
        user=user,
        detail=detail,
    )


def _blocked_groups(context: QueueContext, sequence: int) -> Iterator[tuple[str, str]]:
    """Yield stopped groups that have not settled a message, with reasons."""
    for name in _marked_groups(context):
        group = context.group(name)
        try:
            snapshot = group.snapshot()
            ledger, settings = snapshot.ledger, group.settings_in(snapshot)
        except SparkMQError:  # a damaged group does not hide the message's events
            continue
        if ledger is None or sequence <= ledger.head.start_sequence:
            continue
        if any(ledger.state_at(row) == SETTLED for row in ledger.overlapping(sequence, sequence)):
            continue
        if why := ledger.head.breaker.why(settings, context.now()):
            yield group.name, why


def _marked_groups(context: QueueContext) -> Iterator[str]:
    """Yield the groups whose header has a pause or failures, by name. Others are not stopped."""
    tags, known = context.ledgers.tags(), context.marked_groups
    left = [name for name, tag in tags.items() if known.get(name, (None,))[0] != tag]
    with contextlib.suppress(SparkMQError, ValueError):  # a damaged ledger stays in `left`
        for name, rows in context.ledgers.scan(tuple(left), ("state", "detail")):
            header = rows["detail"].filter(pc.equal(rows["state"], HEADER))
            marked = len(header) != 1 or bool(json.loads(header[0].as_py() or "{}").get("breaker"))
            known[name] = (tags[name], marked)
            left.remove(name)
    yield from (name for name in sorted(tags) if name in left or known.get(name, (None, True))[1])


def _of_this_message(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events after a restore, before which another message had the sequence."""
    rewound = {r["consumer_group"]: r["version"] for r in rows if r["event"] == REWOUND}
    return [
        r
        for r in rows
        if r["event"] is not None and r["version"] > rewound.get(r["consumer_group"], -1)
    ]


def _with_own_errors(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield events with only their own errors. Those of a whole lease are in ``batch_error``."""
    known: dict[str, str | None] = {}
    for r in rows:
        group, error = r["consumer_group"], r["error"]
        # A ledger keeps a message's last error, so later events carry it, too.
        carried = r["event"] not in FAILURES and error == known.get(group)
        known[group] = error
        own, of_batch = (None if carried else error), None
        if r["batch_size"] is not None:
            own, of_batch = None, error
        yield {**r, "error": own, "batch_error": of_batch}


def finished(
    context: QueueContext,
    group: str,
    within: tuple[int | None, int | None],
    *,
    outcome: str | None,
    payload: bool,
) -> pa.Table:
    validate_name("group", group)
    wanted = None if outcome is None else validate_choice("outcome", outcome, OUTCOMES)
    low, high = (
        given if at is None else validate_count(name, at, least=0, most=2**63 - 1)
        for name, at, given in zip(("first", "last"), within, (0, 2**63 - 1), strict=True)
    )
    names = ["published_at", *(_PAYLOAD if payload else ())]
    schema = pa.schema([*FINISHED_SCHEMA, *(FILE_SCHEMA.field(name) for name in names[1:])])
    parts = [schema.empty_table()]
    rows = read_history(context, group=group)
    if not rows.num_rows and group not in context.ledgers.groups():
        raise group_not_found(context, group)  # it was not even dropped
    ends = [end for end in last_ends(rows, low, high) if wanted in (None, end[0]["outcome"])]
    index = context.messages.full_index(min((start for _, (start, _) in ends), default=high))
    for end, (start, stop) in ends:
        parts += [
            _finished(piece, rows, end, schema)
            for piece, rows in _payload(context, index, start, stop, names)
        ]
    return sort_rows(pa.concat_tables(parts), "sequence")


def _finished(
    piece: FileSlice, payload: pa.Table, end: dict[str, Any], schema: pa.Schema
) -> pa.Table:
    n = payload.num_rows
    given: dict[str, Any] = {
        "sequence": pa.array(range(piece.first, piece.first + n), pa.int64()),
        "settled_at": end["committed_at"],
    }

    def column(f: pa.Field) -> Any:
        if f.name in payload.schema.names:
            return payload[f.name]
        value = given[f.name] if f.name in given else end[f.name]
        return value if isinstance(value, pa.Array) else pa.repeat(pa.scalar(value, f.type), n)

    return pa.table([column(f) for f in schema], schema=schema)


def _payload(
    context: QueueContext, index: MessageIndex, first: int, last: int, names: list[str]
) -> Iterator[tuple[FileSlice, pa.Table]]:
    """Yield columns of messages by slice. All but published_at are null if the log lacks them."""
    for piece in index.slices(first, last):
        try:
            ((_, rows),) = context.messages.read([piece], names)
        except (CorruptLog, StorageError):
            at = pa.repeat(pa.scalar(piece.committed_at, pa.int64()).cast(_INSTANT), piece.rows)
            rows = pa.table(
                {
                    name: at
                    if name == "published_at"
                    else pa.nulls(piece.rows, FILE_SCHEMA.field(name).type)
                    for name in names
                }
            )
        yield piece, rows
