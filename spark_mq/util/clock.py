"""Convert instants and read the clock. Instants and durations are integers of microseconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Final

from spark_mq.errors import InvalidOption, SparkMQError

SECOND: Final = 1_000_000
MICROSECOND: Final = timedelta(microseconds=1)  # a timedelta // MICROSECOND is an integer

EARLIEST: Final = -62_135_596_800 * SECOND  # the first of a datetime, the start of year 1
LATEST: Final = 253_402_300_800 * SECOND - 1  # the last of a datetime, the end of year 9999

Clock = Callable[[], datetime]  # returns the current time as an aware datetime

Duration = float | int | str | timedelta  # seconds, a timedelta, or text such as "30s", "5m", "7d"

_AGREEMENT_SECONDS: Final = 1.0  # two clocks disagree if what they measured differs by more

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def system_clock() -> datetime:
    """Return this machine's time. A module's function can be pickled with a queue."""
    return datetime.now(UTC)


def to_micros(instant: datetime, option: str = "datetime") -> int:
    """Convert an aware datetime to microseconds since 1970-01-01 UTC. Raise InvalidOption."""
    if instant.tzinfo is None:
        raise InvalidOption(
            f"{option}={instant!r} has no time zone: use datetime.now(timezone.utc) or another "
            "aware datetime",
            option=option,
            value=instant,
        )
    try:
        delta = instant.astimezone(UTC) - _EPOCH
    except OverflowError:
        raise InvalidOption(
            f"{option}={instant!r} is out of range in UTC: use years 1 to 9999",
            option=option,
            value=instant,
        ) from None
    return delta // MICROSECOND


def to_datetime(instant: int) -> datetime:
    """Convert microseconds since 1970 to an aware UTC datetime."""
    return _EPOCH + timedelta(microseconds=instant)


def optional_datetime(instant: int | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


@cache
def require_zones() -> None:
    """Raise SparkMQError if Python cannot read the times of Arrow, which are in UTC."""
    from zoneinfo import ZoneInfo  # slow to load

    try:
        ZoneInfo("UTC")
    except (LookupError, OSError, ValueError) as error:
        raise SparkMQError(
            "this Python finds no time zone, not even UTC, so it cannot read the times in a "
            "queue. Install the package tzdata, or set PYTHONTZPATH to a folder of time zones"
        ) from error


def to_seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


@dataclass(frozen=True, slots=True)
class Instant:
    """A time by two clocks, in seconds."""

    running: float
    wall: float


class ElapsedClock:
    """Measure the time since an instant, even if the machine was suspended since.

    ``time.monotonic()`` stops in a suspend. So two other clocks are read, which must agree: the
    wall clock, and one that nobody sets and that counts a suspend, if the system has such a clock.
    """

    def __init__(
        self, running: Callable[[], float] | None = None, wall: Callable[[], float] = time.time
    ) -> None:
        self._running, self._wall = running or _running_clock(), wall

    def now(self) -> Instant:
        return Instant(self._running(), self._wall())

    def since(self, instant: Instant | None) -> float:
        """Return the seconds since an instant, or infinity if nobody knows."""
        if instant is None:
            return float("inf")
        # The clocks disagree if one of them was set, or did not count a pause.
        running, wall = self._running() - instant.running, self._wall() - instant.wall
        return max(running, wall) if abs(running - wall) < _AGREEMENT_SECONDS else float("inf")


def _running_clock() -> Callable[[], float]:
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):  # macOS has the second: it counts a sleep
        with contextlib.suppress(AttributeError, OSError):
            clock = partial(time.clock_gettime, getattr(time, name))
            clock()
            return clock
    return time.monotonic
