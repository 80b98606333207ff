"""Check that the columns of a table can be published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from spark_mq.errors import InvalidSchema
from spark_mq.parquet.schema import DEDUP_FIELD, MESSAGE_SCHEMA
from spark_mq.util.validation import suggest

__all__ = ["PUBLISH_COLUMNS", "check_publishable", "simple_type"]

PUBLISH_COLUMNS: Final = (*MESSAGE_SCHEMA.names, DEDUP_FIELD.name)


# The types of whole numbers, as Spark and Arrow name them.
_WHOLE_NUMBERS: Final = (
    *("tinyint", "smallint", "int", "bigint"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


def check_publishable(columns: Mapping[str, str]) -> None:
    """Raise InvalidSchema if columns of some simple types cannot be published."""
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
    others = {"headers": "map<string,string>", "priority": "int"}
    wanted = "timestamp" if name.endswith("_at") else others.get(name, "string")
    if name == "priority" and kind in _WHOLE_NUMBERS:
        return
    if name != "value" and kind.replace(" ", "") != wanted:
        raise InvalidSchema(f"column {name!r} is {kind}, not {wanted}: cast it", column=name)


def simple_type(kind: pa.DataType) -> str:
    """Return Spark's simple name of a type that messages use."""
    of = pa.types
    if of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind):
        return "string"
    if of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind):
        return "binary"
    if of.is_fixed_size_binary(kind):
        return "binary"
    if of.is_timestamp(kind) and kind.tz:
        return "timestamp"
    if of.is_map(kind):
        return f"map<{simple_type(kind.key_type)},{simple_type(kind.item_type)}>"
    return str(kind)
