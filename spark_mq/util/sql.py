"""Run SQL in DuckDB over the tables that it is given: it reaches no file and no network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_mq.errors import InvalidOption
from spark_mq.util.error_shape import error_shapes
from spark_mq.util.validation import short_repr, suggest

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_CONFIG: Final[dict[str, Any]] = {
    "threads": "1",
    "memory_limit": "1GB",
    "enable_external_access": "false",
    "temp_directory": "",
    "python_enable_replacements": "false",  # a table is never a variable of the caller
}
# DuckDB casts bytes to a text with escapes, without a word. So a function never gets bytes by
# mistake: `value` is the text.
TEXT_AND_BYTES: Final = "* REPLACE (TRY(decode(value)) AS value), value AS bytes"
_NO_VALUE: Final = "* EXCLUDE (value), value AS bytes"
_INTERRUPT_SECONDS: Final = 0.05  # between two looks at a stop event


def connect(option: str, value: object, instead: str = "") -> DuckDBPyConnection:
    """Return a connection with the function error_shape. Raise InvalidOption without DuckDB."""
    try:
        import duckdb
    except ImportError:
        raise InvalidOption(
            f"{option}={short_repr(value)} is SQL, which needs duckdb. "
            f"Run: pip install 'spark-mq[sql]'{instead}",
            option=option,
            value=value,
        ) from None
    connection = duckdb.connect(":memory:", config=_CONFIG)
    connection.create_function(
        "error_shape", _shapes, ["VARCHAR"], "VARCHAR", type="arrow", null_handling="special"
    )  # type: ignore[call-overload]
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


def _shapes(texts: Any) -> pa.Array:
    return error_shapes(texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts)


def run_query(
    query: Callable[[], Any], connection: DuckDBPyConnection, stop: threading.Event | None = None
) -> Any:
    """Run a query in a thread, and interrupt it by Ctrl-C or once `stop` is set.

    In the calling thread, Ctrl-C would wait for the query: nothing interrupts it, and its
    connection ends only after it.
    """
    with ThreadPoolExecutor(1, "spark_mq sql") as pool:
        result = pool.submit(query)
        try:
            while not wait([result], _INTERRUPT_SECONDS).done:
                if stop is not None and stop.is_set():
                    connection.interrupt()
        except BaseException:
            while not wait([result], _INTERRUPT_SECONDS).done:
                connection.interrupt()
            raise
        return result.result()


class FailsForMessage(Exception):
    """An expression fails for a message. The text names the kind of error, and no values."""


class Expression:
    """A SQL expression over the columns of messages.

    In SQL, `value` is a text, or null if it is not in UTF-8, and `bytes` has its bytes. Raises
    InvalidOption when it is made, unless the type of the results is one of `types`. `example`
    stands in the errors. With `keeps_null`, an expression that uses `value` is null where that is,
    because functions such as json_merge_patch make something of a null.
    """

    def __init__(
        self,
        option: str,
        text: str,
        schema: pa.Schema,
        types: Collection[str],
        *,
        example: str,
        instead: str,
        keeps_null: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self._option, self._given, self._example = option, text, example
        self._names, self._stop = [*schema.names, "bytes"], stop
        if not text.strip():
            raise self.refusal("it is empty")
        if "\0" in text:
            raise self.refusal("it has a NUL character, for which SQL has chr(0)")
        self._sql = text.removeprefix("\ufeff")
        self._connection = connect(option, text, instead)
        import duckdb

        self._error = duckdb.Error
        empty = schema.empty_table()
        try:
            kind = str(self._relation(empty, self._sql).types[0])
            if keeps_null and self._uses_value(empty):
                self._sql = f"CASE WHEN value IS NOT NULL THEN ({self._sql}\n) END"
        except (duckdb.Error, TypeError) as error:  # a TypeError for invalid Unicode
            raise self.refusal(self._without_values(error)) from None
        if kind not in types:
            raise self.refusal(f"its values are {kind}, and must be {' or '.join(types)}")

    @property
    def stopped(self) -> bool:
        """Whether the stop event is set. Then the values are not to be used."""
        return self._stop is not None and self._stop.is_set()

    def values(self, rows: pa.Table, *, lenient: bool = False) -> pa.Array:
        """Return a value for each row. Raise FailsForMessage, or leave a null if `lenient`."""
        try:
            sql = f"TRY({self._sql}\n)" if lenient else self._sql
            query = partial(self._column, rows, sql)
            column = run_query(query, self._connection, self._stop)
        except self._error as error:
            if self.stopped:
                return pa.nulls(rows.num_rows)
            raise FailsForMessage(problem_of(error)) from None
        if len(column) != rows.num_rows:
            raise self.refusal("it gives several values for a message")
        return column

    def _column(self, rows: pa.Table, sql: str) -> pa.Array:
        return self._relation(rows, sql).to_arrow_table().column(0).combine_chunks()

    def _relation(self, rows: pa.Table, sql: str) -> Any:
        from duckdb import SQLExpression

        given = self._connection.from_arrow(rows)
        return given.project(TEXT_AND_BYTES).project(SQLExpression(sql))

    def _uses_value(self, empty: pa.Table) -> bool:
        try:
            self._connection.from_arrow(empty).project(_NO_VALUE).project(self._sql)
        except self._error:
            return True
        return False

    def _without_values(self, error: Exception) -> str:
        """Return what is wrong with the expression itself. There were no rows to quote."""
        if isinstance(error, TypeError):
            return "it isn't valid Unicode text"
        text = str(error).partition("\n")[0].rstrip(".!")
        _, quoted, rest = text.partition('Referenced column "')
        name = rest.partition('"')[0]
        hint = suggest(name, self._names) if quoted else None
        return f"{text} (did you mean {hint!r}?)" if hint else text

    def fails(self, error: FailsForMessage) -> InvalidOption:
        return self.refusal(f"{error} for a message, so put TRY(...) around what may fail")

    def refusal(self, problem: str) -> InvalidOption:
        return InvalidOption(
            f"{self._option}={short_repr(self._given)} cannot be run: {problem}. Give SQL like "
            f'"{self._example}". The columns are {", ".join(self._names)}',
            option=self._option,
            value=self._given,
        )


def problem_of(error: Exception) -> str:
    """Return the kind of an error of DuckDB, because its text may quote a payload."""
    return f"DuckDB raised {type(error).__name__}"
