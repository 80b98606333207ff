"""Divide a batch of an ordered group into partitions by lanes.

Each lane lies in one partition, in the order of sequence. Neighbouring lanes share a partition,
because a sorted file has them side by side, and so a partition has one slice of such a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settings import GroupSettings

Piece = tuple[FileSlice, Range]
# The rows of a slice as runs: a lane, or None for messages without one, and its number of rows.
LaneRuns = tuple[tuple[int | None, int], ...]


def lane_runs(
    index: MessageIndex, rules: GroupSettings, pieces: Iterable[Piece]
) -> tuple[LaneRuns, ...]:
    """Return the lanes of the rows of each slice, or () if the group is not ordered."""
    if not is_ordered(index, rules):
        return ()
    lane_of = index.layout.lane_of
    return tuple(
        tuple(
            (lane_of(slot), last - first + 1)
            for slot, first, last in index.slot_runs(piece.first, piece.last)
        )
        for piece, _ in pieces
    )


def divide_by_lane(
    pieces: Sequence[Piece], runs: Sequence[LaneRuns], wanted: int
) -> list[list[Piece]]:
    """Divide slices into up to `wanted` parts of whole lanes. Other rows fill the smaller parts."""
    if wanted == 1:
        return [list(pieces)]
    loads = Counter[int | None]()
    for lane, rows in (run for of_piece in runs for run in of_piece):
        loads[lane] += rows
    free = loads.pop(None, 0)
    lanes = {lane: rows for lane, rows in loads.items() if lane is not None}
    place = _neighbours(lanes, min(wanted, len(lanes)))
    sizes = [0] * wanted
    for lane, part in place.items():
        sizes[part] += lanes[lane]
    rooms = _rooms(sizes, free)
    parts: list[list[Piece]] = [[] for _ in range(wanted)]
    for (piece, of), of_piece in zip(pieces, runs, strict=True):
        for part, start, rows in _places(of_piece, place, rooms):
            append_piece(parts[part], piece.part(start, rows), of)
    return [part for part in parts if part]


def _neighbours(lanes: Mapping[int, int], count: int) -> dict[int, int]:
    """Return the part of each lane. No part is empty, and all have about as many rows."""
    place, at, filled, left = dict[int, int](), 0, 0, sum(lanes.values())
    for before, lane in enumerate(sorted(lanes)):
        share = left / (count - at)
        scarce = len(lanes) - before < count - at
        if filled and at < count - 1 and (scarce or filled + lanes[lane] / 2 > share):
            left, at, filled = left - filled, at + 1, 0
        place[lane] = at
        filled += lanes[lane]
    return place


def _rooms(sizes: Sequence[int], free: int) -> list[int]:
    """Return how many free rows each part takes, so that the smaller parts become alike."""
    level, ordered = 0, sorted(sizes)
    for count in range(len(ordered), 0, -1):
        level = -(-(sum(ordered[:count]) + free) // count)
        if level >= ordered[count - 1]:
            break
    return [max(0, level - size) for size in sizes]


def _places(
    runs: LaneRuns, place: Mapping[int, int], rooms: list[int]
) -> Iterator[tuple[int, int, int]]:
    """Yield the part, the first row and the rows of each run. Free rows use up the rooms."""
    start = 0
    for lane, rows in runs:
        if lane is not None:
            yield place[lane], start, rows
            start += rows
            continue
        left = rows
        while left:
            part = next(at for at, room in enumerate(rooms) if room)
            take = min(left, rooms[part])
            rooms[part] -= take
            yield part, start, take
            start, left = start + take, left - take


def append_piece(part: list[Piece], piece: FileSlice, of: Range) -> None:
    """Add a slice to others. Join it with the last one if it continues that."""
    if part:
        last, whose = part[-1]
        if last.path == piece.path and last.offset + last.rows == piece.offset and whose == of:
            both = replace(last, rows=last.rows + piece.rows, size=last.size + piece.size)
            part[-1] = (both, of)
            return
    part.append((piece, of))
