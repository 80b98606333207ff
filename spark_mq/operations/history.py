"""Read the past of a group: its ledger commits, how messages ended, and their redrives.

A redriven message keeps its id, and a header names its dead letter, which names the message. If a
purge or a trim has dropped the dead letter, the id alone decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import SparkMQError
from spark_mq.ledger.editor import END_REASONS
from spark_mq.ledger.intervals import Interval, normalise, subtract
from spark_mq.ledger.log_fingerprints import MAX_SEQUENCE
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.owner_commands import CREATE_GROUP
from spark_mq.ledger.ranges import SETTLED, Range
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.operations.life import UNDOING, MessageOutcome, outcomes_in
from spark_mq.storage.archive_table import Filters, matching_rows
from spark_mq.storage.history_table import BATCH, HISTORY_SCHEMA, history_rows
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.log_recovery import tables_disagree
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import EARLIEST, LATEST, to_datetime, to_micros
from spark_mq.util.columns import sort_rows
from spark_mq.util.validation import whole_number


def read_history(
    context: QueueContext,
    *,
    sequence: int | None = None,
    group: str | None = None,
    since: int | None = None,
    columns: Sequence[str] | None = None,
    within: Interval | None = None,
) -> pa.Table:
    """Return the events of a queue, in order. `since` is in microseconds since 1970."""
    filters: Filters = []
    if sequence is not None:
        within = (sequence, sequence)
    if within is not None:
        filters += [("first", "<=", within[1]), ("last", ">=", within[0])]
    if group is not None:
        filters.append(("consumer_group", "=", group))
    if since is not None:
        filters.append(("committed_at", ">=", to_datetime(since)))
    names = HISTORY_SCHEMA.names if columns is None else list(columns)
    needed = [name for name in HISTORY_SCHEMA.names if name in {*names, "version", "ordinal"}]
    archived, up_to = context.history.read(filters, needed)
    if up_to > context.ledgers.version():
        reason = f"history/ has commits of leases/ up to version {up_to}, which it lacks"
        raise tables_disagree(context.path, reason)
    recent = (matching_rows(rows, filters) for rows in commits_after(context.ledgers, up_to))
    rows = pa.concat_tables([archived, *(rows.select(needed) for rows in recent)])
    return sort_rows(rows, "version", "ordinal").select(names)


def read_group_history(
    group: GroupLedger, columns: Sequence[str], within: Interval | None = None
) -> pa.Table:
    """Return columns of a group's events since its creation, in order."""
    names = {*columns, "version", "operation"}
    rows = read_history(group.queue, group=group.name, columns=list(names), within=within)
    whole = rows
    if within is not None:  # the creation is no event of a message
        whole = read_history(group.queue, group=group.name, columns=["version", "operation"])
    created = whole.filter(pc.equal(whole["operation"], CREATE_GROUP))["version"]
    # A group that was dropped may have had the same name.
    first = pc.max(created).as_py()
    if first is not None:
        rows = rows.filter(pc.greater_equal(rows["version"], first))
    return rows.select(list(columns))


def commits_after(ledgers: LedgerTable, version: int) -> Iterator[pa.Table]:
    """Yield the history of the ledger commits after a version, in batches."""
    latest = ledgers.version()
    for first in range(version + 1, latest + 1, BATCH):
        yield history_rows(ledgers.commits(first, min(first + BATCH - 1, latest)))


OUTCOMES: Final = (*dict.fromkeys(END_REASONS.values()), "dropped")
# Columns of an end that a read shows. Holder and deadlines ended with it.
_KEPT: Final = ("delivery_count", "failure_count", "reason", "error")
_END: Final = ("version", "first", "last", "outcome", *_KEPT)
_OF_MESSAGE: Final = ("consumer_group", "event", "outcome", "committed_at", "batch_size", *_KEPT)
_last_of: Final = attrgetter("last")
_kind: Final = attrgetter("state", *_KEPT)


def last_ends(rows: pa.Table, low: int, high: int) -> Iterator[tuple[dict[str, Any], Interval]]:
    """Yield the ends in ``low..high`` that no later event of a group's history undid."""
    seeks = [
        (r["version"], (r["first"], r["last"]))
        for r in rows.filter(pc.is_in(rows["event"], value_set=pa.array(UNDOING))).to_pylist()
    ]
    for end in rows.filter(pc.is_valid(rows["outcome"])).to_pylist():
        within = (max(low, end["first"]), min(high, end["last"]))
        if within[0] > within[1]:
            continue
        undone = normalise(interval for version, interval in seeks if version > end["version"])
        for interval in subtract([within], undone):
            yield end, interval


