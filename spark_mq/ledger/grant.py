"""Define the request for a lease, and grant the pieces of ranges that it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from spark_mq.errors import SparkMQError
from spark_mq.ledger.budget import is_stopped
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, subtract
from spark_mq.ledger.key_order import claims_on_lanes
from spark_mq.ledger.lane_walk import LaneWalk
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import (
    AVAILABLE,
    LEASED,
    UNREAD,
    Ledger,
    LedgerHeader,
    Range,
    range_between,
)
from spark_mq.ledger.schedule import add_scheduled, split_by_time
from spark_mq.ledger.selection import OTHER_GROUP, RowRuns, SelectedPiece
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.sink_writes import SinkWrite, with_write

MAX_LEASES_WITHOUT_FRESH: Final = 3
"""Leases in a row that may isolate suspects while unread messages are due."""


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """A worker's request for a lease. Instants are microseconds."""

    lease_id: str
    worker_id: str
    max_messages: int
    expires_at: int
    max_bytes: int | None = None  # estimated bytes in the data files
    reserved_attempts: int = 0  # for a replay; the stream source reserves one
    max_sequence: int | None = None
    due_by: int | None = None  # only messages that were due at this time; None for now
    sink_write: SinkWrite | None = None  # in a group with a sink
    intervals: Sequence[Interval] | None = None  # only these messages; None for any
    matches: Mapping[str, RowRuns] | None = None  # of the group's filter, by path of the file


