"""Read the past of a group: its ledger commits, and how messages ended."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import CorruptLog, SparkMQError, StorageError
from spark_mq.ledger.editor import END_REASONS
from spark_mq.ledger.intervals import Interval, subtract
from spark_mq.ledger.log_fingerprints import MAX_SEQUENCE, REWOUND
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.owner_commands import CREATE_GROUP
from spark_mq.ledger.ranges import SETTLED, Range
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.parquet.schema import FILE_SCHEMA, INSTANT
from spark_mq.storage.archive_table import Filters, matching_rows, tables_disagree
from spark_mq.storage.history_table import BATCH, FAILURES, HISTORY_SCHEMA, history_rows
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.util.clock import EARLIEST, LATEST, SECOND, to_datetime, to_micros
from spark_mq.util.columns import sort_rows
from spark_mq.util.records import Record
from spark_mq.util.show import show_number

_log = logging.getLogger(__name__)


def read_history(
    context: QueueContext,
    *,
    group: str | None = None,
    since: int | None = None,
    columns: Sequence[str] | None = None,
    within: Interval | None = None,
) -> pa.Table:
    """Return the events of a queue, in order. `since` is in microseconds since 1970."""
    filters: Filters = []
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


# -- how messages ended

OUTCOMES: Final = (*dict.fromkeys(END_REASONS.values()), "dropped")
# Columns of an end that a read shows. Holder and deadlines ended with it.
_KEPT: Final = ("delivery_count", "failure_count", "reason", "error")
_END: Final = (
    *("version", "event", "first", "last", "outcome"),
    *("committed_at", "first_leased_at", *_KEPT),
)
_OF_MESSAGE: Final = ("consumer_group", "event", "outcome", "committed_at", "batch_size", *_KEPT)
_first_of: Final = attrgetter("first")
_last_of: Final = attrgetter("last")
_kind: Final = attrgetter("state", *_KEPT)
_UNDOING: Final = ("seek", REWOUND)  # events that make messages unread again


def last_ends(rows: pa.Table, low: int, high: int) -> Iterator[tuple[dict[str, Any], Interval]]:
    """Yield the ends in ``low..high`` that no later event of a group's history undid."""
    seeks = [
        (r["version"], (r["first"], r["last"]))
        for r in rows.filter(pc.is_in(rows["event"], value_set=pa.array(_UNDOING))).to_pylist()
    ]
    for end in rows.filter(pc.is_valid(rows["outcome"])).to_pylist():
        within = (max(low, end["first"]), min(high, end["last"]))
        undone = (interval for version, interval in seeks if version > end["version"])
        for interval in subtract([within], undone):  # none if the end is outside
            yield end, interval


@dataclass(frozen=True, slots=True)
class MessageOutcome(Record):
    """How a message ended in one group. Print it to read it.

    Attributes
    ----------
    group
        The name of the group.
    outcome
        "acked", "dead_lettered", "dropped", "expired", "skipped", "lost" or "redriven".
    settled_at
        When the commit settled it (aware, UTC).
    delivery_count, failure_count
        Its deliveries and failures.
    reason, error
        Why it was dead or dropped, and the text of its own last failure, or None.
    batch_error, batch_size
        The text and the size of its lease, if the whole lease was what failed last.
    """

    group: str
    outcome: str
    settled_at: datetime
    delivery_count: int
    failure_count: int
    reason: str | None
    error: str | None
    batch_error: str | None = None
    batch_size: int | None = None

    def __str__(self) -> str:
        # An acked message may have failed before. That is not why it ended.
        error = None if self.outcome == "acked" else self.shown_error
        return "  ".join([self.outcome, *show_texts(reason=self.reason, error=error)])

    @property
    def shown_error(self) -> str | None:
        """Return the error as a text for people, which shows whether a whole batch failed."""
        return show_error(self.error, self.batch_error, self.batch_size)