def find_outcomes(context: QueueContext, sequence: int) -> tuple[MessageOutcome, ...]:
    rows = read_history(context, sequence=sequence, columns=_OF_MESSAGE)
    return outcomes_in(rows.to_pylist())


def show_outcomes(
    group: GroupLedger, index: MessageIndex, ranges: Iterable[Range]
) -> Iterator[Range]:
    """Yield ranges whose settled messages have their outcome, if it is known, as the state."""
    settled: list[Range] = []
    for r in ranges:
        if r.state == SETTLED:
            settled.append(r)
        else:
            yield r
    if settled:
        ends = _joined(_ends(group, settled), index)
        for r in settled:
            yield from _split(r, ends, index)


def _ends(group: GroupLedger, settled: list[Range]) -> list[Range]:
    rows = read_group_history(group, [*_END, "event"])
    low, high = min(r.first for r in settled), max(r.last for r in settled)
    ends = [
        Range(*place, end["outcome"], 0, **{name: end[name] for name in _KEPT})
        for end, place in last_ends(rows, low, high)
    ]
    return sorted(ends, key=attrgetter("first"))


def _joined(ends: Iterable[Range], index: MessageIndex) -> list[Range]:
    """Join neighbours with the same end. Sequences between two commits have no message."""
    out: list[Range] = []
    for end in ends:
        before = out[-1] if out else None
        if before and _kind(before) == _kind(end) and _adjoin(before, end, index):
            out[-1] = before._replace(last=max(before.last, end.last))
        else:
            out.append(end)
    return out


def _adjoin(before: Range, after: Range, index: MessageIndex) -> bool:
    return after.first <= before.last + 1 or not index.count(before.last + 1, after.first - 1)


def _split(r: Range, ends: list[Range], index: MessageIndex) -> Iterator[Range]:
    at = r.first
    for row in range(bisect_left(ends, r.first, key=_last_of), len(ends)):
        end = ends[row]
        if end.first > r.last:
            break
        yield from _piece(r, at, end.first - 1, index)
        shown = r._replace(state=end.state, **{name: getattr(end, name) for name in _KEPT})
        yield from _piece(shown, max(at, end.first), end.last, index)
        at = end.last + 1
    yield from _piece(r, at, r.last, index)


def _piece(r: Range, first: int, last: int, index: MessageIndex) -> Iterator[Range]:
    if first <= last and (piece := r.slice(first, last, index)).message_count:
        yield piece


_SETTLED: Final = (*_END, "event", "committed_at", "first_leased_at")


class SettledRange(NamedTuple):
    """Messages ``first..last`` that one commit settled alike. Instants are microseconds."""

    first: int
    last: int
    outcome: str | None  # None if the history does not have it
    settled_at: int | None = None
    delivery_count: int = 0
    failure_count: int = 0
    reason: str | None = None
    error: str | None = None
    first_leased_at: int | None = None
    # What a range of the ledger also has. A settled message has no holder and is not due.
    lease_id: None = None
    worker: None = None
    expires_at: None = None
    available_at: None = None

    @property
    def state(self) -> str:
        """Return the outcome, or "settled" if it is unknown."""
        return self.outcome or SETTLED


@dataclass(frozen=True, slots=True)
class SettledMessages:
    """The retained messages that a group has settled, and the numbers of those left out."""

    index: MessageIndex  # that has their files
    ranges: tuple[SettledRange, ...]  # within the wanted time, in order. Some have no message
    unknown: tuple[SettledRange, ...]  # of which the history has no end, in order
    trimmed: int  # messages of the time whose data files a trim may have dropped

    @property
    def unknown_count(self) -> int:
        return sum(self.index.count(interval.first, interval.last) for interval in self.unknown)

    def without_others(self, group: str) -> SettledMessages:
        """Return those that a group could get, without messages for other groups alone."""
        others = self.index.for_others(0, self.index.last_sequence, group)
        own = (
            part._replace(first=first, last=last)
            for part in self.ranges
            for first, last in subtract([(part.first, part.last)], others)
        )
        return replace(self, ranges=tuple(own))


