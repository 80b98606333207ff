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
from support.read_values import read_values

from spark_mq import InvalidOption, Queue
from spark_mq.spark import SparkMQDataSource


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
    return read_values(queue, list(values), schema, valueSchema="what Spark has parsed")


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


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        (("id", "integer"), None, "the value is null"),
        (("id", "integer"), b"", "not JSON: Expecting value at character 0"),
        (("id", "integer"), b'{"id": 1', "not JSON: Expecting ',' delimiter at character 8"),
        (("id", "integer"), b'{"id": 1} x', "not JSON: Extra data at character 10"),
        (("id", "integer"), b'{"id": "\xff"}', "not JSON: byte 8 is not UTF-8"),
        (("id", "double"), b'{"id": NaN}', "$: NaN is not JSON"),
        (("id", "integer"), b"[" * 100_000, "not JSON: it is nested too deeply"),
        (("id", "integer"), b"9" * 5_000, "not JSON: a number has too many digits"),
        (("id", "integer"), b"null", "$: expected struct<id:int>, found null"),
        (("id", "integer"), b"[]", "$: expected struct<id:int>, found array"),
        (("id", "integer"), b'{"id": "1"}', "$.id: expected int, found string"),
        (("id", "integer"), b'{"id": true}', "$.id: expected int, found boolean"),
        (("id", "integer"), b'{"id": 1.0}', "$.id: expected int, found number"),
        (("id", "integer"), b'{"id": 2147483648}', "$.id: the number is out of the range of int"),
        (("id", "integer", False), b"{}", "$.id: expected int, found null"),
        (("id", "float"), b'{"id": 1e39}', "$.id: the number is out of the range of float"),
        (("id", "double"), b'{"id": 1e999}', "$.id: the number is out of the range of double"),
        (("id", "decimal(4,1)"), b'{"id": 1.25}', "$.id: the number does not fit decimal(4,1)"),
        (("id", "decimal(4,1)"), b'{"id": 1000}', "$.id: the number does not fit decimal(4,1)"),
        (("id", "decimal(4,1)"), b'{"id": "x"}', "$.id: the number does not fit decimal(4,1)"),
        (("id", "string"), b'{"id": 1}', "$.id: expected string, found number"),
        (
            ("id", "string"),
            b'{"id": "\\ud800"}',
            "$.id: the text has no UTF-8 form (a lone surrogate)",
        ),
        (("id", "date"), b'{"id": "soon"}', "$.id: the text is not a date such as 2026-01-31"),
        (
            ("at", "timestamp"),
            b'{"at": "2026-01-31T12:00:00"}',
            "$.at: the text is not an instant with a zone such as 2026-01-31T12:00:00Z",
        ),
        (("raw", "binary"), b'{"raw": "?"}', "$.raw: the text is not base64"),
        (
            ("items", t.ArrayType(columns(("price", "double")))),
            b'{"items": [{"price": 1}, {"price": "high"}]}',
            "$.items[1].price: expected double, found string",
        ),
        (
            ("m", t.MapType(t.StringType(), t.IntegerType())),
            b'{"m": {"secret": []}}',
            "$.m.*: expected int, found array",
        ),
    ],
)
def test_a_value_that_does_not_fit_has_a_reason_without_its_content(
    queue: Queue, field: tuple[Any, ...], value: bytes | None, error: str
) -> None:
    assert parsed(queue, columns(field), value) == ([None], [error])


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
