"""Query the state of a queue in SQL, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from spark_mq.errors import CorruptLog, InvalidOption
from spark_mq.inspect.peek import shown_range
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.walk import range_of, walk
from spark_mq.maintenance.dead_letters import is_own_letter, letter_schema, letter_tables
from spark_mq.maintenance.find_letters import find_remaining
from spark_mq.operations.context import QueueContext
from spark_mq.operations.history import read_history
from spark_mq.parquet.reader import MessageReader, repeat_values, sequences_of
from spark_mq.parquet.schema import FILE_SCHEMA, INSTANT
from spark_mq.util.sql import TEXT_AND_BYTES, connect, interrupted_by, problem_of
from spark_mq.util.validation import short_repr

__all__ = ["VIEWS", "query"]

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

    try:
        kinds = [statement.type for statement in connection.extract_statements(sql)]
        if kinds != [duckdb.StatementType.SELECT]:
            raise _refusal(sql, "it is not one SELECT")
        names = set(re.findall(r"\w+", sql.lower()))  # those that are no views do no harm
        _show(connection, "messages", _messages_schema(FILE_SCHEMA.names).empty_table())
        for name, schema in (("ranges", _RANGES), ("letters", letter_schema())):
            _show(connection, name, schema.empty_table())
        _show(connection, "history", _history(context).slice(0, 0) if "history" in names else None)
        columns = _payload_columns(connection, sql) if "messages" in names else []
    except (duckdb.Error, TypeError) as error:
        raise _refusal(sql, str(error).partition("\n")[0].rstrip(".!")) from None
    failed: list[Exception] = []
    if "messages" in names:
        _show(connection, "messages", _messages(context, columns, sql, failed))
    if "ranges" in names:
        rows = [{"messages": n, **shown} for n, shown in _ranges(context)]
        _show(connection, "ranges", pa.Table.from_pylist(rows, _RANGES))
    if "letters" in names:
        _show(connection, "letters", _letters(context))
    if "history" in names:
        _show(connection, "history", _history(context))
    try:
        with interrupted_by(None, connection):
            return connection.sql(sql).to_arrow_table()
    except duckdb.Error as error:
        if failed:  # a read of messages did, and DuckDB has only its text
            raise failed[0] from None
        raise _refusal(sql, problem_of(error)) from None


def _refusal(sql: str, problem: str) -> InvalidOption:
    return InvalidOption(
        f"sql={short_repr(sql)} cannot be run: {problem}. Give one SELECT over the views "
        f"{', '.join(VIEWS)}, such as SELECT state, count(*) FROM messages GROUP BY state",
        option="sql",
        value=sql,
    )


def _show(connection: Any, name: str, rows: Any, without: str | None = None) -> None:
    """Let a view have some rows. The payload is a text in `value`, and has its bytes in `bytes`."""
    if rows is None:
        return
    connection.register(f"_{name}", rows)
    has_value = "value" in rows.schema.names and without != "value"
    columns = TEXT_AND_BYTES if has_value else f"* EXCLUDE ({without})" if without else "*"
    if has_value and without:
        columns = columns.replace("*", f"* EXCLUDE ({without})", 1)
    connection.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT {columns} FROM _{name}")


def _payload_columns(connection: Any, sql: str) -> list[str]:
    """Return the columns of a payload that a query needs: without the others, it means the same."""
    import duckdb

    empty = _messages_schema(FILE_SCHEMA.names).empty_table()
    names, needed = connection.sql(sql).columns, []
    for column in FILE_SCHEMA.names:
        _show(connection, "messages", empty, without=column)
        try:
            same = connection.sql(sql).columns == names
        except duckdb.Error:
            same = False
        if not same:
            needed.append(column)
    return needed


def _messages_schema(columns: list[str]) -> pa.Schema:
    payload = [FILE_SCHEMA.field(name) for name in columns]
    return pa.schema([pa.field("sequence", pa.int64()), *payload, *_STATE])


def _ranges(context: QueueContext) -> Iterator[tuple[int, _Shown]]:
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
        for _, shown in _ranges(context):
            for piece in index.slices(shown["first"], shown["last"]):
                for start in range(0, piece.rows, _ROWS):
                    part = piece.part(start, min(_ROWS, piece.rows - start))
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
        _, intervals = find_remaining(letters)
        for table in letter_tables(letters.messages, intervals, _ROWS, skip=True):
            tables.append(table.filter(is_own_letter(context, table)))
    return pa.concat_tables(tables)


def _history(context: QueueContext) -> pa.Table:
    return read_history(context)
