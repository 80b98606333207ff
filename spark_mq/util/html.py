"""Show values as HTML tables in a notebook. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from spark_mq.util.markup import Html, el, join
from spark_mq.util.show import show_duration

__all__ = ["object_html", "rows_html", "show"]

MAX_ROWS: Final = 50  # of a table
MAX_TEXT: Final = 200  # characters of a value
_LEFT: Final = "text-align:left"


def show(value: Any) -> str:
    """Return a value as text. Bytes that are no UTF-8 become hex digits."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = "0x" + value[:MAX_TEXT].hex()
    elif isinstance(value, datetime):
        text = f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    elif isinstance(value, timedelta):
        text = show_duration(_rounded(value))
    elif isinstance(value, float):
        text = f"{value:,.1f}"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int):
        text = str(value)
    elif isinstance(value, Mapping):
        text = ", ".join(f"{name}: {show(one)}" for name, one in value.items())
    elif _is_interval(value):
        text = f"{value[0]} to {value[1]}"
    elif isinstance(value, list | tuple):
        text = ", ".join(map(show, value))
    else:
        text = str(value)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def _rounded(duration: timedelta) -> timedelta:
    """Return a duration in whole seconds, below a minute in milliseconds."""
    step = timedelta(seconds=1) if duration >= timedelta(minutes=1) else timedelta(milliseconds=1)
    return round(duration / step) * step


def _is_interval(value: Any) -> bool:
    """Return whether a value is a pair of message sequences."""
    return isinstance(value, tuple) and len(value) == 2 and all(type(one) is int for one in value)


def rows_html(rows: Iterable[Any], columns: Sequence[str] | None = None, title: str = "") -> Html:
    """Return mappings or dataclasses as a table. Default: the columns with a value in some row."""
    found = [_mapping(row) for row in rows]
    shown = found[:MAX_ROWS]
    names = columns or _columns(shown)
    head = el("tr", [el("th", name, style=_LEFT) for name in names])
    body = [el("tr", [_cell(row.get(name)) for name in names]) for row in shown]
    more = el("p", f"and {len(found) - MAX_ROWS} more") if len(found) > MAX_ROWS else None
    table = join(el("table", el("thead", head), el("tbody", body)), more)
    return join(_caption(title), table if found else el("p", "none"))


def object_html(value: Any, title: str = "") -> Html:
    """Return a dataclass or a mapping as a table of two columns."""
    rows = [
        el("tr", el("th", str(name), style=_LEFT), _cell(one))
        for name, one in _mapping(value).items()
    ]
    return join(_caption(title), el("table", el("tbody", rows)))


def _cell(value: Any) -> Html:
    style = f"{_LEFT};white-space:nowrap" if isinstance(value, datetime) else _LEFT
    return el("td", _inner(value) or show(value), style=style)


def _inner(value: Any) -> Html | None:
    """Return a value that is itself a table, or None if it is a text."""
    if _is_record(value):
        return object_html(value)
    if isinstance(value, list | tuple) and value and all(map(_is_record, value)):
        return rows_html(value)
    return None


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _caption(title: str) -> Html | None:
    return el("p", el("b", title)) if title else None


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns with a value in some row, in their order."""
    names = dict.fromkeys(name for row in rows for name in row)
    filled = [name for name in names if any(row.get(name) not in (None, {}, ()) for row in rows)]
    return filled or list(names)


def _mapping(row: Any) -> Mapping[str, Any]:
    if _is_record(row):
        return {one.name: getattr(row, one.name) for one in fields(row)}
    mapping: Mapping[str, Any] = row
    return mapping
