"""Map the rows of data files to slots: a priority and a lane.

A lane is the hash of a key modulo the queue's number of lanes. Slots are numbered in the order of
delivery. Sets of slots and of lanes are the bits of one integer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate, pairwise
from operator import lt, or_
from typing import Final
from zlib import crc32

MAX_LANES: Final = 1_024
MAX_PRIORITY: Final = 9  # the lowest, and the default, is 0
_CACHED_FILES: Final = 4_096
_SKEWED: Final = 2  # times the mean: a slot with more rows is skewed


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The numbers of the slots of a queue, which may have no lanes (0)."""

    lanes: int

    @property
    def width(self) -> int:
        """Return the number of slots of one priority."""
        return self.lanes + 1

    @property
    def everything(self) -> int:
        return (1 << self.width * (MAX_PRIORITY + 1)) - 1

    @property
    def without_lane(self) -> int:
        """Return the set of the slots of messages without a key."""
        return self.of_lanes(1 << self.lanes)

    def lane(self, key: str | None) -> int | None:
        return None if key is None or not self.lanes else crc32(key.encode()) % self.lanes

    def number(self, priority: int, lane: int | None) -> int:
        return (MAX_PRIORITY - priority) * self.width + (self.lanes if lane is None else lane)

    def priority(self, number: int) -> int:
        return MAX_PRIORITY - number // self.width

    def lane_of(self, number: int) -> int | None:
        lane = number % self.width
        return None if lane == self.lanes else lane

    def of_priority(self, priority: int) -> int:
        return ((1 << self.width) - 1) << (MAX_PRIORITY - priority) * self.width

    def of_lanes(self, lanes: int) -> int:
        """Return the slots of a set of lanes, in all priorities."""
        return lanes * _each_priority(self.width)

    def lanes_in(self, slots: int) -> int:
        lanes, whole = 0, (1 << self.lanes) - 1
        while slots:
            lanes |= slots & whole
            slots >>= self.width
        return lanes

    @property
    def every_lane(self) -> int:
        return (1 << self.lanes) - 1

    def block_of(self, lanes: int, blocks: int) -> int:
        """Cut all lanes into `blocks`, and return the block with the lowest of `lanes`."""
        lowest = (lanes & -lanes).bit_length() - 1
        at = ((lowest + 1) * blocks - 1) // self.lanes
        first, end = at * self.lanes // blocks, (at + 1) * self.lanes // blocks
        return (1 << end) - (1 << first)

    def priorities_in(self, slots: int) -> int:
        priorities, whole = 0, (1 << self.width) - 1
        for priority in range(MAX_PRIORITY, -1, -1):
            if slots & whole:
                priorities |= 1 << priority
            slots >>= self.width
        return priorities


def lowest_of(numbers: int, most: int) -> int:
    if numbers.bit_count() <= most:
        return numbers
    rest = numbers
    for _ in range(most):
        rest &= rest - 1
    return numbers & ~rest


def numbers_in(slots: int) -> list[int]:
    """Return the numbers of a set of slots, in order."""
    if not slots:
        return []
    lowest = (slots & -slots).bit_length() - 1
    bits = reversed(f"{slots >> lowest:b}")
    return [number for number, bit in enumerate(bits, lowest) if bit == "1"]


@lru_cache
def _each_priority(width: int) -> int:
    return sum(1 << level * width for level in range(MAX_PRIORITY + 1))


