"""Trace one message through groups and redrives, and list the finished messages of a group.

A redriven message keeps its id, and a header names its dead letter, which names the message. If a
purge or a trim has dropped the dead letter, the id alone decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidOption, SparkMQError
from spark_mq.ledger.log_fingerprints import MAX_SEQUENCE, REWOUND
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.ranges import SETTLED, UNREAD
from spark_mq.message import HEADER_PREFIX, REDRIVEN_FROM, REPAIRED
from spark_mq.operations.context import QueueContext, group_not_found
from spark_mq.operations.history import (
    OUTCOMES,
    MessageOutcome,
    last_ends,
    outcomes_in,
    read_history,
    read_payload,
    show_error,
    show_texts,
)
from spark_mq.parquet.schema import FILE_SCHEMA, INSTANT
from spark_mq.storage.history_table import FAILURES
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import to_datetime
from spark_mq.util.columns import sort_rows
from spark_mq.util.records import Record, rows_html
from spark_mq.util.show import show_moment, show_name
from spark_mq.util.validation import (
    validate_choice,
    validate_count,
    validate_name,
    whole_number,
)

# Events that the owner of a group makes. A worker only held the message before.
_BY_OWNER: Final = ("discarded", "made_dead", "retried", "unblocked")
_SEQUENCE: Final = HEADER_PREFIX + "sequence"  # in a dead letter: the message in its queue
_GROUP: Final = HEADER_PREFIX + "group"  # in a redriven message: where it died


@dataclass(frozen=True, slots=True)
class TraceEvent(Record):
    """One event in the life of a message.

    The event "redriven" of a copy, or "repaired" with a transform, is its publish. Its ``version``
    is that of ``messages/``, and its ``group`` is the one in which the message died.

    Attributes
    ----------
    version
        The version of ``leases/``.
    outcome
        How the message ended. None if the event did not end it.
    user
        The person who caused the event. None if no person did.
    error
        The message's own failure. Only the event of a failure has an error.
    batch_error
        The failure of the message's whole lease. Any message of the lease may have caused it.
    batch_size
        The number of messages in that lease.
    detail
        A person's request, such as the target of a seek.
    """

    at: datetime
    version: int
    group: str
    event: str
    state: str
    outcome: str | None
    operation: str | None
    lease_id: str | None
    worker_id: str | None
    delivery_count: int
    failure_count: int
    reason: str | None
    error: str | None
    user: str | None = None
    batch_error: str | None = None
    batch_size: int | None = None
    detail: str | None = None

    def __str__(self) -> str:
        parts = [
            show_moment(self.at),
            self.group,
            self.event if self.event == self.state else f"{self.event} -> {self.shown_state}",
        ]
        parts += [self.shown_worker] if self.shown_worker else []
        parts += [f"user {self.user}"] if self.user else []
        parts += [f"lease {self.lease_id}"] if self.lease_id else []
        parts += [f"delivery {self.delivery_count}, failures {self.failure_count}"]
        detail = None if self.detail == self.reason else self.detail
        parts += show_texts(reason=self.reason, error=self.shown_error, detail=detail)
        return "  ".join(parts)

    @property
    def shown_state(self) -> str:
        """Return the state after the event for people, with the outcome if its name differs."""
        ended = self.outcome not in (None, self.event)
        return f"{self.state}: {self.outcome}" if ended else self.state

    @property
    def shown_worker(self) -> str:
        """Return "by" and the worker of the event, or "from" and the fenced one, or nothing."""
        if self.worker_id is None or self.event in _BY_OWNER:
            return ""
        return f"{'from' if self.event == 'fenced' else 'by'} {self.worker_id}"

    @property
    def shown_error(self) -> str | None:
        """Return the error as a text for people, which shows whether a whole batch failed."""
        return show_error(self.error, self.batch_error, self.batch_size)


@dataclass(frozen=True, slots=True)
class Trace(Record):
    """The life of a message, in all groups. Print it to read it.

    Attributes
    ----------
    message_id, retained
        Its id, and True. None and False if the payload was trimmed.
    events
        The events in each group, in order.
    blocked
        Groups that hold the message and are paused or have an open breaker, each with the reason.
    """

    sequence: int
    version: int
    published_at: datetime
    message_id: str | None
    retained: bool
    events: tuple[TraceEvent, ...]
    blocked: tuple[tuple[str, str], ...] = ()
    earlier: Trace | None = None
    """The message that this one was before a redrive."""
    later: tuple[Trace, ...] = ()
    """The messages that redrives made of this one."""
    redriven_at: datetime | None = None
    """When a redrive published this copy. ``published_at`` says when it was first published."""
    priority: int = 0
    lane: int | None = None
    """The lane of its key. None without a key, or if the queue has no lanes."""
    outcomes: tuple[MessageOutcome, ...] = ()
    """How it ended in each group that settled it, by group. Empty where the history lacks it."""

    def __str__(self) -> str:
        blocks = ["\n".join([*life.lines(), *life._ends()]) for life in self.chain()]
        return "\nredriven as\n".join(blocks)

    def chain(self) -> tuple[Trace, ...]:
        """Return this message with those before and after it by redrives, oldest first."""
        before = () if self.earlier is None else self.earlier.chain()
        return (*before, self, *(found for life in self.later for found in life.chain()))

    def lines(self) -> list[str]:
        """Return the text of this message's life, without redrives and outcomes."""
        lines = [str(event) for event in self.events]
        lines += [f"group {group} leases nothing now: {why}" for group, why in self.blocked]
        return [self._head(), *(f"  {line}" for line in lines)]

    def _ends(self) -> list[str]:
        return [f"  group {outcome.group} settled it: {outcome}" for outcome in self.outcomes]

    def _head(self) -> str:
        named = show_name(str(self.message_id)) if self.retained else "payload trimmed"
        when = f"published {show_moment(self.published_at)}"
        if self.redriven_at is not None:  # a redrive keeps the time of the publish
            when = f"first {when}, redriven {show_moment(self.redriven_at)}"
        place = f", priority {self.priority}" if self.priority else ""
        place += f", lane {self.lane}" if self.lane is not None else ""
        by = f"by version {self.version} of messages/"
        return f"message {self.sequence} ({named}), {when} {by}{place}"

    def _rows(self) -> Sequence[TraceEvent]:
        return self.events

    def _repr_html_(self) -> str:
        return "<p>redriven as</p>".join(life._own_html() for life in self.chain())

    def _own_html(self) -> str:
        blocked = [{"group": group, "leases nothing": why} for group, why in self.blocked]
        ends = rows_html(self.outcomes, title="Outcome in each group") if self.outcomes else ""
        events = rows_html(self.events, title=self._head())
        return events + (rows_html(blocked) if blocked else "") + ends


