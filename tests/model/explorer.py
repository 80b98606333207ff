"""Looks at every state that a small world can reach: breadth first, each state once, the shortest
way to a violation first.

A world is a store (what is durable), some processes, and what an onlooker has noted. A process runs
operations of the product, one after the other. What an operation asks of the world (a read, a write
of the store, a write to a sink) is put on a *tape*. One step runs it up to and with its first
effect; the next step runs it again from its start, with the tape for what the world has answered so
far. So a process may die or stand still between any two effects without threads, and a state is
plain data that can be hashed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_mq.util import failures

if TYPE_CHECKING:
    from .delivery import Delivery


class Suspend(BaseException):
    """Ends a run of an operation where its next step begins. No product code may catch it."""


failures.STOPS += (Suspend,)


class Violation(AssertionError):
    """A promise is broken; the way there, step by step."""

    def __init__(self, what: str, way: Iterable[str] = ()) -> None:
        self.what, self.way = what, list(way)
        super().__init__("\n  ".join([what, *self.way]))


READ, EFFECT, FREE, CHOICE = "read", "effect", "free", "choice"

Entry = tuple[str, Any, BaseException | None]
"""One answer on a tape: its kind, the value, or what was raised."""


class Tape:
    """What the world has answered one operation so far.

    ``fine``: a step is one read or effect, not all up to the first effect.
    """

    def __init__(
        self, answers: tuple[Entry, ...], fine: bool, picks: tuple[int, ...], tail: bool = False
    ) -> None:
        self.answers = list(answers)
        self.fine = fine
        self.tail = tail
        """Whether what an operation only reads after its last effect belongs to the step of that
        effect.
        """
        self.picks = list(picks)
        """What is chosen at the choices of this step, one after the other.

        The first where there are no more.
        """
        self.open: list[int] = []
        """How many there were to choose from, where `picks` did not say."""
        self._recorded = len(answers)
        self._at = 0
        self._full = False
        self._cut: int | None = None

    @property
    def kept(self) -> tuple[Entry, ...]:
        """Return the answer to the next step, where this one was suspended."""
        return tuple(self.answers[: self._cut])

    def call(self, kind: str, do: Callable[[], Any]) -> Any:
        """The answer of the world: from the tape, or now. Raises Suspend where the step ends."""
        if self._at < self._recorded:
            known, value, error = self.answers[self._at]
            assert known == kind, (
                f"an operation is not the same when it is run again: {kind} after {known}"
            )
            self._at += 1
            if error is not None:
                raise error
            return value
        if self._full and kind != FREE:
            if self._cut is None:
                self._cut = len(self.answers)
            if kind != READ or not self.tail or self.fine:
                raise Suspend
        self._full = self._full or kind == EFFECT or (self.fine and kind == READ)
        try:
            value, error = do(), None
        except Exception as raised:
            value, error = None, raised
        self.answers.append((kind, value, error))
        if error is not None:
            raise error
        return value

    def choose(self, options: int) -> int:
        """Any number below `options`: each is tried."""

        def pick() -> int:
            if self.picks:
                return self.picks.pop(0)
            self.open.append(options)
            return 0

        return int(self.call(CHOICE, pick))


class Untaped(Tape):
    """The operation ends in one step for all answers."""

    def __init__(self) -> None:
        super().__init__((), False, ())

    def call(self, kind: str, do: Callable[[], Any]) -> Any:
        return do()


class State(NamedTuple):
    store: Any
    procs: tuple[Any, ...]
    notes: Any
    """What the onlooker has noted."""
    budget: tuple[int, ...]


@dataclass
class Explored:
    states: int = 0
    finished: int = 0


def explore(world: Delivery) -> Explored:
    """Visits every state.

    Raises Violation where a promise is broken, or some message can never finish from there.
    """
    begin = world.begin()
    ids: dict[Hashable, int] = {world.key(begin): 0}
    parents: list[tuple[int, str]] = [(-1, "begin")]
    back: list[list[int]] = [[]]
    done: list[int] = []
    queue: deque[tuple[int, State]] = deque([(0, begin)])
    found = Explored()

    def way(at: int) -> list[str]:
        steps = []
        while at >= 0:
            at, label = parents[at]
            steps.append(label)
        return steps[::-1]

    def arrive(at: int, label: str, state: State) -> bool:
        """Whether it is another state than the one it came from."""
        key = world.key(state)
        there = ids.get(key)
        if there is None:
            there = ids[key] = len(parents)
            parents.append((at, label))
            back.append([])
            queue.append((there, state))
        back[there].append(at)
        return there != at

    while queue:
        at, state = queue.popleft()
        if world.most is not None and len(parents) > world.most:
            raise Violation(
                f"there are more than {world.most} states: something goes on for ever", way(at)
            )
        if world.finished(state):
            done.append(at)
            if world.over(state):
                continue
        label = ""
        try:
            moved = False
            for label, after in world.steps(state):
                moved = arrive(at, label, after) or moved
            for label, after in world.faults(state):
                arrive(at, label, after)
            if not moved and (passed := world.pass_time(state)) is not None:
                arrive(at, *passed)
        except Violation as violation:
            raise Violation(
                violation.what, [*way(at), *violation.way, world.report(state)]
            ) from violation
    found.states, found.finished = len(parents), len(done)
    _all_can_finish(back, done, way)
    return found


def _all_can_finish(
    back: list[list[int]], done: list[int], way: Callable[[int], list[str]]
) -> None:
    good = bytearray(len(back))
    stack = list(done)
    for at in done:
        good[at] = 1
    while stack:
        for before in back[stack.pop()]:
            if not good[before]:
                good[before] = 1
                stack.append(before)
    stuck = next((at for at in range(len(back)) if not good[at]), None)
    if stuck is not None:
        raise Violation(
            f"{len(back) - sum(good)} states from which not every message can finish, the first "
            "of them:",
            way(stuck),
        )
