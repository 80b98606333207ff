"""Show the priorities, lanes and hot keys of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, islice
from operator import attrgetter
from typing import Final

from spark_mq.errors import CorruptLog
from spark_mq.ledger.budget import MAX_IN_FLIGHT_PER_KEY
from spark_mq.ledger.lane_backlog import Holder, LaneBacklog, LaneStats, count_lanes
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.ranges import DEAD, LEASED, SETTLED, TRANSFERRING, Ledger, Range
from spark_mq.ledger.stats import age_at
from spark_mq.ledger.transitions import expire_leases
from spark_mq.ledger.walk import due_at, walk
from spark_mq.operations.context import GroupLedger
from spark_mq.parquet.reader import MessageReader
from spark_mq.util.clock import optional_datetime
from spark_mq.util.records import Record
from spark_mq.util.show import shell_command, show_count, show_time
from spark_mq.util.validation import invalid, validate_choice, validate_count

MAX_KEYS: Final = 10_000  # messages whose keys are read
_MAX_PIECES: Final = 1_000
_MAX_WALKED: Final = 100_000
"""Runs of messages in one slot that the search for a lane's messages looks at."""
_ORDERS: Final = ("messages", "age")
_GONE: Final = (DEAD, TRANSFERRING, SETTLED)


@dataclass(frozen=True, slots=True)
class PriorityInfo(Record):
    """The unsettled messages of one priority in a group.

    Attributes
    ----------
    priority
        9 to 0.
    ready, delayed, leased, blocked, dead, transferring
        Messages by state, as in :class:`~spark_mq.GroupStats`.
    oldest_age
        Time since the first of them that is not dead became due, by its publish or its later
        ``deliver_at``. None without one, and if all are scheduled for later.
    """

    priority: int
    ready: int
    delayed: int
    leased: int
    blocked: int
    dead: int
    transferring: int
    oldest_age: timedelta | None


@dataclass(frozen=True, slots=True)
class LaneInfo(Record):
    """The unsettled messages of one lane in a group.

    Attributes
    ----------
    lane
        Its number. None for messages without a key, which nothing holds back.
    messages, share
        Messages that are neither settled nor dead, and their part of those of all lanes (0 to 1).
    ready, delayed, leased, blocked, dead
        Messages by state, as in :class:`~spark_mq.GroupStats`.
    head, head_age
        The first message that is not dead, and the time since it became due, by its publish or its
        later ``deliver_at``. None without one, and without an age while it is scheduled for later.
    held_back
        Due messages that wait for an earlier one of their lane, or for its limit.
    held_by
        "lease", "retry" (a message has failed), "delay" (``deliver_at``), "postponed" (released
        with a delay, or its file is out of reach), "blocked", or "limit"
        (``max_in_flight_per_key``). Empty if nothing holds the lane.
    because
        The same for people.
    sequence
        The message that holds the lane.
    until
        When the hold ends (aware, UTC). None if the owner must act.
    lease_id, worker_id
        The lease that holds the lane, and its holder.
    error
        The text of the last failure of that message.
    """

    lane: int | None
    messages: int
    share: float
    ready: int
    delayed: int
    leased: int
    blocked: int
    dead: int
    head: int | None
    head_age: timedelta | None
    held_back: int = 0
    held_by: str = ""
    because: str = ""
    sequence: int | None = None
    until: datetime | None = None
    lease_id: str | None = None
    worker_id: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class HotKey(Record):
    """A common key among the first unsettled messages of a lane.

    ``messages`` of those that were read have it, which is ``share`` of them (0 to 1).
    """

    key: str | None
    messages: int
    share: float


@dataclass(frozen=True, slots=True)
class LaneSummary(Record):
    """The priorities of a group, and its lanes in numbers.

    Attributes
    ----------
    order
        The group's setting: "none" or "key".
    priorities
        The priorities that have messages, the highest first.
    lanes
        Lanes that have messages. Messages without a key have no lane.
    lanes_leased
        Lanes of which a lease holds messages. 0 in a group without order.
    lanes_held_back, held_back
        Lanes whose due messages wait for a retry, a delay or the owner, and these messages.
    oldest_head_age
        The greatest age of the first message of a lane, as ``head_age``. None without one.
    complete
        False if the backlog is so large that only its start was counted.
    """

    order: str
    priorities: tuple[PriorityInfo, ...]
    lanes: int
    lanes_leased: int
    lanes_held_back: int
    held_back: int
    oldest_head_age: timedelta | None
    complete: bool


@dataclass(frozen=True, slots=True)
class _Snapshot:
    ledger: Ledger
    index: MessageIndex
    now: int
    order: str
    limit: int | None  # of each key
    backlog: LaneBacklog


def _take_snapshot(group: GroupLedger) -> _Snapshot:
    snapshot, now = group.snapshot(), group.now()
    settings = group.settings_in(snapshot)
    ledger = expire_leases(group.ledger_in(snapshot), now, settings)
    index = group.index_for(ledger)
    backlog = count_lanes(ledger, index, settings, now)
    return _Snapshot(ledger, index, now, settings.order, settings.max_in_flight_per_key, backlog)


def list_priorities(group: GroupLedger) -> list[PriorityInfo]:
    return _priorities(_take_snapshot(group))


def _priorities(snapshot: _Snapshot) -> list[PriorityInfo]:
    return [
        PriorityInfo(own.priority, **own.counts, oldest_age=_oldest(snapshot, own.firsts))
        for own in snapshot.backlog.priorities()
    ]


def _oldest(snapshot: _Snapshot, sequences: Iterable[int]) -> timedelta | None:
    """Return the greatest age, without messages that are scheduled for later."""
    # Not by the least sequence, because clocks of publishers differ.
    times = (due_at(snapshot.index, sequence) for sequence in sequences if sequence >= 0)
    return age_at(min((at for at in times if at <= snapshot.now), default=None), snapshot.now)