def trace(context: QueueContext, sequence: int) -> Trace:
    return _trace(context, sequence, frozenset([sequence]), back=True, on=True)


def _trace(
    context: QueueContext, sequence: int, seen: frozenset[int], *, back: bool, on: bool
) -> Trace:
    index = _index_with(context, sequence)
    names = ["message_id", "published_at", "headers"]
    ((piece, payload),) = read_payload(context, index, sequence, sequence, names)
    row = payload.to_pylist()[0]
    headers = dict(row["headers"] or ())
    past = _of_this_message(read_history(context, within=(sequence, sequence)).to_pylist())
    events = _events(past)
    earlier, later, letter = None, list[int](), whole_number(headers.get(REDRIVEN_FROM))
    if back and letter is not None and row["message_id"] is not None:
        earlier = _find_earlier(context, sequence, row["message_id"], letter)
    if on and any(event.outcome == "dead_lettered" for event in events):
        later = _find_later(context, sequence, row["message_id"])

    redriven = None
    if letter is not None and (earlier is not None or not back):
        redriven = _redrive_event(context, piece, letter, headers)
        events.insert(0, redriven)

    def follow(sequence: int | None, **ways: bool) -> Iterator[Trace]:
        # Anybody can write a header that leads in circles.
        if sequence is not None and sequence not in seen:
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
    context: QueueContext, piece: FileSlice, letter: int, headers: Mapping[str, str]
) -> TraceEvent:
    """Return the event that published a copy, which has no failures and no deliveries yet."""
    user, detail = _find_redriver(context, letter)
    return TraceEvent(
        at=to_datetime(piece.committed_at),
        version=piece.first >> 32,
        group=headers.get(_GROUP) or "",
        event="repaired" if REPAIRED in headers else "redriven",
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
    for group in context.groups():
        try:
            snapshot = context.ledgers.read(group.name, refresh=False)
            ledger, settings = snapshot.ledger, group.settings_in(snapshot)
        except SparkMQError:  # a damaged group does not hide the message's events
            continue
        if ledger is None or sequence <= ledger.head.start_sequence:
            continue
        if any(ledger.state_at(row) == SETTLED for row in ledger.overlapping(sequence, sequence)):
            continue
        if why := ledger.head.breaker.why(settings, context.now()):
            yield group.name, why


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


def _find_redriver(context: QueueContext, letter: int) -> tuple[str | None, str | None]:
    """Return the user who redrove a dead letter, and what was asked for, as far as noted."""
    try:
        letters = context.existing_dead_letters()
        if letters is None:
            return None, None
        events = read_history(letters, within=(letter, letter)).to_pylist()
    except SparkMQError:
        return None, None  # a damaged dead-letter queue does not hide the message
    redrives = [(r["user"], r["detail"]) for r in events if r["event"] == "redriven"]
    return redrives[-1] if redrives else (None, None)


def _find_earlier(context: QueueContext, sequence: int, message_id: str, letter: int) -> int | None:
    """Return the message before a redrive, or None if it is not known."""
    named = _named_by(context, letter)
    if named is not None:
        return named
    earlier = [at for at, _ in _with_id(context.messages, message_id, 0, sequence - 1)]
    return earlier[-1] if earlier else None


def _find_later(context: QueueContext, sequence: int, message_id: str | None) -> list[int]:
    """Return the messages that redrives made of a message, in order."""
    wanted = str(sequence) if message_id is None else message_id
    last = context.messages.index().last_sequence
    later: list[int] = []
    for at, headers in _with_id(context.messages, wanted, sequence + 1, last):
        letter = whole_number(headers.get(REDRIVEN_FROM))
        if letter is not None and _named_by(context, letter) in (None, sequence):
            later.append(at)
    return later


def _named_by(context: QueueContext, letter: int) -> int | None:
    try:
        letters = context.existing_dead_letters()
        if letters is None or letters.messages.index(letter).first_at_or_after(letter) != letter:
            return None
        pieces = letters.messages.index(letter).slices(letter, letter)
        ((_, rows),) = letters.messages.read(pieces, ["headers"])
    except (SparkMQError, ValueError):
        return None
    return whole_number(dict(rows["headers"].to_pylist()[0] or ()).get(_SEQUENCE))


def _with_id(
    messages: MessageTable, message_id: str, first: int, last: int
) -> Iterator[tuple[int, dict[str, str]]]:
    for piece in messages.index().slices(first, last):
        try:
            for part, rows in messages.read([piece], ["message_id", "headers"]):
                hits = pc.equal(rows["message_id"], pa.scalar(message_id))
                for row in pc.indices_nonzero(pc.fill_null(hits, False)).to_pylist():
                    yield part.first + row, dict(rows["headers"][row].as_py() or ())
        except SparkMQError:
            continue


# -- finished messages

# One row for each finished message, with its last delivery in ``leased_at``. The columns of
# _PAYLOAD may follow.
FINISHED_SCHEMA: Final = pa.schema(
    [
        pa.field("sequence", pa.int64()),
        pa.field("consumer_group", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("delivery_count", pa.int32()),
        pa.field("failure_count", pa.int32()),
        pa.field("published_at", INSTANT),
        pa.field("first_leased_at", INSTANT),
        pa.field("leased_at", INSTANT),
        pa.field("settled_at", INSTANT),
        pa.field("worker_id", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("error", pa.string()),
    ]
)

_PAYLOAD: Final = ("message_id", "key", "value", "headers")


def finished(
    context: QueueContext,
    group: str,
    *,
    first: int | None,
    last: int | None,
    outcome: str | None,
    payload: bool,
) -> pa.Table:
    validate_name("group", group)
    wanted = None if outcome is None else validate_choice("outcome", outcome, OUTCOMES)
    low = 0 if first is None else validate_count("first", first, least=0, most=MAX_SEQUENCE)
    high = MAX_SEQUENCE
    if last is not None:
        high = validate_count("last", last, least=0, most=MAX_SEQUENCE)
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
            for piece, rows in read_payload(context, index, start, stop, names)
        ]
    return sort_rows(pa.concat_tables(parts), "sequence")


def _finished(
    piece: FileSlice, payload: pa.Table, end: Mapping[str, Any], schema: pa.Schema
) -> pa.Table:
    n = payload.num_rows
    columns = {name: payload[name] for name in payload.schema.names}
    columns["sequence"] = pa.array(range(piece.first, piece.first + n), pa.int64())
    alike = {**end, "settled_at": end["committed_at"]}
    for field in schema:
        if field.name not in columns:
            columns[field.name] = pa.repeat(pa.scalar(alike[field.name], field.type), n)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)
