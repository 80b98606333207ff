"""Walk over a group's messages in the states that views show, and sum up what they ask for.

A publish is such a reader, too: it asks which messages hold their dedup id.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.intervals import split_at
from spark_mq.ledger.message_index import DataFile, MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, SETTLED, UNREAD, Ledger, Range, range_between
from spark_mq.ledger.schedule import DUE, LATER, split_by_time
from spark_mq.ledger.settings import UNTIL_LEASED, GroupSettings
from spark_mq.ledger.states import BLOCKED, DEAD, DELAYED, LEASED, READY, STATES, UNSETTLED
from spark_mq.ledger.transitions import EXPIRED, expire, to_dead


class Piece(NamedTuple):
    """Messages ``first..last`` in one of STATE_NAMES. Unread ones are ready or delayed."""

    state: str
    first: int
    last: int
    row: int | None  # of their range in the ledger; None if they are unread, or before its start
    due_at: int | None = None  # when they are due, if the range of delayed ones does not say it
    expired: bool = False  # past their ``expires_at``, which no commit has recorded yet

    @property
    def unread(self) -> bool:
        return self.row is None and not self.expired and self.state != SETTLED

    def has_state(self, state: str | None) -> bool:
        """Return whether the messages are in a state of STATE_NAMES. None matches all."""
        if state == UNREAD:
            return self.unread and self.state == READY
        return state in (None, self.state)


def walk(ledger: Ledger, index: MessageIndex, now: int, first: int = 0) -> Iterator[Piece]:
    """Yield a group's messages from a sequence on, in order, without reading their ranges."""
    start = ledger.head.start_sequence
    if settled := range_between(index, first, start, SETTLED):
        yield Piece(SETTLED, settled.first, settled.last, None)
    timed = index.has_times_after(start)
    rules = GroupSettings.decoded(ledger.head.settings) if timed else GroupSettings()
    states, firsts, lasts = _states(ledger, now), ledger.first_sequences, ledger.last_sequences
    for row in range(bisect_left(lasts, first), len(ledger)):
        state, low, high = states[row], firsts[row], lasts[row]
        if low < first:
            low = index.first_at_or_after(first) or high + 1
        if low > high:
            continue
        if timed and state == READY and index.has_times(low, high):
            r = ledger.range_at(row).slice(low, high, index)
            yield from _split(r, index, now, row, rules)
        else:
            yield Piece(state, low, high, row)
    unread = max(first, ledger.end_sequence + 1)
    yield from walk_unread(index, unread, now, rules, ledger.head.group)


def walk_unread(
    index: MessageIndex, first: int, now: int, rules: GroupSettings, group: str
) -> Iterator[Piece]:
    """Yield the messages from a sequence on, none of which a group has leased, in order."""
    # Those that only other groups get are settled, because its next lease skips them.
    last = index.last_sequence
    for is_others, low, high in split_at(index.for_others(first, last, group), first, last):
        if is_others:
            yield Piece(SETTLED, low, high, None)
        elif unread := range_between(index, low, high, UNREAD):
            yield from _split(unread, index, now, None, rules)


def _states(ledger: Ledger, now: int) -> list[str]:
    """Return the state of each range, with available ones as ready or delayed."""
    states = [str(SETTLED)] * len(ledger)
    shown = {state: ledger.find((state,)) for state in UNSETTLED}
    shown[DELAYED] = shown.pop(AVAILABLE)
    shown[READY] = ledger.find((AVAILABLE,), ("available_at", "<=", now))
    for state, rows in shown.items():
        name = str(state)
        for row in rows:
            states[row] = name
    return states


def _split(
    r: Range, index: MessageIndex, now: int, row: int | None, rules: GroupSettings
) -> Iterator[Piece]:
    for when, part in split_by_time(r, index, now, now):
        if when == DUE:
            yield Piece(READY, part.first, part.last, row)
        elif when == LATER:
            yield Piece(DELAYED, part.first, part.last, row, part.available_at)
        else:
            ended = str(expire(r, rules).state)
            yield Piece(ended, part.first, part.last, row, expired=True)


