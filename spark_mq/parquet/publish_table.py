"""Check that messages can be published, and fill in their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidSchema
from spark_mq.ledger.slots import MAX_PRIORITY
from spark_mq.parquet.schema import DEDUP_FIELD, INSTANT, MESSAGE_SCHEMA
from spark_mq.util.clock import EARLIEST, LATEST, SECOND
from spark_mq.util.columns import random_ids
from spark_mq.util.validation import short_repr, suggest

_PUBLISH_SCHEMA: Final = MESSAGE_SCHEMA.append(DEDUP_FIELD)
PUBLISH_COLUMNS: Final = (*MESSAGE_SCHEMA.names, DEDUP_FIELD.name)
_HEADERS: Final = pa.map_(pa.string(), pa.string())
_HEADER_PAIRS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
# The simple types of columns, the usual one first. Further ones of key and headers are Kafka's, and
# those of priority are whole numbers as Spark and Arrow name them.
_TYPES: Final[Mapping[str, Sequence[str]]] = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "headers": (
        "map<string,string>",
        "array<struct<key:string,value:binary>>",
        "array<struct<key:string,value:string>>",
    ),
    "priority": (
        *("int", "tinyint", "smallint", "bigint"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    ),
}


def complete_table(table: pa.Table, now: int, times: Mapping[str, int]) -> pa.Table:
    """Return a table with all columns, ids and times (microseconds). Raise InvalidSchema."""
    table = table.rename_columns([column_name(name) for name in table.schema.names])
    _check_table(table)
    table = _with_ids(_with_headers(table))
    if "published_at" not in table.schema.names:
        table = _with(table, "published_at", _repeated_instant(now, table.num_rows))
    for name, at in times.items():
        if name in table.schema.names:
            given = _cast(table[name], MESSAGE_SCHEMA.field(name))
            table = _with(table, name, given.fill_null(pa.scalar(at, pa.int64()).cast(INSTANT)))
        else:
            table = _with(table, name, _repeated_instant(at, table.num_rows))
    _check_priorities(table)
    _check_headers(table)
    for name in table.schema.names:
        table = _with(table, name, _cast(table[name], _PUBLISH_SCHEMA.field(name)))
    _check_instants(table)
    return _due_at_once(table, now)


def _check_table(table: pa.Table) -> None:
    names = table.schema.names
    for name in names:
        if names.count(name) > 1:
            raise InvalidSchema(f"column {name!r} is there twice: keep one", column=name)
    kinds = zip(names, table.schema.types, strict=True)
    check_publishable({name: _simple_type(kind) for name, kind in kinds})
    if nulls := table["value"].null_count:
        raise InvalidSchema(
            f"{nulls} values are null: a message needs a value. It may be empty", column="value"
        )


def column_name(name: str) -> str:
    """Return the name of a message's column, which is given in any case. Others stay."""
    return name.lower() if name.lower() in PUBLISH_COLUMNS else name


def _with_headers(table: pa.Table) -> pa.Table:
    """Return a table whose headers are maps, even if they are arrays of names and values."""
    if "headers" not in table.schema.names or pa.types.is_map(table["headers"].type):
        return table
    chunks = [_as_maps(chunk) for chunk in table["headers"].chunks]
    return _with(table, "headers", pa.chunked_array(chunks, type=_HEADERS))


def _as_maps(headers: pa.Array) -> pa.Array:
    """Return Kafka's arrays of names and values as maps. The last value of a name counts."""
    try:
        pairs = headers.cast(_HEADER_PAIRS)
    except pa.ArrowException as error:
        raise InvalidSchema(
            "column 'headers' has bytes that are not UTF-8 text: encode or drop them",
            column="headers",
        ) from error
    flat = pairs.flatten()
    names, values = (flat.field(field) for field in ("key", "value"))
    if names.null_count or flat.null_count:
        raise InvalidSchema("column 'headers' has a header without a name", column="headers")
    rows = pa.table({"row": pc.list_parent_indices(pairs), "name": names})
    if rows.group_by(["row", "name"]).aggregate([]).num_rows < len(names):
        maps = [
            None if row is None else list({pair["key"]: pair["value"] for pair in row}.items())
            for row in pairs.to_pylist()
        ]
        return pa.array(maps, _HEADERS)
    ends = pc.cumulative_sum(pc.list_value_length(pairs).fill_null(0))
    offsets = pa.concat_arrays([pa.array([0], ends.type), ends])
    return pa.MapArray.from_arrays(offsets, names, values, mask=pairs.is_null())


def _with_ids(table: pa.Table) -> pa.Table:
    """Give a random id to each message without one."""
    if "message_id" not in table.schema.names:
        return _with(table, "message_id", random_ids(table.num_rows))
    given = table["message_id"]
    if not given.null_count:
        return table
    ids = pc.coalesce(given.cast(pa.string()), random_ids(table.num_rows))
    return _with(table, "message_id", ids)