def find_settled(
    group: GroupLedger, since: int | None = None, until: int | None = None
) -> SettledMessages:
    """Return the messages settled from `since` to before `until`. Raise GroupNotFound."""
    ledger = group.require(group.snapshot())
    index, horizon = group.index_for(ledger), group.queue.horizon()
    start = ledger.head.start_sequence
    settled = [(r.first, r.last) for r in ledger.ranges_at(ledger.find((SETTLED,)))]
    settled += [(horizon + 1, start)] if horizon < start else []
    rows = read_group_history(group, _SETTLED)
    low, high = EARLIEST if since is None else since, LATEST + 1 if until is None else until
    known, ranges, gone = list[Interval](), list[SettledRange](), list[Interval]()
    for end, (first, last) in last_ends(rows, 0, MAX_SEQUENCE):
        if last > horizon:
            known.append((max(first, horizon + 1), last))
        if low <= (at := to_micros(end["committed_at"])) < high:
            if first <= horizon:
                gone.append((first, min(last, horizon)))
            if last > horizon:
                ranges.append(_settled_range(end, max(first, horizon + 1), last, at))
    unknown = (SettledRange(*interval, None) for interval in subtract(settled, known))
    trimmed = 0
    if gone:
        whole = group.messages.full_index(min(first for first, _ in gone))
        trimmed = sum(whole.count(first, last) for first, last in gone)
    return SettledMessages(
        index,
        tuple(sorted(ranges, key=attrgetter("first"))),
        tuple(part for part in unknown if index.count(part.first, part.last)),
        trimmed,
    )


def _settled_range(end: Mapping[str, Any], first: int, last: int, at: int) -> SettledRange:
    leased, deliveries, failures = (
        end[name] for name in ("first_leased_at", "delivery_count", "failure_count")
    )
    return SettledRange(
        first, last, end["outcome"], at, deliveries or 0, failures or 0, end["reason"],
        end["error"], None if leased is None else to_micros(leased),
    )  # fmt: skip


HEADER_PREFIX: Final = "spark_mq."  # of the headers that spark_mq writes
REDRIVEN_FROM: Final = HEADER_PREFIX + "redriven_from"  # in a redriven message: its dead letter
REPAIRED: Final = HEADER_PREFIX + "repaired"  # in a redriven message that a transform has repaired
SCHEDULE: Final = HEADER_PREFIX + "schedule"  # in a message of a schedule: its name
SCHEDULED_AT: Final = HEADER_PREFIX + "scheduled_at"  # and its instant
_SEQUENCE: Final = HEADER_PREFIX + "sequence"  # in a dead letter: the message in its queue
_GROUP: Final = HEADER_PREFIX + "group"  # in a redriven message: where it died


def dead_letter_of(headers: Any) -> int | None:
    """Return the dead letter of a redriven message by its headers, or None."""
    return whole_number(dict(headers or ()).get(REDRIVEN_FROM))


def died_in(headers: Any) -> str | None:
    """Return the group in which a redriven message died by its headers, or None."""
    return dict(headers or ()).get(_GROUP)


def was_repaired(headers: Any) -> bool:
    """Return whether a transform has repaired a redriven message, by its headers."""
    return REPAIRED in dict(headers or ())


def find_redriver(context: QueueContext, letter: int) -> tuple[str | None, str | None]:
    """Return the user who redrove a dead letter, and what was asked for, as far as noted."""
    try:
        letters = context.existing_dead_letters()
        rows = None if letters is None else read_history(letters, sequence=letter)
    except SparkMQError:
        return None, None  # a damaged dead-letter queue does not hide the message
    if rows is None:
        return None, None
    redriven = rows.filter(pc.equal(rows["event"], "redriven"))
    redrives = redriven.select(["user", "detail"]).to_pylist()
    return (redrives[-1]["user"], redrives[-1]["detail"]) if redrives else (None, None)


def find_earlier(context: QueueContext, sequence: int, message_id: str, letter: int) -> int | None:
    """Return the message before a redrive, or None if it is not known."""
    named = _named_by(context, letter)
    if named is not None:
        return named
    index = context.messages.index()
    number = whole_number(message_id)
    if number is not None and number < sequence and index.first_at_or_after(number) == number:
        return number  # the publisher gave no id, so it was the sequence
    earlier = [at for at, _ in _with_id(context.messages, message_id, 0, sequence - 1)]
    return earlier[-1] if earlier else None


def find_later(context: QueueContext, sequence: int, message_id: str | None) -> list[int]:
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
    """Return the message that a dead letter names, or None if the letter is gone."""
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
    """Yield the readable messages with an id, each with its headers."""
    for piece in messages.index().slices(first, last):
        try:
            for part, rows in messages.read([piece], ["message_id", "headers"]):
                hits = pc.equal(rows["message_id"], pa.scalar(message_id))
                for row in pc.indices_nonzero(pc.fill_null(hits, False)).to_pylist():
                    yield part.first + row, dict(rows["headers"][row].as_py() or ())
        except SparkMQError:
            continue