def list_lanes(group: GroupLedger, top: int | None, by: str) -> list[LaneInfo]:
    order = validate_choice("by", by, _ORDERS)
    most = None if top is None else validate_count("top", top)
    snapshot = _take_snapshot(group)
    if not snapshot.index.layout.lanes:
        return []
    lanes = snapshot.backlog.lanes()
    total = max(1, sum(lane.messages for lane in lanes))

    def age(lane: LaneStats) -> tuple[bool, int, int]:
        return lane.head < 0, lane.head, -lane.messages

    def size(lane: LaneStats) -> tuple[int, bool, int]:
        return -lane.messages, lane.head < 0, lane.head

    hottest = sorted(lanes, key=age if order == "age" else size)[:most]
    return [_lane(snapshot, lane, total) for lane in hottest]


def _lane(snapshot: _Snapshot, lane: LaneStats, total: int) -> LaneInfo:
    counts = {name: n for name, n in lane.counts.items() if name != TRANSFERRING}
    until = optional_datetime(lane.until)
    r = lane.held_by
    leased = r is not None and lane.holder == Holder.LEASE
    full = lane.holder == Holder.LIMIT
    return LaneInfo(
        lane=lane.lane,
        messages=lane.messages,
        share=lane.messages / total,
        **counts,
        head=lane.head if lane.head >= 0 else None,
        head_age=_oldest(snapshot, [lane.head]),
        held_back=lane.held_back,
        held_by=str(lane.holder),
        because=_at_limit(lane, snapshot.limit) if full else _because(lane, r, until),
        sequence=lane.sequence,
        until=until,
        lease_id=r.lease_id if r is not None and leased else None,
        worker_id=r.worker if r is not None and leased else None,
        error=None if r is None else r.error,
    )


def _because(lane: LaneStats, r: Range | None, until: datetime | None) -> str:
    message, at = f"message {lane.sequence}", show_time(until)
    if lane.holder == Holder.LEASE and r is not None:
        return f"lease {r.lease_id} of {r.worker} until {at}"
    if lane.holder == Holder.RETRY:
        return f"{message} failed, its retry is at {at}"
    if lane.holder == Holder.DELAY:
        return f"{message} is delayed until {at}"
    if lane.holder == Holder.POSTPONED:
        return f"{message} was released, or its file is out of reach, until {at}"
    if lane.holder == Holder.BLOCKED:
        return f"{message} is blocked: {r.reason if r is not None else ''}"
    return ""


def _at_limit(lane: LaneStats, limit: int | None) -> str:
    leased = show_count(lane.counts[LEASED], "message")
    verb = "is" if lane.counts[LEASED] == 1 else "are"
    return f"{leased} {verb} leased: {MAX_IN_FLIGHT_PER_KEY}={limit}"


def summarize_lanes(group: GroupLedger) -> LaneSummary:
    snapshot = _take_snapshot(group)
    lanes = [lane for lane in snapshot.backlog.lanes() if lane.lane is not None]
    leased = [lane for lane in lanes if lane.holder == Holder.LEASE]
    by_itself = (Holder.LEASE, Holder.LIMIT)  # ends with the next settles
    held = [lane for lane in lanes if lane.held_back and lane.holder not in by_itself]
    return LaneSummary(
        snapshot.order,
        tuple(_priorities(snapshot)),
        len(lanes),
        len(leased),
        len(held),
        sum(lane.held_back for lane in held),
        _oldest(snapshot, (lane.head for lane in lanes)),
        snapshot.backlog.counted_to is None,
    )


def find_hot_keys(group: GroupLedger, lane: int, n: int) -> list[HotKey]:
    most = validate_count("n", n)
    lanes = group.messages.lanes
    if type(lane) is not int or not 0 <= lane < lanes:
        has = f"lanes 0 to {lanes - 1}" if lanes else "no lanes"
        listing = shell_command("group", "describe", group.name, "lanes", "-q", "PATH")
        raise invalid(
            "lane",
            lane,
            f"is not there: the queue has {has}. group.lanes() or {listing} lists those with "
            "messages.",
        )
    counts: Counter[str | None] = Counter()
    reader = MessageReader(group.messages.files, ["key"])
    for keys in _keys(reader, _pieces_of(group, lane)):
        counts.update(keys)
    total = max(1, counts.total())
    return [HotKey(key, count, count / total) for key, count in counts.most_common(most)]


def _keys(reader: MessageReader, pieces: Iterable[FileSlice]) -> Iterator[list[str | None]]:
    """Yield the keys of some slices, file by file. Skip unreadable files."""
    for _, of_file in groupby(pieces, key=attrgetter("path")):
        try:
            yield reader.read(*of_file)["key"].to_pylist()
        except CorruptLog:
            continue


def _pieces_of(group: GroupLedger, lane: int) -> Iterator[FileSlice]:
    """Yield a lane's first unsettled messages as slices, without dead ones."""
    ledger, index = group.current(), group.messages.index()
    layout, left = index.layout, MAX_KEYS
    runs = (
        run
        for piece in walk(ledger, index, group.now(), ledger.head.start_sequence + 1)
        if piece.state not in _GONE
        for run in index.slot_runs(piece.first, piece.last)
    )
    own = (run for run in islice(runs, _MAX_WALKED) if layout.lane_of(run[0]) == lane)
    for _, first, last in islice(own, _MAX_PIECES):
        for piece in index.slices(first, min(last, first + left - 1)):
            yield piece
            left -= piece.rows
        if left < 1:
            return
