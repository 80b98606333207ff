"""Compute the instants of a schedule, which of them are due, and their jitter.

Instants are microseconds since 1970. The instants follow from the rule and its time zone alone, so
all machines compute the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from spark_mq.errors import InvalidOption
from spark_mq.util.clock import LATEST, SECOND, to_datetime, to_micros
from spark_mq.util.show import show_count
from spark_mq.util.validation import invalid, short_repr, suggest, validate_duration

if TYPE_CHECKING:
    from cronsim import CronSim

CATCH_UP: Final = ("latest", "all", "none")
GRACE: Final = 15 * 60 * SECOND  # with catch_up="none", what is later than that is missed
MAX_JITTER: Final = 24 * 3600 * SECOND
_LEAST_EVERY: Final = SECOND
_SOME_DAY: Final = datetime(2000, 1, 1)
_CRON_HELP: Final = (
    "give five fields (minute, hour, day of month, month, day of week), such as '0 2 * * *'"
)
_CRON_FIELDS: Final = {
    "minute": "0 to 59, such as 30 or */15",
    "hour": "0 to 23, such as 2 or 9-17",
    "day of month": "1 to 31, such as 1 or 1,15, or L for the last",
    "month": "1 to 12 or JAN to DEC, such as */3",
    "day of week": "0 to 7 or SUN to SAT, such as MON-FRI, where 0 and 7 are Sunday",
}


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The rule from which the instants of a schedule follow: one of `cron` and `every`."""

    cron: str | None = None
    every: int | None = None
    timezone: str = "UTC"
    starts_at: int | None = None  # no instant is earlier. With `every`, it is the first one

    def after(self, instant: int) -> Iterator[int]:
        """Yield the instants after an instant, in order."""
        if self.starts_at is not None:
            instant = max(instant, self.starts_at - 1)
        return self._cron_after(instant) if self.every is None else self._every_after(instant)

    def latest(self, after: int, until: int) -> int | None:
        """Return the last instant after one and not later than another, or None."""
        near = max(after, self._near(until))
        last = None
        for instant in takewhile(lambda instant: instant <= until, self.after(near)):
            last = instant
        return last

    def _every_after(self, instant: int) -> Iterator[int]:
        period, first = self.every or 0, self.starts_at or 0
        at = first + ((instant - first) // period + 1) * period
        while at <= LATEST:
            yield at
            at += period

    def _cron_after(self, instant: int) -> Iterator[int]:
        for at in _walk(self._simulation(instant)):
            if at > instant:  # where clocks go back, it begins with the first of two equal times
                yield at

    def _near(self, until: int) -> int:
        """Return an instant shortly before the last one up to `until`, to start looking from."""
        if self.every is not None:
            return until - self.every
        # Where clocks go back, a walk backwards may miss instants, so it only gives the start.
        earlier = _walk(self._simulation(until, reverse=True))
        return next((instant - 1 for instant in earlier if instant <= until), -1)

    def _simulation(self, start: int, *, reverse: bool = False) -> CronSim:
        from cronsim import CronSim

        local = to_datetime(start).astimezone(ZoneInfo(self.timezone))
        return CronSim(self.cron or "", local, reverse=reverse)


def _walk(simulation: CronSim) -> Iterator[int]:
    while True:
        try:
            instant: datetime = next(simulation)
        except (StopIteration, OverflowError, ValueError):  # no match, or beyond year 9999
            return
        yield to_micros(instant)


def due_instants(rule: Recurrence, catch_up: str, done: int, now: int, most: int) -> list[int]:
    """Return the instants to publish now, the oldest first.

    Those up to `done` are published or skipped. "latest" returns the last one alone, "all" each of
    them, `most` at a time, and "none" those that are at most :data:`GRACE` late.
    """
    if catch_up == "latest":
        last = rule.latest(done, now)
        return [] if last is None else [last]
    if catch_up == "none":
        done = max(done, now - GRACE - 1)
    return list(islice(takewhile(lambda instant: instant <= now, rule.after(done)), most))


def jitter_of(name: str, instant: int, jitter: int) -> int:
    """Return the delay of an instant, at least 0 and less than `jitter`, the same everywhere."""
    if not jitter:
        return 0
    digest = blake2b(f"{name}/{instant}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % jitter


def validate_cron(value: Any) -> str:
    """Return a cron expression with single spaces. Raise InvalidOption."""
    from cronsim import CronSim, CronSimError

    if not isinstance(value, str) or not value.isascii():
        raise invalid("cron", value, f"is not a cron expression: {_CRON_HELP}")
    text = " ".join(value.split())
    fields = text.split()
    if (count := len(fields)) != len(_CRON_FIELDS):
        raise invalid("cron", value, f"has {show_count(count, 'field')}: {_CRON_HELP}")
    wrong = CronSimError, ValueError, AssertionError, RecursionError
    for at, (name, valid) in enumerate(_CRON_FIELDS.items()):
        alone = ["*"] * at + [fields[at]] + ["*"] * (len(fields) - at - 1)
        try:
            CronSim(" ".join(alone), _SOME_DAY)
        except wrong:
            raise invalid(
                "cron", value, f"has the {name} {short_repr(fields[at])}: give {valid}"
            ) from None
    try:
        next(CronSim(text, _SOME_DAY))  # within 50 years
    except (StopIteration, *wrong):
        text = "matches no date, such as 30 February: give a day that its month has"
        raise invalid("cron", value, text) from None
    return text


def validate_every(value: Any) -> int:
    """Return a period in microseconds, at least a second. Raise InvalidOption."""
    period = validate_duration("every", value)
    if period < _LEAST_EVERY:
        raise invalid("every", value, "is too short: give one second or more, such as '15m'")
    return period


def validate_jitter(value: Any, every: int | None) -> int:
    """Return a jitter in microseconds. Raise InvalidOption."""
    jitter = validate_duration("jitter", value, zero=True)
    if every is not None and jitter > every:
        # Messages would be delivered in another order than that of their instants.
        raise invalid("jitter", value, "is longer than every: give at most the period")
    if jitter > MAX_JITTER:
        raise invalid("jitter", value, "is too long: give at most one day")
    return jitter


def validate_timezone(value: Any) -> str:
    """Return the name of a time zone that this machine knows. Raise InvalidOption."""
    try:
        if isinstance(value, str):
            return ZoneInfo(value).key
    except (LookupError, ValueError, OSError):
        pass
    raise _unknown_zone(value)


def _unknown_zone(value: Any) -> InvalidOption:
    from zoneinfo import available_timezones

    known = available_timezones()
    nearest = suggest(str(value), sorted(known))
    hint = f"did you mean {nearest!r}?" if nearest else "give a name such as 'Europe/Berlin'"
    if not known:
        hint = "this machine has no time zones: install the package tzdata"
    return invalid("timezone", value, f"is not a time zone: {hint}")
