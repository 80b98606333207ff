"""Query the state of a queue in SQL, without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from spark_mq.errors import CorruptLog, InvalidOption
from spark_mq.inspect.peek import shown_range
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.walk import range_of, walk
from spark_mq.maintenance.dead_letters import is_own_letter, letter_schema, letter_tables
from spark_mq.maintenance.remaining_letters import find_remaining
from spark_mq.operations.context import QueueContext
from spark_mq.operations.history import read_history
from spark_mq.parquet.reader import MessageReader, cut_rows, repeat_values, sequences_of
from spark_mq.parquet.schema import FILE_SCHEMA, INSTANT
from spark_mq.util.sql import TEXT_AND_BYTES, connect, problem_of, run_query
from spark_mq.util.validation import invalid

VIEWS: Final = ("messages", "ranges", "letters", "history")
_ROWS: Final = 50_000  # messages in memory at a time
_STATE: Final = pa.schema(
    [
        ("consumer_group", pa.string()), ("state", pa.string()), ("delivery_count", pa.int64()),
        ("failure_count", pa.int64()), ("lease_id", pa.string()), ("worker_id", pa.string()),
        ("leased_until", INSTANT), ("available_at", INSTANT), ("reason", pa.string()),
        ("error", pa.string()),
    ]
)  # fmt: skip
_RANGES: Final = pa.schema([*_STATE, *((n, pa.int64()) for n in ("first", "last", "messages"))])
_Shown = dict[str, Any]


def query(context: QueueContext, sql: str) -> pa.Table:
    """Return the result of a SELECT over the views. Raise InvalidOption."""
    connection = connect("sql", sql)
    import duckdb

    whole: Mapping[str, Callable[[QueueContext], pa.Table]] = {
        "ranges": _ranges, "letters": _letters, "history": read_history,
    }  # fmt: skip
    failed: list[Exception] = []
    try:
        kinds = [statement.type for statement in connection.extract_statements(sql)]
        if kinds != [duckdb.StatementType.SELECT]:
            raise _refusal(sql, "it is not one SELECT")
        names = set(re.findall(r"\w+", sql.lower()))  # those that are no views do no harm
        for name in names & whole.keys():
            _show(connection, name, whole[name](context))
        if "messages" in names:
            columns = _payload_columns(connection, sql)
            _show(connection, "messages", _messages(context, columns, sql, failed))
    except (duckdb.Error, TypeError) as error:
        raise _refusal(sql, str(error).partition("\n")[0].rstrip(".!")) from None
    try:
        return run_query(lambda: connection.sql(sql).to_arrow_table(), connection)
    except duckdb.Error as error:
        if failed:  # a read of messages did, and DuckDB has only its text
            raise failed[0] from None
        raise _refusal(sql, problem_of(error)) from None


def _refusal(sql: str, problem: str) -> InvalidOption:
    return invalid(
        "sql",
        sql,
        f"cannot be run: {problem}. Give one SELECT over the views {', '.join(VIEWS)}, such as "
        "SELECT state, count(*) FROM messages GROUP BY state",
    )


def _show(connection: Any, name: str, rows: Any) -> None:
    """Let a view have some rows. The payload is a text in `value`, and has its bytes in `bytes`."""
    connection.register(f"_{name}", rows)
    columns = TEXT_AND_BYTES if "value" in rows.schema.names else "*"
    connection.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT {columns} FROM _{name}")


def _payload_columns(connection: Any, sql: str) -> list[str]:
    """Return the columns of a payload that a query needs: without the others, it means the same."""
    import duckdb

    def columns_with(names: list[str]) -> list[str]:
        _show(connection, "messages", _messages_schema(names).empty_table())
        columns: list[str] = connection.sql(sql).columns
        return columns

    given, needed = columns_with(FILE_SCHEMA.names), []
    for column in FILE_SCHEMA.names:
        try:
            same = columns_with([name for name in FILE_SCHEMA.names if name != column]) == given
        except duckdb.Error:
            same = False
        if not same:
            needed.append(column)
    return needed


def _messages_schema(columns: list[str]) -> pa.Schema:
    payload = [FILE_SCHEMA.field(name) for name in columns]
    return pa.schema([pa.field("sequence", pa.int64()), *payload, *_STATE])


def _ranges(context: QueueContext) -> pa.Table:
    rows = [{"messages": count, **shown} for count, shown in _walked(context)]
    return pa.Table.from_pylist(rows, _RANGES)


def _walked(context: QueueContext) -> Iterator[tuple[int, _Shown]]:
    low = context.horizon() + 1
    for group in context.groups():
        ledger = group.current()
        index = group.index_for(ledger)
        for piece in walk(ledger, index, context.now(), low):
            shown = shown_range(piece.state, range_of(piece, ledger, index))
            place = {"first": piece.first, "last": piece.last, "consumer_group": group.name}
            yield index.count(piece.first, piece.last), {**shown, **place}


def _messages(context: QueueContext, columns: list[str], sql: str, failed: list[Exception]) -> Any:
    """Return the messages: read once while the query runs, or all of them for several reads."""
    schema = _messages_schema(columns)
    reader = MessageReader(context.messages.files, columns) if columns else None
    index = context.messages.index()

    def batches() -> Iterator[pa.RecordBatch]:
        for _, shown in _walked(context):
            for piece in index.slices(shown["first"], shown["last"]):
                for part in cut_rows(piece, _ROWS):
                    yield from _rows(reader, part, shown, schema).to_batches()

    def noted() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches()
        except Exception as error:
            failed.append(error)
            raise

    if sql.lower().count("messages") > 1:
        return pa.Table.from_batches(batches(), schema)
    return pa.RecordBatchReader.from_batches(schema, noted())


def _rows(reader: MessageReader | None, part: FileSlice, shown: _Shown, schema: pa.Schema) -> Any:
    """Return messages of a slice. Those that cannot be read have no payload."""
    try:
        payload = None if reader is None else reader.read(part)
    except CorruptLog:
        payload = None
    known = set() if payload is None else set(payload.schema.names)

    def column(field: pa.Field) -> Any:
        if field.name == "sequence":
            return sequences_of([part])
        if payload is not None and field.name in known:
            return payload[field.name].cast(field.type)
        return repeat_values([shown.get(field.name)], [part.rows], field.type)

    return pa.table([column(field) for field in schema], schema=schema)


def _letters(context: QueueContext) -> pa.Table:
    letters = context.existing_dead_letters()
    tables = [letter_schema().empty_table()]
    if letters is not None:
        index, intervals = find_remaining(letters)
        for table in letter_tables(letters.messages, index, intervals, _ROWS, skip=True):
            tables.append(table.filter(is_own_letter(context, table)))
    return pa.concat_tables(tables)
