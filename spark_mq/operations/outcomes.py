"""Find how messages ended, by the events of a group."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.editor import END_REASONS
from spark_mq.ledger.intervals import Interval, normalise, subtract
from spark_mq.ledger.log_marks import REWOUND
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import SETTLED, Range
from spark_mq.operations.context import QueueContext
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.history import read_group_history, read_history
from spark_mq.operations.life import MessageOutcome
from spark_mq.storage.history_rows import FAILURES

__all__ = ["OUTCOMES", "find_outcomes", "last_ends", "outcomes_in", "show_outcomes"]

OUTCOMES: Final = (*END_REASONS.values(), "dropped")
_UNDOING: Final = ("seek", REWOUND)  # events that make messages unread again
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
        for r in rows.filter(pc.is_in(rows["event"], value_set=pa.array(_UNDOING))).to_pylist()
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


def show_outcomes(
    group: GroupLedger, index: MessageIndex, ranges: Iterable[Range]
) -> Iterator[Range]:
    """Yield ranges whose settled messages have the outcome as their state.

    A message stays settled if its end is unknown: it was before the group's start, or ``history/``
    no longer has it.
    """
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
    """Return the ends of settled messages, in order."""
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
    """Yield the pieces of a settled range, each with its outcome."""
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
