"""The clocks of a machine that a test moves, and times as the tables have them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from spark_mq.util.clock import ElapsedClock

__all__ = ["PAUSES", "SECOND", "MachineClocks", "instant"]

SECOND: Final = 1_000_000
"""The tables count in microseconds since 1970."""


def instant(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


class MachineClocks:
    """A clock that is never set, and the wall clock, in seconds."""

    def __init__(self) -> None:
        self.running, self.wall = 1_000.0, 1_700_000_000.0
        self.elapsed = ElapsedClock(lambda: self.running, lambda: self.wall)

    def move(self, running: float, wall: float) -> None:
        self.running += running
        self.wall += wall


PAUSES: Final = {
    "a suspend": (3600.0, 3600.0),
    "a suspend that only the wall clock shows": (0.1, 3600.0),
    "a wall clock that was set back": (3600.0, -30.0),
    "a wall clock that was set to before the suspend": (3600.0, 0.0),
}
"""What an hour of sleep may look like: how far the two clocks move."""
