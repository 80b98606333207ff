"""Lines: how a commit that keeps losing races gets its turn, without a lock that a dead process could leave behind.

An optimistic commit loses for ever against a neighbour that commits as often as it takes: of 8 processes that leased and acked without
a pause, four got one lease in 6 seconds (benchmarks/README.md). Those on one machine stand in line at a door (:mod:`spark_mq.doors`).
For the others, a loser takes a *ticket*, the next number of its line, in a commit of its own that collides with no ledger's; and
whoever sees a ticket that has not been served takes one too. The commit that follows marks its ticket as served.

A line only says who tries next. What is right is still decided by the compare-and-swap: one who jumps the queue costs a race, and one
who dies in it a moment (`Turn.courtesy`) of the others.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

__all__ = ["EVERYONE", "Line", "Turn"]

EVERYONE: Final = "*"
"""The line of those who need the whole table unchanged. All the other lines give way to it."""

LEAST_COURTESY, MOST_COURTESY = 0.5, 10.0
"""Bounds, in seconds, of how long the front of a line may keep the others waiting."""


class Line(Protocol):
    """What a store knows of its lines."""

    pace: float
    """Seconds that a commit has taken of late."""
    given_up: dict[str, int]
    """By line: tickets up to here have been waited for long enough."""

    def line(self, name: str) -> tuple[int, int]:
        """The last ticket taken and the last one served, as of the last look at the table; zeros where nobody ever had to wait."""

    def look(self) -> bool:
        """Looks at the table again, where that is needed. Whether anything has changed."""

    def take_ticket(self, name: str) -> int | None:
        """Takes the next ticket. None where others were faster."""

    def leave_line(self, name: str, ticket: int) -> None:
        """Marks a ticket as served that turned out not to be needed. Raises nothing: at worst the others wait for a moment."""


class Turn:
    """One change's place in the line `name`."""

    def __init__(self, store: Line, name: str) -> None:
        self.store, self.name = store, name
        self.ticket: int | None = None

    @property
    def courtesy(self) -> float:
        """Seconds that a line may stand still until those behind pass its front by."""
        return min(MOST_COURTESY, max(LEAST_COURTESY, 5 * self.store.pace))

    def take_ticket(self) -> None:
        """Gets in line, unless it stands there."""
        if self.ticket is None:
            self.ticket = self.store.take_ticket(self.name)

    @property
    def place(self) -> tuple[str, int] | None:
        """Line and ticket, where it had to get in line."""
        return None if self.ticket is None else (self.name, self.ticket)

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the line where it still stands there: there was nothing to commit, or it failed."""
        if self.ticket is not None:
            self.store.leave_line(self.name, self.ticket)

    def was_served(self) -> None:
        """It has committed, and said so."""
        self.ticket = None

    def has_come(self, deadline: float) -> bool:
        """Whether to commit now. False: it waited, so what was read is old. ``deadline``: by time.monotonic()."""
        if time.monotonic() > deadline:
            return True  # a last try
        if self.name != EVERYONE and self._waits(EVERYONE, None):
            return self._wait(EVERYONE, None, deadline)
        if not self._waits(self.name, self.ticket):
            return True
        if self.ticket is None:
            self.take_ticket()
            return False
        return self._wait(self.name, self.ticket, deadline)

    def _waits(self, name: str, ticket: int | None) -> bool:
        return self._ahead(name, ticket) > 0

    def _ahead(self, name: str, ticket: int | None) -> int:
        """How many stand in front of a ticket, or in the whole line."""
        taken, served = self.store.line(name)
        passed = max(served, self.store.given_up.get(name, 0))
        return (taken if ticket is None else ticket - 1) - passed

    def _wait(self, name: str, ticket: int | None, deadline: float) -> bool:
        """Until nobody is in front any more, or the line has stood still for too long. False."""
        patience, served = time.monotonic() + self.courtesy, self.store.line(name)[1]
        while (ahead := self._ahead(name, ticket)) > 0 and time.monotonic() < deadline:
            if time.monotonic() > patience:
                # Whoever is in front is gone, or too slow: for this store, once and for all.
                self.store.given_up[name] = self.store.line(name)[0] if ticket is None else ticket - 1
                break
            # Those further behind look less often: a look costs what a commit needs, too.
            time.sleep(min(0.5, max(0.001, self.store.pace * (0.1 + 0.5 * (ahead - 1)))))
            if self.store.look() and (now_served := self.store.line(name)[1]) != served:
                patience, served = time.monotonic() + self.courtesy, now_served
        return False
