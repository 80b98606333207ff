"""What comes in from outside is checked here, once: durations, names, counts and option names.

Each check returns the clean value or raises :class:`~spark_mq.errors.InvalidOption` naming option, value and fix.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from spark_mq.errors import InvalidOption

__all__ = [
    "RESERVED_PREFIX",
    "check_callable",
    "check_choice",
    "check_count",
    "check_duration",
    "check_error",
    "check_lease_id",
    "check_name",
    "check_position",
    "check_rate",
    "check_share",
    "check_size",
    "error_text",
    "micros",
    "nearest",
    "shown",
    "to_datetime",
]

SECOND: Final = 1_000_000
"""One second in microseconds, the unit of every instant and duration inside spark_mq."""

RESERVED_PREFIX: Final = "__"

LONGEST_ERROR: Final = 2_000
"""Characters of an error's text that its messages keep."""

EARLIEST: Final = -62_135_596_800 * SECOND
LATEST: Final = 253_402_300_800 * SECOND - 1
"""The first and the last microsecond that a datetime can tell: years 1 to 9999."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|seconds?|minutes?|hours?|days?|milliseconds?)?\s*", re.IGNORECASE)
_UNITS: Final = {"us": 1, "ms": 1_000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86_400 * SECOND}
_BYTES: Final = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_LONGEST: Final = 100 * 365 * 86_400 * SECOND


def micros(instant: datetime) -> int:
    """Microseconds since 1970-01-01 UTC of an aware datetime."""
    if instant.tzinfo is None:
        raise InvalidOption(
            f"{instant!r} has no time zone; use datetime.now(timezone.utc) or another aware datetime",
            option="datetime",
            value=instant,
        )
    try:
        delta = instant.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:
        raise InvalidOption(f"{instant!r} is out of range in UTC: use years 1 to 9999", option="datetime", value=instant) from None
    return (delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds


def to_datetime(instant: int) -> datetime:
    """The aware UTC datetime of microseconds since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant)


def shown(value: Any) -> str:
    """A value as an error tells it: not at any length."""
    try:
        text = repr(value)
    except ValueError:
        return f"a number of {value.bit_length()} bits"  # Python does not write out the longest
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def check_error(value: Any) -> str | None:
    """The text of a failure, or None."""
    if value is None or isinstance(value, str):
        return value
    raise InvalidOption(f"error={shown(value)} is no text: give str, say str(exception)", option="error", value=value)


def error_text(text: str) -> str:
    """As the ledger keeps it: not at any length, and what has no UTF-8 form replaced. No settle fails for its error's text."""
    return text[:LONGEST_ERROR].encode("utf-8", "replace").decode("utf-8")


def check_duration(option: str, value: Any, *, zero: bool = False) -> int:
    """A duration in microseconds from seconds (int, float), a timedelta, or text like "30s", "5m", "7d", "250ms"."""
    result: float | None = None
    if isinstance(value, timedelta):
        result = value.total_seconds() * SECOND
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = value * SECOND
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        unit = (match[2] or "s").lower()
        result = float(match[1]) * _UNITS[unit if unit in _UNITS else "ms" if unit.startswith("milli") else unit[0]]
    # "not (a <= b)" rather than "a > b": NaN must not pass.
    if result is None or not (0 <= result <= _LONGEST) or (round(result) == 0 and not zero):
        least = "zero or more" if zero else "more than zero"
        raise InvalidOption(
            f"{option}={shown(value)} is not a duration: give {least} as seconds, a timedelta, or text like '30s', '5m', '7d'",
            option=option,
            value=value,
        )
    return round(result)


