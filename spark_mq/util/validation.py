"""Validate arguments and options.

Each function returns the clean value. For an invalid one it raises
:class:`~spark_mq.errors.InvalidOption`, which names the option, the value and the fix.
"""

from __future__ import annotations

import difflib
import inspect
import operator
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from numbers import Real
from typing import Any, Final, TypeGuard

from spark_mq.errors import InvalidOption, shorten
from spark_mq.util.clock import SECOND, to_micros
from spark_mq.util.failures import safe_repr, safe_text

# The shortest durations, by option. With leases of "1ms" all messages would die of expiries before
# a handler sees them, and with such a retention they would be lost.
SHORTEST: Final = {
    **dict.fromkeys(("visibility_timeout", "visibilityTimeout"), "1s"),
    **dict.fromkeys(("max_lease_duration", "maxLeaseDuration", "--every"), "1s"),
    **dict.fromkeys(("max_retry_age", "message_ttl", "dedup_window"), "1s"),
    **dict.fromkeys(("breaker_reset_timeout", "breaker_max_wait"), "1s"),
    "hard_retention": "1m",
    "history_retention": "1h",
    "group_expiry": "1h",
    "timeout": "10ms",
}

RESERVED_PREFIX: Final = "__"  # start of names that only spark_mq uses

MAX_ERROR_LENGTH: Final = 2_000  # characters of a failure's text that the ledger keeps

_MAX_NAME: Final = 32  # bytes that may still be a name in the wrong type
_MAX_SHOWN: Final = 200  # characters of a value that an error message shows

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DURATION = re.compile(
    r"\s*(\d+(?:\.\d+)?)\s*"
    r"(us|ms|s|m|h|d|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|milliseconds?)?\s*",
    re.IGNORECASE,
)
_SHOWN_DURATION = re.compile(r"(?:(\d+)d ?)?(?:(\d+)h ?)?(?:(\d+)m ?)?(?:(\d+(?:\.\d+)?)s)?")
_UNITS: Final = {
    "us": 1,
    "ms": 1_000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
    "d": 86_400 * SECOND,
}
_BYTES: Final = {
    "": 1,
    "b": 1,
    "k": 2**10,
    "kb": 2**10,
    "m": 2**20,
    "mb": 2**20,
    "g": 2**30,
    "gb": 2**30,
}
_MAX_DURATION: Final = 100 * 365 * 86_400 * SECOND


def short_repr(value: Any) -> str:
    """Return repr() of a value for error messages: short, and without payloads."""
    some = islice(value, 10) if isinstance(value, list | tuple | set | frozenset) else [value]
    if any(is_message(item) or _may_be_payload(item) for item in some):
        return f"<{type(value).__name__}>"
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to convert very large integers to text.
        if isinstance(value, int):
            return f"a number of {value.bit_length()} bits"
        return f"a {type(value).__name__} with a very large number"
    except BaseException:
        text = safe_repr(value)
    return shorten(text, _MAX_SHOWN)


def _may_be_payload(value: Any) -> bool:
    return isinstance(value, bytes | bytearray | memoryview) and len(value) > _MAX_NAME


def is_message(value: Any) -> bool:
    """Return whether a value has a payload, as the messages of a lease and those to publish."""
    return hasattr(type(value), "__dataclass_fields__") and hasattr(value, "value")


def plain_number(value: Any) -> Any:
    """Return a number of NumPy or Arrow as one of Python. Anything else stays as it is."""
    if value is None or isinstance(value, bool | int | float | str | bytes | timedelta):
        return value
    with suppress(Exception):  # a user's type may raise anything
        return operator.index(value)
    if hasattr(value, "as_py"):
        return value.as_py()
    if type(value).__name__ == "timedelta64":
        return value.astype("timedelta64[us]").item()
    return float(value) if isinstance(value, Real) else value


def plain_values(values: Any) -> Any:
    """Return an array of NumPy or Arrow as a list. Anything else stays as it is."""
    for name in ("to_pylist", "tolist"):
        if callable(convert := getattr(values, name, None)):
            return convert()
    return values