@dataclass(frozen=True, slots=True)
class Grant:
    """The messages of a new lease, or the reason for none. Without ranges there is no lease."""

    ranges: tuple[Range, ...] = ()  # in the order of sequence
    blocked_because: str = ""  # the cap, message, pause or breaker; empty if nothing is due
    blocked_for_now: bool = field(default=False, compare=False)
    """Whether the reason ends without the owner, or is the owner's pause."""
    lease_id: str = ""
    expires_at: int = 0
    error: SparkMQError | None = None  # why nothing is granted, if payload files are out of reach
    unfinished: bool = False  # files must be checked before the next try
    acked: int = 0  # messages of earlier batches of a stream
    skipped: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The messages that the lease skipped, by event."""
    sink_key: str | None = field(default=None, compare=False)  # the group's, at the time
    wait_until: int | None = field(default=None, compare=False)  # by the rate limit

    @property
    def message_count(self) -> int:
        return sum(r.message_count for r in self.ranges)

    @property
    def breaker_stops(self) -> bool:
        """Return whether a pause or the breaker is the reason."""
        return self.blocked_for_now and is_stopped(self.blocked_because)


def blocked_by(r: Range) -> str:
    """Return a blocked range as the reason why a group stops."""
    return f"message {r.first} is past its limit ({r.reason})"


def grant_pieces(
    ledger: Ledger,
    index: MessageIndex,
    times: tuple[int, int],
    request: AcquireRequest,
    walk: LaneWalk,
    *,
    rules: GroupSettings,
    passes_over: bool,
) -> tuple[Ledger, Grant]:
    """Lease the pieces that a walk has taken, and settle what it has skipped.

    The times are the instant of the lease, and until when a message must be due.
    """
    editor, selection = LedgerEditor(ledger), walk.selection
    pieces, skipped = selection.taken, selection.skipped
    lost = set(claims_on_lanes(ledger, index, walk.lanes)) if walk.lanes else set[int]()
    rows = sorted({*lost, *(piece.row for piece in (*pieces, *skipped) if piece.row is not None)})
    ranges = dict(zip(rows, editor.remove(rows), strict=True)) if rows else {}
    taken = [_range_of(piece, ranges) for piece in pieces]
    by_row: dict[int | None, list[Interval]] = {}
    for piece, r in zip(pieces, taken, strict=True):
        by_row.setdefault(piece.row, []).append((r.first, r.last))
    for piece in skipped:
        by_row.setdefault(piece.row, []).append((piece.first, piece.last))
        before = _range_of(piece, ranges)
        editor.add(before.as_settled(), before, piece.event)
    unread = by_row.pop(None, [])
    if unread:
        _add_passed_over(editor, index, times, unread, walk.reach, rules=rules)
    for row, r in ranges.items():
        if by_row.get(row) == [(r.first, r.last)]:
            continue  # all of it is taken
        left = r._replace(lease_id=None) if row in lost else r
        for first, last in subtract([(r.first, r.last)], by_row.get(row, ())):
            editor.add(left.slice(first, last, index), r)
    taken.sort(key=attrgetter("first"))
    if taken and request.intervals is None:  # else the caller has chosen, and it is nobody's turn
        fresh = any(r.state == UNREAD if walk.alike else not r.delivery_count for r in taken)
        editor.head = _with_leases_without_fresh(ledger.head, passes_over, fresh=fresh)
    if walk.fair_time is not None:
        editor.head = replace(editor.head, fair_time=walk.fair_time)
    if request.sink_write is not None and taken:
        editor.head = replace(editor.head, last_sink_write=request.sink_write.number)
    size = sum(r.message_count for r in taken)
    granted = tuple(leased(r, times[0], request, size) for r in taken)
    for before, r in zip(taken, granted, strict=True):
        editor.add(r, before, "leased")
    by_event = dict[str, int]()
    for piece in skipped:
        by_event[piece.event] = by_event.get(piece.event, 0) + piece.messages
    return editor.build(), Grant(granted, skipped=by_event)


def leased(r: Range, now: int, request: AcquireRequest, size: int) -> Range:
    """Return a range as part of a new lease of `size` messages. The delivery is counted."""
    write = request.sink_write
    return r._replace(
        state=LEASED,
        lease_id=request.lease_id,
        worker_id=request.worker_id,
        leased_at=now,
        expires_at=request.expires_at,
        lease_size=size,
        first_leased_at=r.first_leased_at or now,
        delivery_count=r.delivery_count + 1,
        available_at=None,
        sink_writes=r.sink_writes if write is None else with_write(r, write),
    )


def _add_passed_over(
    editor: LedgerEditor,
    index: MessageIndex,
    times: tuple[int, int],
    taken: list[Interval],
    reach: int,
    *,
    rules: GroupSettings,
) -> None:
    """Add the unread messages before others that the lease took, and those up to `reach`."""
    # Those that only other groups get are settled.
    begin, end = editor.ledger.end_sequence + 1, max([reach, *(last for _, last in taken)])
    if len(taken) == 1 and not index.count(begin, taken[0][0] - 1) and taken[0][1] == end:
        return  # nothing is passed over
    timed = index.has_times(begin, end)
    others = subtract(index.for_others(begin, end, editor.ledger.head.group), taken)
    for r in filter(None, (range_between(index, *interval, UNREAD) for interval in others)):
        editor.add(r.as_settled(), r, OTHER_GROUP)
    for first, last in subtract([(begin, end)], [*taken, *others]):
        passed_over = range_between(index, first, last, UNREAD)
        if passed_over is None:
            continue
        for piece in (
            _scheduled(passed_over, index, *times) if timed else (_as_passed_over(passed_over),)
        ):
            add_scheduled(editor, piece, passed_over, rules)


def _scheduled(r: Range, index: MessageIndex, now: int, cutoff: int) -> Iterable[Range]:
    """Yield messages as available, due already or later, or as expired."""
    split = split_by_time(r, index, now, cutoff)
    for due in split.due:
        yield _as_passed_over(due)
    yield from (*split.later, *split.expired)


def _with_leases_without_fresh(
    head: LedgerHeader, passes_over: bool, *, fresh: bool
) -> LedgerHeader:
    """Count a lease that passes over undelivered messages. A lease of such messages ends this."""
    count = 0 if fresh else head.leases_without_fresh + passes_over
    count = min(MAX_LEASES_WITHOUT_FRESH, count)
    same = count == head.leases_without_fresh
    return head if same else replace(head, leases_without_fresh=count)


def _range_of(piece: SelectedPiece, ranges: Mapping[int, Range]) -> Range:
    if piece.row is None:
        return Range(piece.first, piece.last, UNREAD, piece.messages)
    r = ranges[piece.row]
    if piece.messages == r.message_count:
        return r
    return r.at(piece.first, piece.last, piece.messages)


def _as_passed_over(r: Range) -> Range:
    return r._replace(state=AVAILABLE, available_at=0)