def check_name(option: str, value: Any) -> str:
    """A name of a group, worker or producer: 1-128 of letters, digits, dot, underscore, hyphen."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value.startswith(RESERVED_PREFIX):
        raise InvalidOption(
            f"{option}={shown(value)} is not a valid name: use 1 to 128 letters, digits, '.', '_' or '-', "
            f"not starting with '{RESERVED_PREFIX}'",
            option=option,
            value=value,
        )
    return value


def check_lease_id(value: Any) -> str:
    """What a lease gave as its ``lease_id``; whether there is such a lease only the ledger knows."""
    if not isinstance(value, str) or not value:
        raise InvalidOption(
            f"lease_id={shown(value)} is not a lease id: give the lease_id of a Lease, or of its rows", option="lease_id", value=value
        )
    return value


def check_count(option: str, value: Any, *, least: int = 1, most: int = 2**31 - 1) -> int:
    """A whole number between `least` and `most`; text of digits is read as such (Spark's options are text)."""
    number = value
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,30}\s*", value):
        number = int(value)
    if not isinstance(number, int) or isinstance(number, bool) or not (least <= number <= most):
        raise InvalidOption(
            f"{option}={shown(value)} is not valid: give a whole number from {least} to {most:,}", option=option, value=value
        )
    return number


def check_callable(option: str, value: Any, *takes: str) -> None:
    """Whether something can be called with so many arguments, as far as its signature tells. Their names are for the error.

    Found only when it is called, the mistake would look like a failure of the messages, and each of them would die of it.
    """
    wanted = f"{option}({', '.join(takes)})"
    if not callable(value):
        raise InvalidOption(f"{option}={shown(value)} is not callable: give a function ({', '.join(takes)})", option=option, value=value)
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return  # of some things made in C it cannot be told
    try:
        signature.bind(*takes)
    except TypeError as error:
        raise InvalidOption(
            f"{option}={shown(value)} has the signature {signature} and cannot be called as {wanted}: {error}", option=option, value=value
        ) from None


def check_position(option: str, value: Any) -> str | int | datetime:
    """A place in the log: earliest, latest, a sequence, or an instant with a zone. All of them as text, too, as Spark's options are."""
    if isinstance(value, str):
        if value.lower() in ("earliest", "latest"):
            return value.lower()
        if value.isdigit():
            return check_count(option, value, least=0, most=2**63 - 1)
        try:
            instant = datetime.fromisoformat(value)
            if instant.tzinfo is not None:
                micros(instant)
                return instant
        except ValueError:  # InvalidOption is one, too
            pass
    elif isinstance(value, datetime):
        micros(value)
        return value
    elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    raise InvalidOption(
        f"{option}={shown(value)} is not valid: use earliest, latest, a sequence, or an instant with a zone like 2026-01-31T12:00:00Z",
        option=option, value=value,
    )  # fmt: skip


def check_rate(option: str, value: Any) -> float:
    """A number of messages a second, more than 0."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300:
        return float(value)
    raise InvalidOption(f"{option}={shown(value)} is not a rate: give messages a second, more than 0", option=option, value=value)


def check_share(option: str, value: Any) -> float:
    """A number from 0 to 1."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise InvalidOption(f"{option}={shown(value)} is not a share: give a number from 0 to 1", option=option, value=value)


def check_size(option: str, value: Any) -> int:
    """A number of bytes, more than none, from an int or text like "64m" or "1g"."""
    text = str(value).strip().lower() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    digits = text.rstrip("bkmg")
    if re.fullmatch("[0-9]{1,18}", digits) and int(digits) > 0 and text[len(digits) :] in _BYTES:
        return int(digits) * _BYTES[text[len(digits) :]]
    raise InvalidOption(f"{option}={shown(value)} is not a size: use bytes, or text like '64m' or '1g'", option=option, value=value)


def check_choice(option: str, value: Any, choices: Iterable[str]) -> str:
    """One of a few words, compared without case and returned in the spelling of `choices`."""
    known = list(choices)
    for choice in known:
        if isinstance(value, str) and value.lower() == choice.lower():
            return choice
    hint = nearest(str(value), known)
    raise InvalidOption(
        f"{option}={shown(value)} is not valid: use one of {', '.join(known)}" + (f" (did you mean {hint!r}?)" if hint else ""),
        option=option,
        value=value,
    )


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word nearest to a misspelt one, or None where nothing is near."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None
