"""Choose messages by SQL, or by a Python function."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa

from spark_mq.errors import InvalidOption
from spark_mq.maintenance.dead_letters import letter_schema
from spark_mq.message import to_headers
from spark_mq.util.sql import Expression, FailsForMessage
from spark_mq.util.validation import short_repr

__all__ = ["Condition", "Where", "condition_of", "name_of"]

_EXAMPLE: Final = "reason = 'rejected'"


class Condition(ABC):
    """A way to choose rows. ``name`` stands in the changes that people made."""

    name: str
    may_fail = True  # at a letter, so a change tries it first
    stopped = False
    """Whether a stop event has ended it, so that nothing is chosen any more."""

    @abstractmethod
    def select(self, rows: pa.Table) -> pa.Table:
        """Return the rows for which the condition holds. Raises InvalidOption."""


Where: TypeAlias = str | Callable[[Mapping[str, Any]], object] | Condition
"""SQL, or a function that gets a row as a mapping and says whether to choose it."""


def condition_of(
    where: Where | None,
    schema: pa.Schema | None = None,
    example: str = _EXAMPLE,
    stop: threading.Event | None = None,
) -> Condition | None:
    """Return a condition over dead letters or another schema, or None. Raise InvalidOption."""
    if where is None or isinstance(where, Condition):
        return where
    if isinstance(where, str):
        return _Sql(where, letter_schema() if schema is None else schema, example, stop)
    if callable(where):
        return _Function(where)
    raise InvalidOption(
        f'where={short_repr(where)} is no condition: give SQL like "{example}", or a function of '
        "a mapping of the columns",
        option="where",
        value=where,
    )


def name_of(function: Callable[..., Any]) -> str:
    """Return the module and the name of a function."""
    names = (getattr(function, "__module__", None), getattr(function, "__qualname__", None))
    return ":".join(filter(None, names)) or type(function).__qualname__


class _Sql(Condition):
    def __init__(
        self, text: str, schema: pa.Schema, example: str, stop: threading.Event | None
    ) -> None:
        self.name = text
        self._expression = Expression(
            "where", text, schema, ("BOOLEAN",), example=example, stop=stop,
            instead=', or give a Python function, such as where=lambda row: row["key"] == "k"',
        )  # fmt: skip

    @property
    def stopped(self) -> bool:  # type: ignore[override]
        return self._expression.stopped

    def select(self, rows: pa.Table) -> pa.Table:
        try:
            mask = self._expression.values(rows)
        except FailsForMessage as error:
            raise self._expression.fails(error) from None
        return rows.slice(0, 0) if self.stopped else rows.filter(mask)


class _Function(Condition):
    def __init__(self, function: Callable[[Mapping[str, Any]], object]) -> None:
        self.name = name_of(function)
        self._function = function

    def select(self, rows: pa.Table) -> pa.Table:
        given = ({**row, "headers": to_headers(row["headers"])} for row in rows.to_pylist())
        return rows.filter(pa.array([bool(self._function(row)) for row in given], pa.bool_()))
