"""Run the messages of a lane one after the other, and different lanes side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.slots import SlotLayout
from spark_mq.operations.group_ledger import GroupLedger

__all__ = ["LaneChains", "lanes_of"]

T = TypeVar("T", bound=Hashable)


class LaneChains(Generic[T]):
    """The running and waiting tasks by lane, of which only the first may run. The caller locks.

    A task whose message failed *pauses* its lane, until its settle shows which of the later
    messages came back.
    """

    def __init__(self) -> None:
        self._chains: dict[int, deque[T]] = {}
        self._lanes: dict[T, int] = {}
        self._paused: set[int] = set()

    def __len__(self) -> int:
        """Return the number of tasks in all lanes."""
        return len(self._lanes)

    @property
    def lanes(self) -> int:
        """Return the number of lanes that have tasks."""
        return len(self._chains)

    @property
    def paused(self) -> bool:
        """Return whether a lane waits for a settle."""
        return bool(self._paused)

    def add(self, lane: int, task: T) -> bool:
        """Add a task. Return whether it may run now."""
        chain = self._chains.setdefault(lane, deque())
        chain.append(task)
        self._lanes[task] = lane
        return len(chain) == 1

    def pause(self, task: T) -> None:
        """Pause the lane of a task, until the task is removed."""
        if task in self._lanes:
            self._paused.add(self._lanes[task])

    def remove(self, task: T) -> T | None:
        """Remove a task. Return the task of its lane that may run now."""
        lane = self._lanes.pop(task, None)
        if lane is None:
            return None
        chain = self._chains[lane]
        was_first = chain[0] == task
        if was_first:
            chain.popleft()
            self._paused.discard(lane)
        else:
            chain.remove(task)
        if not chain:
            del self._chains[lane]
            return None
        return chain[0] if was_first else None


def lanes_of(ledger: GroupLedger, ranges: Sequence[Range]) -> dict[int, int]:
    """Return the lane of each message by sequence. A group without order has none."""
    index = ledger.messages.index(ranges[-1].last)
    if not is_ordered(index, ledger.last_settings):
        return {}
    runs = (run for r in ranges for run in index.slot_runs(r.first, r.last))
    return dict(_with_lane(index.layout, runs))


def _with_lane(
    layout: SlotLayout, runs: Iterable[tuple[int, int, int]]
) -> Iterable[tuple[int, int]]:
    for number, first, last in runs:
        if (lane := layout.lane_of(number)) is not None:
            yield from ((sequence, lane) for sequence in range(first, last + 1))
