"""Define results that notebooks show as HTML tables, and that convert to tables of other libraries.

Every value in HTML is escaped.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from spark_mq.util.show import show_cell, show_count, show_duration

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_ROWS: Final = 50  # of a table
MAX_TEXT: Final = 200  # characters of a value
MAX_BYTES: Final = 32  # of a value that isn't text

T = TypeVar("T")


def environment(package: str, folder: str = "") -> Environment:
    """Return the templates of a package, which escape each value and replace hidden characters."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to load

    return Environment(
        autoescape=True,
        auto_reload=False,
        finalize=_finalize,
        loader=PackageLoader(package, folder),
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
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def rows_html(rows: Iterable[Any], columns: Sequence[str] | None = None, title: str = "") -> str:
    """Return mappings or dataclasses as a table. Default: the columns with a value in some row."""
    mappings = [_mapping(row) for row in rows]
    return str(_macro("rows")(title, columns, mappings[:MAX_ROWS], len(mappings) - MAX_ROWS))


def table_html(table: pa.Table, title: str = "") -> str:
    """Return the first rows of an Arrow table as a table."""
    rows = table.slice(0, MAX_ROWS).to_pylist(maps_as_pydicts="lossy")
    return str(_macro("rows")(title, None, rows, table.num_rows - MAX_ROWS))


def object_html(value: Any, title: str = "") -> str:
    """Return a dataclass or a mapping as a table of two columns."""
    return str(_macro("object")(title, _mapping(value)))


@cache
def _macro(name: str) -> Any:
    made = environment(__package__)
    made.filters.update(columns=_columns, mapping=_mapping, show=show)
    made.filters.update(side=_side, sides=_sides)
    made.tests.update(record=_is_record, records=_are_records, instant=_is_instant)
    made.globals.update(count=show_count, most=MAX_ROWS)
    return getattr(made.get_template("notebook.html").module, name)


def show(value: Any, name: str = "") -> str:
    """Return the value of a field as text. Other bytes than text become hex digits."""
    text = _text(value, name)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def _text(value: Any, name: str) -> str:  # noqa: PLR0911 - one line for each kind
    match value:
        case bytes():
            return _payload(value)
        case timedelta():
            return show_duration(_rounded(value))
        case Mapping():
            return ", ".join(f"{key}: {show(item, str(key))}" for key, item in value.items()) or "-"
        case (int(first), int(last)) if isinstance(value, tuple):  # of message sequences
            return f"{first} to {last}"
        case list() | tuple():
            # Whole numbers in a list are sequences.
            shown = (str(item) if type(item) is int else show(item) for item in value)
            return ", ".join(shown) or "-"
        case None | datetime() | int() | float():
            return show_cell(value, name)
        case _:
            return str(value)


def _payload(value: bytes) -> str:
    """Return the text of a payload, or the first of its bytes in hex with their number."""
    with contextlib.suppress(UnicodeDecodeError):
        text = value.decode()
        if _visible(text) == text:
            return text
    more = "…" if len(value) > MAX_BYTES else ""
    return f"0x{value[:MAX_BYTES].hex()}{more} ({show_count(len(value), 'byte')})"


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


def _side(value: Any) -> str:
    """Return the side of a cell: the right one for numbers."""
    return "right" if isinstance(value, int | float) and not isinstance(value, bool) else "left"


def _sides(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, str]:
    """Return the side of each column, which a number in some row decides."""
    seen = {name: {_side(row.get(name)) for row in rows} for name in names}
    return {name: "right" if "right" in sides else "left" for name, sides in seen.items()}


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns with a value in some row, in their order."""
    names = dict.fromkeys(name for row in rows for name in row)
    filled = [name for name in names if any(row.get(name) not in (None, {}, ()) for row in rows)]
    return filled or list(names)


def _mapping(row: Any) -> Mapping[str, Any]:
    if _is_record(row):
        return {field.name: getattr(row, field.name) for field in fields(row)}
    mapping: Mapping[str, Any] = row
    return mapping


class Converts:
    """Conversions of an object with rows."""

    __slots__ = ()

    def _rows(self) -> Sequence[Any]:
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        """Return the rows as a ``pyarrow.Table``."""
        return to_table(self._rows())

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises ModuleNotFoundError without pandas."""
        _load("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the rows as a polars DataFrame. Raises ModuleNotFoundError without polars."""
        return _load("polars").from_arrow(self.to_arrow())


class ArrowRows(Converts):
    """Hold a ``pyarrow.Table`` and show it in a notebook. It has the attributes of the table."""

    __slots__ = ("_table",)

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # none of the table's, and none before __init__
            raise AttributeError(name)
        return getattr(self._table, name)

    def __getitem__(self, key: Any) -> Any:
        return self._table[key]

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return repr(self._table)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """Return the table."""
        return self._table

    def _repr_html_(self) -> str:
        return table_html(self._table)


class Record(Converts):
    """A dataclass that is one row, with a table for notebooks."""

    __slots__ = ()

    def _rows(self) -> Sequence[Any]:
        return [self]

    def _repr_html_(self) -> str:
        return object_html(self, type(self).__name__)


class Records(Converts, list[T]):
    """A list of dataclasses with a table for notebooks."""

    def _rows(self) -> Sequence[Any]:
        return self

    def _repr_html_(self) -> str:
        return rows_html(self)


def with_attributes(owner: type[T], texts: Mapping[str, str]) -> type[T]:
    """Return a class whose docstring describes its attributes, too."""
    rows = [inspect.cleandoc(owner.__doc__ or ""), "", "Attributes", "----------"]
    for name, text in texts.items():
        rows += [name, f"    {text}"]
    owner.__doc__ = "\n".join(rows)
    return owner


def to_table(rows: Sequence[Any]) -> pa.Table:
    """Return dataclasses of one kind as a table. Without rows it has no columns."""
    names = [field.name for field in fields(rows[0])] if rows else []
    return pa.table({name: _column([getattr(row, name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    known = next((value for value in values if value is not None), None)
    if isinstance(known, Mapping):
        pairs = [None if mapping is None else list(mapping.items()) for mapping in values]
        return pa.array(pairs, pa.map_(pa.string(), pa.string()))
    if isinstance(known, datetime):
        return pa.array(values, pa.timestamp("us", tz="UTC"))
    if isinstance(known, tuple):
        return pa.array([None if items is None else list(map(_plain, items)) for items in values])
    return pa.array(values)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value


def _load(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the result cannot be converted: {name} is not installed. Run: pip install {name}",
            name=name,
        ) from error
