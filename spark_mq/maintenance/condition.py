"""Choose messages by SQL, by a Python function, or dead letters by their fields."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidOption
from spark_mq.maintenance.dead_letters import letter_schema
from spark_mq.message import to_headers
from spark_mq.parquet.schema import INSTANT
from spark_mq.util.error_shape import error_shapes
from spark_mq.util.sql import Expression, FailsForMessage
from spark_mq.util.validation import short_repr

_TITLES: Final = {
    "died_in": "group", "reason": "reason", "shape": "failure", "key_prefix": "keys from",
    "message_id": "message id", "since": "leased since", "until": "leased before",
    "first": "from sequence", "last": "to sequence", "letters": "letters", "without": "without",
}  # fmt: skip

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
        f'where={short_repr(where)} is not a condition: give SQL like "{example}", or a function '
        "of a mapping of the columns",
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


@dataclass
class LetterFilter(Condition):
    """A condition by fields, of which those that are None do not count."""

    died_in: str | None = None  # the group
    reason: str | None = None
    shape: str | None = None  # of the error
    key_prefix: str | None = None
    message_id: str | None = None
    since: datetime | None = None  # of the last lease
    until: datetime | None = None  # exclusive
    first: int | None = None  # sequence in the queue
    last: int | None = None  # inclusive
    letters: tuple[int, ...] = ()  # sequences in the dead-letter queue
    without: tuple[str, ...] = ()  # of died_in, reason and shape: those that a letter lacks
    name: str = field(init=False)
    may_fail = False

    def __post_init__(self) -> None:
        given = ((each.name, getattr(self, each.name)) for each in fields(self) if each.init)
        parts = [
            f"{_TITLES[name]} {_shown(value)}" for name, value in given if value not in (None, ())
        ]
        self.name = ", ".join(parts) or "all letters"

    def select(self, rows: pa.Table) -> pa.Table:
        """Return the letters for which all fields hold."""
        mask = pa.array([True] * rows.num_rows, pa.bool_())
        for holds in self._tests(rows):
            mask = pc.and_(mask, holds)  # the filter drops nulls
        return rows.filter(mask)

    def _tests(self, rows: pa.Table) -> Iterator[Any]:
        texts = {"died_in": "consumer_group", "reason": "reason", "message_id": "message_id"}
        columns = {name: rows[column] for name, column in texts.items()}
        if self.shape is not None or "shape" in self.without:
            columns["shape"] = error_shapes(rows["error"].combine_chunks())
        for name, column in columns.items():
            if name in self.without:
                yield pc.is_null(column)
            elif (value := getattr(self, name)) is not None:
                yield pc.equal(column, value)
        if self.key_prefix is not None:
            yield pc.starts_with(rows["key"], self.key_prefix)
        if self.since is not None:
            yield pc.greater_equal(rows["last_leased_at"], pa.scalar(self.since, INSTANT))
        if self.until is not None:
            yield pc.less(rows["last_leased_at"], pa.scalar(self.until, INSTANT))
        if self.first is not None:
            yield pc.greater_equal(rows["sequence"], self.first)
        if self.last is not None:
            yield pc.less_equal(rows["sequence"], self.last)
        if self.letters:
            wanted = pa.array(self.letters, pa.int64())
            yield pc.is_in(rows["dead_letter_sequence"], value_set=wanted)


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
