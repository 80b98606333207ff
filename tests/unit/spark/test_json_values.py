"""How values of JSON fit a schema, and what is said about those that do not."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from support.tables import add_values

from spark_mq import InvalidOption, Queue
from spark_mq.spark import SparkMQDataSource

TOO_LARGE = "a number or a time is out of the range of its type"
NOON, NOON_Z = b'{"id": "2026-01-31T12:00:00"}', b'{"id": "2026-01-31T12:00:00Z"}'
ONE_HIGH = b'{"id": [{"price": 1}, {"price": "high"}]}'


def columns(*fields: tuple[Any, ...]) -> t.StructType:
    """Return columns. Spark needs a session to parse DDL, but not for the names of types."""
    schema = t.StructType()
    for field in fields:
        schema.add(*field)
    return schema


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "q", durable=False)


def parsed(
    queue: Queue, schema: t.StructType, *values: bytes | None
) -> tuple[list[Any], list[str | None]]:
    """Return the columns `data` and `data_error` of values that another Delta writer appends."""
    add_values(queue, *values)
    source = SparkMQDataSource({"path": queue.path, "valueSchema": "what Spark has parsed"})
    reader: Any = source.reader(t.StructType().add("data", schema).add("data_error", "string"))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()][-len(values) :]
    assert len(rows) == len(values)
    return [row["data"] for row in rows], [row["data_error"] for row in rows]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("id BIGINT NOT NULL, `a b` INT", "STRUCT<id BIGINT NOT NULL, `a b` INT>"),
        ("date DATE", "STRUCT<date DATE>"),
        ("`array` ARRAY<INT>", "STRUCT<`array` ARRAY<INT>>"),
        (" ARRAY<INT> ", " ARRAY<INT> "),
        ("decimal (4,1)", "decimal (4,1)"),
        ("string", "string"),
    ],
)
def test_a_schema_of_values_is_columns_or_one_type(text: str, kind: str) -> None:
    ddl = str(SparkMQDataSource({"path": "/q", "valueSchema": text}).schema())
    assert ddl.startswith("`sequence` bigint, `message_id` string, `key` string, `value` binary")
    assert "`published_at` timestamp_ltz" in ddl
    assert ddl.endswith(f", `data` {kind}, `data_error` STRING")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (columns(("v", t.VariantType())), "the type variant"),
        (columns(("m", t.MapType(t.IntegerType(), t.StringType()))), "the type map<int,string>"),
        (columns(("id", "integer"), ("id", "string")), "the field 'id' twice"),
        (t.ArrayType(t.DayTimeIntervalType()), "the type interval"),
    ],
)
def test_a_type_that_no_json_has_is_refused(schema: t.DataType, reason: str) -> None:
    source = SparkMQDataSource({"path": "/q", "valueSchema": "what Spark has parsed"})
    with pytest.raises(InvalidOption, match=f"valueSchema has {reason}"):
        source.reader(columns(("data", schema), ("data_error", "string")))


def test_an_empty_schema_of_values_is_refused() -> None:
    with pytest.raises(InvalidOption, match="valueSchema is empty"):
        SparkMQDataSource({"path": "/q", "valueSchema": " "}).schema()


def test_a_value_that_fits_has_its_types_and_a_missing_name_is_null(queue: Queue) -> None:
    value = {
        "i": 7, "d": 1, "n": "12.50", "s": "ä", "at": "2026-01-31T13:00:00+01:00",
        "local": "2026-01-31T12:00:00.5", "day": "2026-01-31", "raw": "AP8=",
        "list": [1, None], "map": {"a": True}, "unknown": [],
    }  # fmt: skip
    schema = columns(
        ("i", "byte"), ("d", "double"), ("n", "decimal(6,2)"), ("s", "string"),
        ("at", "timestamp"), ("local", "timestamp_ntz"), ("day", "date"), ("raw", "binary"),
        ("list", t.ArrayType(t.IntegerType())),
        ("map", t.MapType(t.StringType(), t.BooleanType())),
        ("missing", columns(("x", "integer"))),
    )  # fmt: skip
    expected = {
        "i": 7, "d": 1.0, "n": Decimal("12.50"), "s": "ä",
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "day": date(2026, 1, 31),
        "local": datetime(2026, 1, 31, 12, 0, 0, 500_000), "raw": b"\x00\xff",
        "list": [1, None], "map": [("a", True)], "missing": None,
    }  # fmt: skip
    assert parsed(queue, schema, json.dumps(value).encode()) == ([expected], [None])


ITEMS = t.ArrayType(columns(("price", "double")))
COUNTS = t.MapType(t.StringType(), t.IntegerType())


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("integer", None, "the value is null"),
        ("integer", b"", "not JSON: Input data was truncated"),
        ("integer", b'{"id": "\xff"}', "not JSON: byte 8 is not UTF-8"),
        ("double", b'{"id": NaN}', "not JSON: invalid character (byte 7)"),
        ("integer", b'{"x":' + b"[" * 100_000, "not JSON: it is nested too deeply"),
        ("integer", b"9" * 5_000, "Number out of range"),
        ("integer", b'{"id": "1"}', "Expected `int | null`, got `str` - at `$.id`"),
        ("integer", b'{"id": 2147483648}', "Expected `int` <= 2147483647 - at `$.id`"),
        ("byte", b'{"id": -129}', "Expected `int` >= -128 - at `$.id`"),
        ("long", b'{"id": 9223372036854775808}', TOO_LARGE),
        ("integer NOT NULL", b"{}", "Object missing required field `id`"),
        ("integer NOT NULL", b'{"id": null}', "Expected `int`, got `null` - at `$.id`"),
        ("float", b'{"id": 1e39}', "Expected `float` <= 3.4028234663852886e+38 - at `$.id`"),
        ("decimal(4,1)", b'{"id": 1.25}', TOO_LARGE),
        ("string", b'{"id": "\\ud800"}', "not JSON: Input data was truncated"),
        ("timestamp", NOON, "Expected `datetime` with a timezone component - at `$.id`"),
        ("timestamp_ntz", NOON_Z, "Expected `datetime` with no timezone component - at `$.id`"),
        (ITEMS, ONE_HIGH, "Expected `float | null`, got `str` - at `$.id[1].price`"),
        (COUNTS, b'{"id": {"secret": []}}', "Expected `int | null`, got `array` - at `$.id[...]`"),
    ],
)
def test_a_value_that_does_not_fit_has_a_reason_without_its_content(
    queue: Queue, kind: Any, value: bytes | None, error: str
) -> None:
    nullable = not str(kind).endswith(" NOT NULL")
    field = ("id", kind if nullable else kind.removesuffix(" NOT NULL"), nullable)
    assert parsed(queue, columns(field), value) == ([None], [error])


def test_a_value_that_a_column_cannot_hold_spoils_no_other(queue: Queue) -> None:
    values = [b'{"id": 1.5}', b'{"id": 99}', None, b'{"id": 2}', b"{"]
    data, errors = parsed(queue, columns(("id", "decimal(2,1)")), *values)
    assert data == [{"id": Decimal("1.5")}, None, None, {"id": Decimal(2)}, None]
    cut = "not JSON: Input data was truncated"
    assert errors == [None, TOO_LARGE, "the value is null", None, cut]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner),
)
_SCHEMA = columns(
    ("a", "integer"),
    ("b", t.ArrayType(columns(("a", "string"), ("b", "decimal(5,2)")))),
    ("c", t.MapType(t.StringType(), t.FloatType())),
)


@settings(
    max_examples=5,  # of many values each, because each of them is a file and a read
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.binary() | _json.map(lambda value: json.dumps(value).encode()), min_size=30))
def test_every_row_has_either_a_value_or_an_error(queue: Queue, values: list[bytes]) -> None:
    for data, error in zip(*parsed(queue, _SCHEMA, *values), strict=True):
        assert (data is None) == (error is not None)