class FileSlots:
    """The slots of a file's rows, as runs of one slot each."""

    __slots__ = ("_below", "mask", "numbers", "rows", "skewed", "starts")

    def __init__(self, numbers: Sequence[int], counts: Sequence[int]) -> None:
        self.numbers = numbers
        self.starts = list(accumulate(counts, initial=0))  # first rows, then the number of rows
        self.rows = self.starts[-1]
        self.mask = reduce(or_, (1 << number for number in set(numbers)))
        self._below: list[int] | None = None
        self.skewed = 0
        """Of a sorted file: the slots with far more rows than the mean, such as of a hot key."""
        if all(map(lt, numbers, numbers[1:])):
            # Of a sorted file: the set of the slots before each run.
            self._below = list(accumulate((1 << number for number in numbers), initial=0))
            most = _SKEWED * self.rows / len(numbers)
            runs = zip(numbers, counts, strict=True) if max(counts) > most else ()
            self.skewed = reduce(or_, (1 << number for number, rows in runs if rows > most), 0)

    @property
    def is_sorted(self) -> bool:
        """Return whether each slot is one run, in order."""
        return self._below is not None

    def between(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield ``(slot, first, last)`` of the runs in some rows, from 0."""
        starts, at = self.starts, bisect_right(self.starts, first) - 1
        while at < len(self.numbers) and starts[at] <= last:
            yield self.numbers[at], max(first, starts[at]), min(last, starts[at + 1] - 1)
            at += 1

    def runs_of(self, wanted: int, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield ``(slot, first, last)`` of the runs of some slots in some rows, in order."""
        if not self.is_sorted:
            yield from (run for run in self.between(first, last) if wanted >> run[0] & 1)
            return
        wanted &= self.mask_of(first, last)
        while wanted:
            lowest = wanted & -wanted
            wanted ^= lowest
            at = bisect_left(self.numbers, number := lowest.bit_length() - 1)
            yield number, max(first, self.starts[at]), min(last, self.starts[at + 1] - 1)

    def mask_of(self, first: int, last: int) -> int:
        if first <= 0 and last >= self.rows - 1:
            return self.mask
        if self._below is not None:
            low = bisect_right(self.starts, first) - 1
            high = bisect_right(self.starts, last, 0, len(self.numbers))
            return self._below[high] - self._below[low]
        return reduce(or_, (1 << number for number, _, _ in self.between(first, last)), 0)

    def stretches(self, first: int, last: int, slots: int) -> Iterator[tuple[int, int]]:
        """Yield the first and last row of each stretch of neighbouring slots of a sorted file."""
        starts, numbers = self.starts, self.numbers
        while slots:
            lowest = (slots & -slots).bit_length() - 1
            rest = slots >> lowest
            length = (~rest & (rest + 1)).bit_length() - 1
            slots &= ~(((1 << length) - 1) << lowest)
            low = bisect_left(numbers, lowest)
            high = low + length
            yield max(first, starts[low]), min(last, starts[high] - 1)


def encode_slots(lanes: int, runs: Iterable[tuple[int, int]]) -> str:
    """Return runs of ``(slot, rows)`` as text for a commit: lanes, steps of slots, and rows.

    >>> encode_slots(64, [(585, 10), (586, 12), (649, 3)])
    '64|585 1 63|10 12 3'
    """
    known = list(runs)
    numbers = [number for number, _ in known]
    steps = [after - before for before, after in pairwise((0, *numbers))]
    return f"{lanes}|{_joined(steps)}|{_joined(rows for _, rows in known)}"


def _joined(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


@lru_cache(maxsize=_CACHED_FILES)
def decode_slots(text: str) -> FileSlots:
    """Return the runs of a text, or raise ValueError if it has none."""
    _, steps, counts = text.split("|")
    numbers, rows = list(accumulate(map(int, steps.split()))), list(map(int, counts.split()))
    if len(numbers) != len(rows) or not rows or min(rows) < 1:
        raise ValueError(f"the slots {text[:50]!r} have no rows, or not as many as numbers")
    return FileSlots(numbers, rows)


def priorities_of(text: str) -> int:
    """Return the set of a file's priorities, or 0 if all rows have priority 0."""
    lanes, steps, _ = text.split("|")
    layout = SlotLayout(int(lanes))
    lowest = layout.number(0, 0) if layout.lanes else layout.number(0, None)
    if "-" not in steps and int(steps.partition(" ")[0]) >= lowest:
        return 0  # sorted, so the first slot is the least
    priorities = layout.priorities_in(decode_slots(text).mask)
    return 0 if priorities == 1 else priorities


def valid_slots(text: object, layout: SlotLayout, rows: int) -> bool:
    """Return whether a text describes the slots of a file with this number of rows."""
    if not isinstance(text, str) or not text.startswith(f"{layout.lanes}|"):
        return False
    try:
        slots = decode_slots(text)
    except ValueError:
        return False
    greatest = layout.number(0, None)
    return slots.rows == rows and min(slots.numbers) >= 0 and max(slots.numbers) <= greatest