def range_of(piece: Piece, ledger: Ledger, index: MessageIndex) -> Range:
    """Return a piece as a range with all else that the ledger knows. The piece has the state."""
    count = index.count(piece.first, piece.last)
    if piece.row is None:
        r = Range(piece.first, piece.last, UNREAD, count, available_at=piece.due_at)
        return to_dead(r, EXPIRED, None) if piece.state == DEAD else r
    r = ledger.range_at(piece.row).at(piece.first, piece.last, count)
    if piece.expired and piece.state == DEAD:
        return to_dead(r, EXPIRED, r.error)
    return r if piece.due_at is None else r._replace(available_at=piece.due_at)


def due_at(index: MessageIndex, sequence: int) -> int:
    """Return since when a message is due: since its publish, or its later ``deliver_at``."""
    ((_, at),) = _of_file(index.file_at(sequence), sequence, 1)
    return at


def due_times(index: MessageIndex, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of messages in ``first..last``, each with the time since when they are due."""
    for part in index.slices(first, last):
        yield from _of_file(index.file_at(part.first), part.first, part.rows)


def _of_file(file: DataFile, first: int, rows: int) -> Iterator[tuple[int, int]]:
    if file.times is None:
        yield rows, file.committed_at
        return
    row = first - file.first
    for low, high, deliver_at, _ in file.times.between(row, row + rows - 1):
        yield high - low + 1, max(file.committed_at, deliver_at or 0)


def oldest_due(ledger: Ledger, index: MessageIndex, now: int) -> int | None:
    """Return since when the oldest unsettled message is due, or None if none is due."""
    oldest: int | None = None
    for piece in walk(ledger, index, now, ledger.head.start_sequence + 1):
        if piece.state == SETTLED or (piece.state == DELAYED and piece.unread):
            continue
        for part in index.slices(piece.first, piece.last):
            if oldest is not None and part.committed_at >= oldest:
                return oldest  # those that follow were published later
            file = index.file_at(part.first)
            before = now + 1 if oldest is None else oldest
            if file.times is not None and file.times.due_from >= before:
                continue
            times = (at for _, at in _of_file(file, part.first, part.rows))
            oldest = min((at for at in times if at < before), default=oldest)
    return oldest


LATE: Final = "late"  # leased, and past the deadline
SUMMED_COLUMNS: Final = (
    "state", "first", "last", "message_count", "leased_at", "expires_at", "available_at",
    "delivery_count", "suspect",
)  # fmt: skip
_NAMES: Final = (*map(str, STATES), READY, DELAYED, LATE)
_STORED: Final = pa.array(_NAMES[: len(STATES)])
_SUMS: Final = (
    ("message_count", "sum"), ("first", "count"), ("first", "min"), ("last", "max"),
    ("leased_at", "min"), ("expires_at", "min"), ("available_at", "min"),
    ("delivery_count", "max"), ("suspect", "max"),
)  # fmt: skip


class StateSum(NamedTuple):
    """The ranges of a ledger in one state. Instants are microseconds."""

    messages: int = 0
    ranges: int = 0
    first: int | None = None  # sequence
    last: int | None = None
    leased_at: int | None = None  # the earliest
    expires_at: int | None = None  # the earliest
    available_at: int | None = None  # the earliest
    delivery_count: int = 0  # the highest
    suspect: bool = False  # whether some are suspects


def sum_states(
    rows: pa.Table, now: int, groups: pa.Array | None = None, skews: Sequence[int] = ()
) -> dict[int, dict[str, StateSum]]:
    """Sum rows with SUMMED_COLUMNS by group and state. Leases are late only by given `skews`."""
    if groups is None:
        groups = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    columns = {name: rows[name] for name in SUMMED_COLUMNS}
    for name in ("leased_at", "expires_at", "available_at"):
        columns[name] = columns[name].cast(pa.int64())
    columns["state"] = _numbers(columns, now, pa.array(skews, pa.int64()), groups)
    columns["group"] = groups
    sums = pa.table(columns).group_by(["group", "state"], use_threads=False).aggregate(list(_SUMS))
    names = [f"{column}_{how}" for column, how in _SUMS]
    by_group: dict[int, dict[str, StateSum]] = {}
    values = (sums[name].to_pylist() for name in ("group", "state", *names))
    for group, state, *own in zip(*values, strict=True):
        name = "" if state is None else _NAMES[state]  # another writer's state
        by_group.setdefault(group, {})[name] = StateSum(*own)
    return by_group


def _numbers(
    columns: Mapping[str, pa.ChunkedArray], now: int, skews: pa.Array, groups: pa.Array
) -> pa.ChunkedArray:
    """Return the number in _NAMES of each row's state. Arrow compares and groups numbers faster."""
    numbers = pc.index_in(columns["state"], value_set=_STORED)
    due = pc.fill_null(pc.less_equal(columns["available_at"], now), False)
    shown = pc.if_else(due, _number(READY), _number(DELAYED))
    numbers = pc.if_else(pc.equal(numbers, _number(AVAILABLE)), shown, numbers)
    if len(skews):
        deadline = pc.add(columns["expires_at"], skews.take(groups))
        late = pc.and_(pc.equal(numbers, _number(LEASED)), pc.less(deadline, now))
        numbers = pc.if_else(pc.fill_null(late, False), _number(LATE), numbers)
    return numbers


def _number(state: str) -> pa.Scalar:
    return pa.scalar(_NAMES.index(state), pa.int32())


# A dead message, or one in transfer, is delivered again only if the owner wants that.
_UNFINISHED: Final = (READY, DELAYED, LEASED, BLOCKED)


class Held(NamedTuple):
    """Which of some messages hold their dedup id, so that no other one with it is published."""

    up_to: int  # no message up to this sequence holds its id
    sequences: Set[int]


AskHeld = Callable[[Collection[int]], Held]
"""Looks at the ledgers of all groups, for some sequences."""


def held_ids(
    groups: Sequence[tuple[Ledger, MessageIndex]],
    sequences: Collection[int],
    *,
    horizon: int,
    now: int,
    until: str,
) -> Held:
    """Return which messages hold their id, by the ledgers of all groups.

    Without a group, all messages do that a trim has not dropped. Otherwise a message holds its id
    until the last group has settled it, or with UNTIL_LEASED until the first group has leased or
    settled it.
    """
    wanted = sorted(sequence for sequence in sequences if sequence > horizon)
    if not groups:
        return Held(horizon, set(wanted))
    starts = [ledger.head.start_sequence for ledger, _ in groups]
    held = [_held_in(ledger, index, wanted, now, until) for ledger, index in groups]
    if until == UNTIL_LEASED:
        return Held(max(horizon, *starts), set.intersection(*held))
    return Held(max(horizon, min(starts)), set.union(*held))


def _held_in(
    ledger: Ledger, index: MessageIndex, sequences: Sequence[int], now: int, until: str
) -> set[int]:
    """Return which sequences, which are sorted, hold their id as far as one group knows."""
    left = sequences[bisect_right(sequences, ledger.head.start_sequence) :]
    held, low = set(left), 0
    for piece in walk(ledger, index, now, left[0]) if left else ():
        low = bisect_left(left, piece.first, low)
        high = bisect_right(left, piece.last, low)
        if low < high and not _holds(piece, ledger, until):
            held.difference_update(left[low:high])
        if high == len(left):
            break
    return held


def _holds(piece: Piece, ledger: Ledger, until: str) -> bool:
    if piece.state not in _UNFINISHED:
        return False
    if until != UNTIL_LEASED:
        return True
    fresh = piece.row is None or not ledger.values_at("delivery_count", [piece.row])[0]
    return fresh and piece.state in (READY, DELAYED)