def invalid(option: str, value: Any, problem: str) -> InvalidOption:
    """Return the error for a value. `problem` says what is wrong with it, and the fix."""
    text = f"{option}={short_repr(value)} {problem}"
    return InvalidOption(text, option=option, value=value)


def validate_options(value: Any) -> dict[str, str]:
    """Validate that storage options are a mapping, or None. The error shows none of them."""
    if value is not None and not isinstance(value, Mapping):
        kind = type(value).__name__
        text = f"storage_options is a {kind}: give a mapping, such as {{'region': 'eu-west-1'}}"
        raise InvalidOption(text, option="storage_options", value=kind)
    return dict(value or {})


def validate_error(value: Any, option: str = "error") -> str | None:
    """Validate the text of a failure or of another reason. None is valid."""
    if value is None or isinstance(value, str):
        return value
    raise invalid(option, value, "is not text: give a str, for example str(exception)")


def truncate_error(text: str) -> str:
    # Characters without a UTF-8 form are replaced, so that no settle fails because of its text.
    return text[:MAX_ERROR_LENGTH].encode("utf-8", "replace").decode("utf-8")


def validate_duration(option: str, value: Any, *, zero: bool = False) -> int:
    """Return the microseconds of seconds, a timedelta, or text like "30s", "250ms" or "2d 3h".

    Some options have a shortest duration, because a shorter one would do harm.
    """
    result: float | None = None
    number = plain_number(value)
    if isinstance(number, timedelta):
        result = number.total_seconds() * SECOND
    elif isinstance(number, int | float) and not isinstance(number, bool):
        result = number * SECOND
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        unit = (match[2] or "s").lower()
        if unit not in _UNITS:
            unit = "ms" if unit.startswith("milli") else unit[0]
        result = float(match[1]) * _UNITS[unit]
    elif isinstance(value, str) and value and (match := _SHOWN_DURATION.fullmatch(value)):
        result = sum(float(match[at] or 0) * _UNITS[unit] for at, unit in enumerate("dhms", 1))
    # "not (a <= b)" and not "a > b", so that NaN is invalid.
    if result is None or not (0 <= result <= _MAX_DURATION) or (round(result) == 0 and not zero):
        least = "zero or more" if zero else "more than zero"
        raise invalid(
            option,
            value,
            f"is not a duration: give {least} as seconds, a timedelta, or text like '30s', '5m', "
            "'7d'",
        )
    shortest = SHORTEST.get(option)
    if shortest and round(result) < validate_duration("shortest", shortest):
        raise invalid(option, value, f"is too short: give {shortest} or more")
    return round(result)


def whole_number(text: str | None) -> int | None:
    """Return a text of 1 to 18 digits as a number, which fits into 64 bits, or None."""
    return int(text) if text and re.fullmatch("[0-9]{1,18}", text) else None


def is_name(value: Any) -> TypeGuard[str]:
    """Return whether a value could name a group, worker or producer."""
    valid = isinstance(value, str) and _NAME.fullmatch(value) is not None
    return valid and not value.startswith(RESERVED_PREFIX)


def validate_name(option: str, value: Any) -> str:
    """Validate a name of a group, worker or producer."""
    if not is_name(value):
        raise invalid(
            option,
            value,
            "is not a valid name: use 1 to 128 letters, digits, '.', '_' or '-', not starting with "
            f"'{RESERVED_PREFIX}'",
        )
    return value


def validate_group(option: str, value: Any) -> str:
    """Validate the name of a group. It names folders, so it must not end with a dot."""
    name = validate_name(option, value)
    if name.endswith("."):
        raise invalid(
            option,
            name,
            "ends with a dot. A group names folders, and object stores refuse or rename such "
            "folders: give it a name with another end",
        )
    return name


def validate_text(option: str, value: Any) -> str:
    if not isinstance(value, str):
        raise invalid(option, value, "is not text: give a str")
    return value


def validate_lease_id(value: Any) -> str:
    """Validate a lease id. Only the ledger knows whether the lease exists."""
    if not isinstance(value, str) or not value.isascii() or not value:
        text = "is not a lease id: give the lease_id of a Lease, or of its rows"
        raise invalid("lease_id", value, text)
    return value


