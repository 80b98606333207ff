"""Show values as HTML tables in a notebook. Every value is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_mq.util.show import show_duration

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["environment", "object_html", "rows_html", "show"]

MAX_ROWS: Final = 50  # of a table
MAX_TEXT: Final = 200  # characters of a value


def environment(folder: Path) -> Environment:
    """Return the templates of a folder. They escape each value, and replace hidden characters."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to load

    return Environment(
        autoescape=True,
        auto_reload=False,
        finalize=_finalize,
        loader=FileSystemLoader(folder),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )


def _finalize(value: Any) -> Any:
    """Return a value as its template prints it. HTML stays as it is."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else _visible(str(value))


def _visible(text: str) -> str:
    """Return a text without characters that hide or reorder others. Lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else "�" for one in text)


def rows_html(rows: Iterable[Any], columns: Sequence[str] | None = None, title: str = "") -> str:
    """Return mappings or dataclasses as a table. Default: the columns with a value in some row."""
    found = [_mapping(row) for row in rows]
    shown = found[:MAX_ROWS]
    names = columns or _columns(shown)
    more = len(found) - len(shown)
    return str(_macro("rows")(title, names, shown, more))


def object_html(value: Any, title: str = "") -> str:
    """Return a dataclass or a mapping as a table of two columns."""
    return str(_macro("object")(title, _mapping(value)))


@cache
def _macro(name: str) -> Any:
    made = environment(Path(__file__).parent)
    made.filters.update(columns=_columns, mapping=_mapping, show=show)
    made.tests.update(record=_is_record, records=_are_records, instant=_is_instant)
    return getattr(made.get_template("notebook.html").module, name)


def show(value: Any) -> str:
    """Return a value as text. Bytes that are no UTF-8 become hex digits."""
    text = _text(value)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def _text(value: Any) -> str:  # noqa: PLR0911 - one line for each kind
    match value:
        case None:
            return "-"
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return "0x" + value[:MAX_TEXT].hex()
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        case timedelta():
            return show_duration(_rounded(value))
        case float():
            return f"{value:,.1f}"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{name}: {show(one)}" for name, one in value.items())
        case (int(first), int(last)) if isinstance(value, tuple):  # of message sequences
            return f"{first} to {last}"
        case list() | tuple():
            return ", ".join(map(show, value))
        case _:
            return str(value)


def _rounded(duration: timedelta) -> timedelta:
    """Return a duration in whole seconds, below a minute in milliseconds."""
    step = timedelta(seconds=1) if duration >= timedelta(minutes=1) else timedelta(milliseconds=1)
    return round(duration / step) * step


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _are_records(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_record, value))


def _is_instant(value: Any) -> bool:
    return isinstance(value, datetime)


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