def _check_instants(table: pa.Table) -> None:
    for name in (name for name in table.schema.names if name.endswith("_at")):
        ends = pc.min_max(table[name].cast(pa.int64())).as_py()
        if ends["min"] is not None and not EARLIEST <= ends["min"] <= ends["max"] <= LATEST:
            raise InvalidSchema(
                f"column {name!r} has an instant out of range: use years 1 to 9999", column=name
            )


def _check_priorities(table: pa.Table) -> None:
    if "priority" not in table.schema.names:
        return
    ends = pc.min_max(table["priority"]).as_py()
    if ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] <= MAX_PRIORITY:
        wrong = ends["min"] if ends["min"] < 0 else ends["max"]
        raise InvalidSchema(
            f"column 'priority' has the value {wrong}: give whole numbers from 0 to "
            f"{MAX_PRIORITY}, or null for 0",
            column="priority",
        )


def _check_headers(table: pa.Table) -> None:
    """Refuse null values, as ``Message(headers=...)`` does. Nulls of rows are no headers."""
    chunks = table["headers"].chunks if "headers" in table.schema.names else ()
    for chunk in (chunk for chunk in chunks if chunk.items.null_count):  # or of a slice's rest
        names = (name for pairs in chunk.to_pylist() for name, text in pairs or () if text is None)
        for name in names:
            raise InvalidSchema(
                f"column 'headers' has a null value for {short_repr(name)}: leave the header out, "
                "such as by map_filter(headers, (name, value) -> value IS NOT NULL)",
                column="headers",
            )


def _due_at_once(table: pa.Table, now: int) -> pa.Table:
    """Round a passed deliver_at of this second down, because readers round up to the next one."""
    if "deliver_at" not in table.schema.names:
        return table
    at, second = table["deliver_at"].cast(pa.int64()), pa.scalar(now - now % SECOND, pa.int64())
    passed = pc.and_(pc.greater(at, second), pc.less_equal(at, now))
    if not pc.any(passed).as_py():
        return table
    return _with(table, "deliver_at", pc.if_else(passed, second, at).cast(INSTANT))


def _repeated_instant(at: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(at, pa.int64()).cast(INSTANT), rows)


def _cast(column: pa.ChunkedArray, wanted: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(wanted.type)
    except pa.ArrowException as error:
        raise InvalidSchema(
            f"column {wanted.name!r} has a value that {wanted.type} cannot hold: change or drop it",
            column=wanted.name,
        ) from error


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    if name in table.schema.names:
        return table.set_column(table.schema.get_field_index(name), name, column)
    return table.append_column(name, column)


def check_publishable(columns: Mapping[str, str]) -> None:
    """Raise InvalidSchema if columns of some simple types cannot be published."""
    columns = {column_name(name): kind for name, kind in columns.items()}
    if "value" not in columns:
        hint = suggest("value", columns)
        fix = f"rename {hint!r}?" if hint else "build one, e.g. to_json(struct('*')) AS value"
        raise InvalidSchema(f"there is no column 'value' to publish: {fix}", column="value")
    if columns["value"] not in ("string", "binary"):
        raise InvalidSchema(
            f"column 'value' is {columns['value']}, not string or binary: cast it, or use "
            f"to_json for a struct",
            column="value",
        )
    for name, kind in columns.items():
        _check_column(name, kind)


def _check_column(name: str, kind: str) -> None:
    if name not in PUBLISH_COLUMNS:
        hint = suggest(name, PUBLISH_COLUMNS)
        fix = f"did you mean {hint!r}?" if hint else "put it into value or headers, or drop it"
        raise InvalidSchema(
            f"column {name!r} is not one of a message ({', '.join(PUBLISH_COLUMNS)}): {fix}",
            column=name,
        )
    usual = "timestamp" if name.endswith("_at") else "string"
    types = _TYPES.get(name, (usual,))
    if kind.replace(" ", "") not in types:
        raise InvalidSchema(f"column {name!r} is {kind}, not {types[0]}: cast it", column=name)


def _simple_type(kind: pa.DataType) -> str:
    """Return Spark's simple name of a type that messages use."""
    of = pa.types
    if of.is_map(kind):
        return f"map<{_simple_type(kind.key_type)},{_simple_type(kind.item_type)}>"
    if of.is_list(kind):
        return f"array<{_simple_type(kind.value_type)}>"
    if of.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{_simple_type(field.type)}' for field in kind)}>"
    return _plain_type(kind)


def _plain_type(kind: pa.DataType) -> str:
    of = pa.types
    if of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind):
        return "string"
    if of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind):
        return "binary"
    if of.is_fixed_size_binary(kind):
        return "binary"
    return "timestamp" if of.is_timestamp(kind) and kind.tz else str(kind)