def validate_count(
    option: str, value: Any, *, least: int = 1, most: int = 2**31 - 1, text: bool = True
) -> int:
    """Validate a whole number. With `text` also as digits, because Spark's options are text."""
    number = plain_number(value)
    if text and isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,30}\s*", value):
        number = int(value)
    whole = isinstance(number, int) and not isinstance(number, bool)
    if not whole or not (least <= number <= most):
        problem = f"is not valid: give a whole number from {least} to {most:,}"
        raise invalid(option, value, problem)
    return number


def validate_callable(option: str, value: Any, *takes: str) -> None:
    """Validate that a value can be called with these positional arguments."""
    # Without this check the mistake would look like a failure of each message.
    wanted = f"{option}({', '.join(takes)})"
    if not callable(value):
        raise invalid(option, value, f"is not callable: give a function ({', '.join(takes)})")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return  # some builtins have no signature
    try:
        signature.bind(*takes)
    except TypeError as error:
        shown = safe_text(signature)  # which asks the defaults for their repr()
        text = f"has the signature {shown} and cannot be called as {wanted}: {error}"
        raise invalid(option, value, text) from None


def validate_position(option: str, value: Any) -> str | int | datetime:
    """Validate a position in the log, also as text, because Spark's options are text."""
    value = plain_number(value)
    if isinstance(value, str):
        if value.lower() in ("earliest", "latest"):
            return value.lower()
        if value.isdigit():
            return validate_count(option, value, least=0, most=2**63 - 1)
        try:
            instant = datetime.fromisoformat(value)
            if instant.tzinfo is not None:
                to_micros(instant)
                return instant
        except ValueError:  # InvalidOption is a ValueError
            pass
    elif isinstance(value, datetime):
        to_micros(value, option)
        return value
    elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    raise invalid(
        option,
        value,
        "is not valid: use earliest, latest, a sequence, or an instant with a zone like "
        "2026-01-31T12:00:00Z",
    )


def validate_rate(option: str, value: Any) -> float:
    value = plain_number(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300:
        return float(value)
    raise invalid(option, value, "is not a rate: give messages a second, more than 0")


def validate_fraction(option: str, value: Any) -> float:
    value = plain_number(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise invalid(option, value, "is not a fraction: give a number from 0 to 1")


def validate_size(option: str, value: Any) -> int:
    """Validate a number of bytes, more than 0. Text like "64m" or "1g" is valid too."""
    value = plain_number(value)
    given = isinstance(value, int | str) and not isinstance(value, bool)
    text = str(value).strip().lower() if given else ""
    digits = text.rstrip("bkmg")
    unit = text[len(digits) :]
    if re.fullmatch("[0-9]{1,18}", digits) and int(digits) > 0 and unit in _BYTES:
        return int(digits) * _BYTES[unit]
    raise invalid(option, value, "is not a size: use bytes, or text like '64m' or '1g'")


def validate_choice(option: str, value: Any, choices: Iterable[str]) -> str:
    """Validate one of some words in upper or lower case. Return the choice's spelling."""
    known = list(choices)
    for choice in known:
        if isinstance(value, str) and value.lower() == choice.lower():
            return choice
    hint = suggest(safe_text(value), known)
    suffix = f" (did you mean {hint!r}?)" if hint else ""
    raise invalid(option, value, f"is not valid: use one of {', '.join(known)}{suffix}")


def suggest(word: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """Return the known word nearest to a misspelt one, or None if none is `alike`, from 0 to 1."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=alike)
    return by_lower[close[0]] if close else None


def parse_instant(name: str, text: str) -> datetime:
    """Return an instant with a zone, or raise InvalidOption."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        example = "2026-01-31T12:00:00Z"
        raise invalid(name, text, f"is not an instant: give one with a zone, as {example}")
    return instant


def parse_until(name: str, text: str | None) -> datetime | str | None:
    """Return what a person typed as the end of a pause: an instant, or a duration as text."""
    return parse_instant(name, text) if text is not None and ":" in text else text
