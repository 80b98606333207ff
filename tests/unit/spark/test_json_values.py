"""How values of JSON fit a schema, and what is said about those that do not."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from spark_mq.errors import InvalidOption
from spark_mq.spark.json_values import JsonParser
from spark_mq.spark.schema import parse_value_schema


def _one(schema: str, value: bytes | None) -> tuple[Any, str | None]:
    data, errors = JsonParser(parse_value_schema(schema)).parse([value])
    return data.to_pylist()[0], errors.to_pylist()[0]


def test_a_schema_is_columns_or_one_type() -> None:
    columns = t.StructType(
        [
            t.StructField("id", t.LongType(), nullable=False),
            t.StructField("a b", t.ArrayType(t.StructType([t.StructField("x", t.DateType())]))),
            t.StructField("date", t.DecimalType(12, 2)),
            t.StructField("m", t.MapType(t.StringType(), t.DoubleType())),
        ]
    )
    text = (
        "id BIGINT NOT NULL COMMENT 'its id', `a b` array<struct<x: date>>, "
        "date DECIMAL(12, 2), m MAP<STRING, DOUBLE>"
    )
    assert parse_value_schema(text) == columns
    assert parse_value_schema(" ARRAY<INT> ") == t.ArrayType(t.IntegerType())
    assert parse_value_schema("struct<a int>") == parse_value_schema("a INT")
    assert parse_value_schema("string") == t.StringType()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it ends early"),
        ("id", "it ends early"),
        ("id INTEGR", "did you mean 'integer'"),
        ("id VARIANT", "there is no type 'variant'"),
        ("id INT, id STRING", "column 'id' is there twice"),
        ("id INT>, x STRUCT<y INT", "it cannot have '>' there"),
        ("id INT;", "';' is not part of a schema"),
        ("m MAP<INT, STRING>", "it cannot have 'int' there"),
        ("d DECIMAL(39)", "precision of 1 to 38"),
        ("ARRAY<INTT>", "did you mean 'int'"),
        ("d DECIMAL(²)", "it cannot have '²' there"),
        ("id INT,", "it ends early"),
    ],
)
def test_a_wrong_schema_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        parse_value_schema(text)
    assert reason in str(refused.value)
    assert (refused.value.data["option"], refused.value.data["value"]) == ("valueSchema", text)


def test_a_value_that_fits_has_its_types_and_a_missing_name_is_null() -> None:
    value = {
        "i": 7, "d": 1, "n": "12.50", "s": "ä", "at": "2026-01-31T13:00:00+01:00",
        "local": "2026-01-31T12:00:00.5", "day": "2026-01-31", "raw": "AP8=",
        "list": [1, None], "map": {"a": True}, "unknown": [],
    }  # fmt: skip
    schema = (
        "i TINYINT, d DOUBLE, n DECIMAL(6,2), s STRING, at TIMESTAMP, local TIMESTAMP_NTZ, "
        "day DATE, raw BINARY, list ARRAY<INT>, map MAP<STRING,BOOLEAN>, missing STRUCT<x INT>"
    )
    expected = {
        "i": 7, "d": 1.0, "n": Decimal("12.50"), "s": "ä",
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "day": date(2026, 1, 31),
        "local": datetime(2026, 1, 31, 12, 0, 0, 500_000), "raw": b"\x00\xff",
        "list": [1, None], "map": [("a", True)], "missing": None,
    }  # fmt: skip
    assert _one(schema, json.dumps(value).encode()) == (expected, None)


@pytest.mark.parametrize(
    ("schema", "value", "error"),
    [
        ("id INT", None, "the value is null"),
        ("id INT", b"", "not JSON: Expecting value at character 0"),
        ("id INT", b'{"id": 1', "not JSON: Expecting ',' delimiter at character 8"),
        ("id INT", b'{"id": 1} x', "not JSON: Extra data at character 10"),
        ("id INT", b'{"id": "\xff"}', "not JSON: byte 8 is not UTF-8"),
        ("id DOUBLE", b'{"id": NaN}', "$: NaN is not JSON"),
        ("id INT", b"[" * 100_000, "not JSON: it is nested too deeply"),
        ("id INT", b"9" * 5_000, "not JSON: a number has too many digits"),
        ("id INT", b"null", "$: expected struct<id:int>, found null"),
        ("id INT", b"[]", "$: expected struct<id:int>, found array"),
        ("id INT", b'{"id": "1"}', "$.id: expected int, found string"),
        ("id INT", b'{"id": true}', "$.id: expected int, found boolean"),
        ("id INT", b'{"id": 1.0}', "$.id: expected int, found number"),
        ("id INT", b'{"id": 2147483648}', "$.id: the number is out of the range of int"),
        ("id INT NOT NULL", b"{}", "$.id: expected int, found null"),
        ("id FLOAT", b'{"id": 1e39}', "$.id: the number is out of the range of float"),
        ("id DOUBLE", b'{"id": 1e999}', "$.id: the number is out of the range of double"),
        ("id DECIMAL(4,1)", b'{"id": 1.25}', "$.id: the number does not fit decimal(4,1)"),
        ("id DECIMAL(4,1)", b'{"id": 1000}', "$.id: the number does not fit decimal(4,1)"),
        ("id DECIMAL(4,1)", b'{"id": "x"}', "$.id: the number does not fit decimal(4,1)"),
        ("id STRING", b'{"id": 1}', "$.id: expected string, found number"),
        ("id STRING", b'{"id": "\\ud800"}', "$.id: the text has no UTF-8 form (a lone surrogate)"),
        ("id DATE", b'{"id": "soon"}', "$.id: the text is not a date such as 2026-01-31"),
        (
            "at TIMESTAMP",
            b'{"at": "2026-01-31T12:00:00"}',
            "$.at: the text is not an instant with a zone such as 2026-01-31T12:00:00Z",
        ),
        ("raw BINARY", b'{"raw": "?"}', "$.raw: the text is not base64"),
        (
            "items ARRAY<STRUCT<price DOUBLE>>",
            b'{"items": [{"price": 1}, {"price": "high"}]}',
            "$.items[1].price: expected double, found string",
        ),
        ("m MAP<STRING,INT>", b'{"m": {"secret": []}}', "$.m.*: expected int, found array"),
    ],
)
def test_a_value_that_does_not_fit_has_a_reason_without_its_content(
    schema: str, value: bytes | None, error: str
) -> None:
    assert _one(schema, value) == (None, error)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner),
)
_SCHEMA = "a INT, b ARRAY<STRUCT<a STRING, b DECIMAL(5,2)>>, c MAP<STRING, FLOAT>"


@given(st.lists(st.binary() | _json.map(lambda value: json.dumps(value).encode())))
def test_every_row_has_either_a_value_or_an_error(values: list[bytes]) -> None:
    data, errors = JsonParser(parse_value_schema(_SCHEMA)).parse(values)
    assert len(data) == len(errors) == len(values)
    assert data.is_valid().to_pylist() == errors.is_null().to_pylist()
