"""Show values to people, and as JSON."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_BARS: Final = "▁▂▃▄▅▆▇█"
_SHOWN_CHARACTERS: Final = 60  # of a payload
_CELL_CHARACTERS: Final = 2_000  # of a text in a table, as many as the ledger keeps of an error
_BEFORE_CHANGE: Final = 20  # characters before the first change of a payload
_ROWS_OF_VERSION: Final = 2**32  # sequences of one version of ``messages/``
_PLACE: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")


def show_number(value: float) -> str:
    """Return a number for people, with separators. A small rate must not look like zero."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if abs(value) >= 1 or not value else f"{value:.2g}"


def show_count(count: int, what: str) -> str:
    """Return a number of things, such as 1 message or 2,000 messages. `what` is one of them."""
    return f"{show_number(count)} {what}" + ("" if count == 1 else "s")


def show_short(number: float) -> str:
    """Return a number with three digits at most, such as 18k or 1.2M, for a rate that changes."""
    rounded = float(f"{number:.3g}")
    for power, unit in ((9, "G"), (6, "M"), (3, "k")):
        if rounded >= 10**power:
            return f"{rounded / 10**power:g}{unit}"
    return f"{rounded:g}"


def show_share(share: float) -> str:
    return f"{share:.1%}"


def show_size(size: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size / 2**power:,.1f} {unit}"
    return show_count(size, "byte")


def show_time(at: datetime | None) -> str:
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def show_moment(at: datetime) -> str:
    """Return a time with milliseconds, for events that follow each other."""
    shown = at.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds")
    return shown.replace("+00:00", "Z")


def show_position(position: str | int | datetime) -> str:
    """Return the target of a seek for people. An instant is in UTC."""
    if isinstance(position, datetime):
        return position.astimezone(UTC).isoformat(sep=" ").replace("+00:00", "Z")
    return str(position)


def show_sequence(number: int) -> str:
    """Return a sequence as version:row. Without a row it is the place before a version."""
    version, row = divmod(number, _ROWS_OF_VERSION)
    if number < 0:
        return "-"
    return f"before {version + 1}:0" if row == _ROWS_OF_VERSION - 1 else f"{version}:{row}"


def number_in(text: str) -> str:
    """Return a sequence that is written as version:row as digits. Other texts stay."""
    match = _PLACE.fullmatch(text)
    if match is None or int(match[2]) >= _ROWS_OF_VERSION:
        return text
    return str(int(match[1]) * _ROWS_OF_VERSION + int(match[2]))


def shell_command(*words: str) -> str:
    """Return a command of ``spark-mq`` for a text that also names the call in Python."""
    return f"`spark-mq {shlex.join(words)}`"