def outcomes_in(rows: Iterable[Mapping[str, Any]]) -> tuple[MessageOutcome, ...]:
    """Return one message's last end in each group that no later event undid, by group."""
    ends: dict[str, MessageOutcome] = {}
    failures: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        group = row["consumer_group"]
        if row["event"] in _UNDOING:
            ends.pop(group, None)
        if row["event"] in FAILURES:
            failures[group] = row
        if row["outcome"] is not None:
            ends[group] = _outcome(row, failures.get(group))
    return tuple(ends[group] for group in sorted(ends))


def _outcome(end: Mapping[str, Any], failure: Mapping[str, Any] | None) -> MessageOutcome:
    # A ledger keeps only the text of the last failure, which finds its event.
    error, size = end["error"], None
    if failure is not None and failure["error"] == error:
        size = failure["batch_size"]
    return MessageOutcome(
        group=end["consumer_group"],
        outcome=end["outcome"],
        settled_at=end["committed_at"],
        delivery_count=end["delivery_count"],
        failure_count=end["failure_count"],
        reason=end["reason"],
        error=error if size is None else None,
        batch_error=None if size is None else error,
        batch_size=size,
    )


def show_texts(**texts: str | None) -> list[str]:
    return [f"{name}: {text}" for name, text in texts.items() if text]


def show_error(error: str | None, of_batch: str | None, batch_size: int | None) -> str | None:
    if batch_size is None:
        return error
    why = f": {of_batch}" if of_batch else ""
    return f"its batch of {show_number(batch_size)} failed{why}"


def find_outcomes(context: QueueContext, sequence: int) -> tuple[MessageOutcome, ...]:
    rows = read_history(context, columns=_OF_MESSAGE, within=(sequence, sequence))
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
        low, high = min(r.first for r in settled), max(r.last for r in settled)
        ends = _joined(_ends(group, low, high), index)
        for r in settled:
            yield from _split(r, ends, index)


def _ends(group: GroupLedger, low: int, high: int) -> list[SettledRange]:
    """Return the known ends of a group's messages in ``low..high``, in order."""
    rows = read_group_history(group, _END)
    ends = [_settled_range(end, *place) for end, place in last_ends(rows, low, high)]
    return sorted(ends, key=_first_of)


def _joined(ends: Iterable[SettledRange], index: MessageIndex) -> list[SettledRange]:
    """Join neighbours with the same end. Sequences between two commits have no message."""
    out: list[SettledRange] = []
    for end in ends:
        before = out[-1] if out else None
        if before and _kind(before) == _kind(end) and _adjoin(before, end, index):
            out[-1] = before._replace(last=max(before.last, end.last))
        else:
            out.append(end)
    return out


def _adjoin(before: SettledRange, after: SettledRange, index: MessageIndex) -> bool:
    return (index.first_at_or_after(before.last + 1) or 0) >= after.first


def _split(r: Range, ends: list[SettledRange], index: MessageIndex) -> Iterator[Range]:
    at = r.first
    low, high = bisect_left(ends, r.first, key=_last_of), bisect_right(ends, r.last, key=_first_of)
    for end in ends[low:high]:
        yield from _piece(r, at, end.first - 1, index)
        shown = r._replace(state=end.state, **{name: getattr(end, name) for name in _KEPT})
        yield from _piece(shown, max(at, end.first), end.last, index)
        at = end.last + 1
    yield from _piece(r, at, r.last, index)


