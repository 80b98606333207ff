"""Define results that notebooks show and that convert to tables."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from importlib import import_module
from typing import Any, TypeVar

import pyarrow as pa

from spark_mq.util.html import object_html, rows_html

__all__ = ["Converts", "Record", "Records", "to_table", "with_attributes"]

T = TypeVar("T")


class Converts:
    """Conversions of an object with rows."""

    __slots__ = ()

    def _rows(self) -> Sequence[Any]:
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        """Return the rows as a ``pyarrow.Table``."""
        return to_table(self._rows())

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame.

        Raises
        ------
        ModuleNotFoundError
            pandas is not installed.
        """
        _load("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the rows as a polars DataFrame.

        Raises
        ------
        ModuleNotFoundError
            polars is not installed.
        """
        return _load("polars").from_arrow(self.to_arrow())


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
    names = [one.name for one in fields(rows[0])] if rows else []
    return pa.table({name: _column([getattr(row, name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    known = next((value for value in values if value is not None), None)
    if isinstance(known, Mapping):
        pairs = [None if one is None else list(one.items()) for one in values]
        return pa.array(pairs, pa.map_(pa.string(), pa.string()))
    if isinstance(known, datetime):
        return pa.array(values, pa.timestamp("us", tz="UTC"))
    if isinstance(known, tuple):
        return pa.array([None if one is None else list(map(_plain, one)) for one in values])
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