def show_duration(duration: timedelta | None) -> str:
    """Return a duration that somebody chose, exactly, such as 0.5s or 2d 3h."""
    if duration is None:
        return "-"
    minutes, seconds = divmod(duration - timedelta(duration.days), timedelta(minutes=1))
    parts = ((duration.days, "d"), (minutes // 60, "h"), (minutes % 60, "m"))
    shown = [f"{number}{unit}" for number, unit in parts if number]
    if seconds or not shown:
        shown.append(f"{seconds.total_seconds():.6f}".rstrip("0").rstrip(".") + "s")
    return " ".join(shown)


def show_age(age: timedelta | float | None) -> str:
    """Return a duration, or seconds, in its two greatest units, such as 3m 12s."""
    if age is None:
        return "-"
    whole = max(0, int(age.total_seconds() if isinstance(age, timedelta) else age))
    unit = 3600 if whole >= 86_400 else 60 if whole >= 3600 else 1
    return show_duration(timedelta(seconds=whole // unit * unit))


def show_took(duration: timedelta) -> str:
    """Return how long work took, below ten seconds in milliseconds."""
    if duration >= timedelta(seconds=10):
        return show_age(duration)
    return show_duration(timedelta(milliseconds=round(duration / timedelta(milliseconds=1))))


def show_bars(values: Iterable[float]) -> str:
    """Return a line of bars, one for each value. The greatest one is full."""
    given = list(values)
    most = max(given, default=0)
    steps = len(_BARS) - 1
    return "".join(_BARS[math.ceil(steps * max(0, n) / most) if most > 0 else 0] for n in given)


def show_value(value: bytes | None, limit: int = _SHOWN_CHARACTERS) -> str:
    if value is None:
        return "-"
    text = value[: 4 * limit].decode("utf-8", "replace")
    shown = printable(text)[:limit]
    return shown if len(text) <= limit and len(value) <= 4 * limit else shown + "…"


def show_change(before: bytes | None, after: bytes | None) -> tuple[str, str]:
    """Return two payloads as text from a little before the place where they differ."""
    if before is None or after is None:
        return show_value(before), show_value(after)
    old, new = (text.decode("utf-8", "replace") for text in (before, after))
    pairs = enumerate(zip(old, new, strict=False))
    changed = next((n for n, (left, right) in pairs if left != right), min(len(old), len(new)))
    start = max(0, changed - _BEFORE_CHANGE)
    if start == 0 or max(len(old), len(new)) <= _SHOWN_CHARACTERS:
        return show_value(before), show_value(after)
    shown = [f"...{show_value(text[start:].encode())}" for text in (old, new)]
    return shown[0], shown[1]


def show_name(name: str) -> str:
    return printable(name) if len(name) <= 200 else printable(name[:200]) + "…"


def printable(text: str) -> str:
    """Return a text without control characters, which could steer a terminal."""
    return "".join(c if c.isprintable() else "�" if c != "\n" else " " for c in text)


def bounded(value: Any) -> Any:
    """Return a value, or the start of a text that is too long for a cell."""
    if isinstance(value, str) and len(value) > _CELL_CHARACTERS:
        return value[:_CELL_CHARACTERS] + "…"
    return value


def encode_anything(*streams: Any) -> None:
    """Let streams escape the characters that their encoding lacks, instead of failing."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show_some(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first of some texts, and the number of the others."""
    more = len(texts) - most
    return separator.join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def show_cell(value: Any, name: str = "") -> str:
    """Return the value of a field as people see it. Its name says what a number stands for."""
    if value in ([], (), {}):
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name == "share":
            return show_share(value)
        return str(value) if _NO_QUANTITY.search(name) else show_number(value)
    for kind, show in _SHOWN:
        if isinstance(value, kind):
            return show(value)
    return printable(bounded(json.dumps(_plain(value))))


# Names of numbers that only tell things apart, which have no separators.
_NO_QUANTITY: Final = re.compile(
    r"(sequence|version|horizon|lane|head|first|last|newest|position|port|pid|process_id)$"
)
_SHOWN: Final[tuple[tuple[type, Callable[[Any], str]], ...]] = (
    (type(None), lambda _: "-"),
    (bool, lambda value: "yes" if value else "no"),
    (datetime, show_time),
    (timedelta, show_age),
    (bytes, show_value),
    (str, lambda value: printable(bounded(value))),
)


def json_line(value: Any, *, ascii: bool = False) -> str:
    """Return an object as one line of JSON, with times in UTC and durations in seconds."""
    text = json.dumps(_plain(value), ensure_ascii=ascii)
    if text.isprintable():
        return text
    # A terminal may show the line, so what could steer it is escaped, as JSON allows.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    convert = next((_JSON[kind] for kind in _JSON if isinstance(value, kind)), None)
    return value if convert is None else convert(value)


def _bytes_json(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _time_json(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


# Conversions of the types that JSON lacks.
_JSON: Final[Mapping[type, Callable[[Any], Any]]] = {
    bytes: _bytes_json,
    datetime: _time_json,
    timedelta: timedelta.total_seconds,
}