def _piece(r: Range, first: int, last: int, index: MessageIndex) -> Iterator[Range]:
    if first <= last and (piece := r.slice(first, last, index)).message_count:
        yield piece


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
    ends = _ends(group, 0, MAX_SEQUENCE)
    known = [(max(r.first, horizon + 1), r.last) for r in ends if r.last > horizon]
    low, high = EARLIEST if since is None else since, LATEST + 1 if until is None else until
    within = [r for r in ends if r.settled_at is not None and low <= r.settled_at < high]
    gone = [r for r in within if r.first <= horizon]
    unknown = (SettledRange(*interval, None) for interval in subtract(settled, known))
    trimmed = 0
    if gone:
        whole = group.messages.full_index(min(r.first for r in gone))
        trimmed = sum(whole.count(r.first, min(r.last, horizon)) for r in gone)
    return SettledMessages(
        index,
        tuple(r._replace(first=max(r.first, horizon + 1)) for r in within if r.last > horizon),
        tuple(part for part in unknown if index.count(part.first, part.last)),
        trimmed,
    )


def _settled_range(end: Mapping[str, Any], first: int, last: int) -> SettledRange:
    leased = end["first_leased_at"]
    return SettledRange(
        first,
        last,
        end["outcome"],
        to_micros(end["committed_at"]),
        end["delivery_count"] or 0,
        end["failure_count"] or 0,
        end["reason"],
        end["error"],
        None if leased is None else to_micros(leased),
    )


def read_payload(
    context: QueueContext, index: MessageIndex, first: int, last: int, names: list[str]
) -> Iterator[tuple[FileSlice, pa.Table]]:
    """Yield columns of messages by slice. All but published_at are null if the log lacks them."""
    for piece in index.slices(first, last):
        try:
            ((_, rows),) = context.messages.read([piece], names)
        except (CorruptLog, StorageError):
            columns = {name: pa.nulls(piece.rows, FILE_SCHEMA.field(name).type) for name in names}
            at = pa.scalar(piece.committed_at, pa.int64()).cast(INSTANT)
            rows = pa.table({**columns, "published_at": pa.repeat(at, piece.rows)})
        yield piece, rows


# -- past leases

_REACH: Final = 86_400 * SECOND  # of the search for a lease, before the latest commit
_COMMITS: Final = 20  # read at a time, the newest first
_GRANTED_BY: Final = ("leased", "replayed")
_SETTLED_BY: Final = ("acked", "nacked", "rejected", "released")


class PastLease(NamedTuple):
    """The messages that a past lease was granted, and those that it settled itself."""

    granted: list[Interval]
    settled: list[Interval]


def find_past_lease(group: GroupLedger, lease_id: str) -> PastLease | None:
    """Return what a lease of the last day was granted and settled, or None if unknown."""
    lease = PastLease([], [])
    try:
        for rows in _past(group, lease_id):
            lease.granted.extend(_intervals(rows, _GRANTED_BY))
            lease.settled.extend(_intervals(rows, _SETTLED_BY))
            if lease.granted:  # by one commit, and all settles came later
                return lease
    except (SparkMQError, *STORE_ERRORS) as error:
        _log.debug("lease %s was not looked up: %s", lease_id, error)
    return None


def _past(group: GroupLedger, lease_id: str) -> Iterator[pa.Table]:
    """Yield the events of a lease, the newest commits first."""
    archive, latest = group.queue.history, group.ledgers.version()
    archived = archive.progress()[0]
    since: int | None = None
    own: Filters = [("consumer_group", "=", group.name), ("lease_id", "=", lease_id)]
    for last in range(latest, archived, -_COMMITS):
        rows = history_rows(group.ledgers.commits(max(archived + 1, last - _COMMITS + 1), last))
        if times := pc.min_max(rows["committed_at"].cast(pa.int64())).as_py():
            since = since or (times["max"] or 0) - _REACH
        yield matching_rows(rows, own)
        if since is not None and (times["min"] or 0) < since:
            return
    after = group.now() - _REACH if since is None else since
    yield archive.read([*own, ("committed_at", ">=", to_datetime(after))])[0]


def _intervals(rows: pa.Table, events: tuple[str, ...]) -> list[Interval]:
    rows = rows.filter(pc.is_in(rows["event"], value_set=pa.array(events)))
    return list(zip(rows["first"].to_pylist(), rows["last"].to_pylist(), strict=True))
