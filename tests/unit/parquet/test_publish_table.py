"""Columns of messages in the types of others: Kafka's keys and headers, names in any case."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_mq.errors import InvalidSchema
from spark_mq.message import to_publish
from spark_mq.parquet.publish_table import check_publishable

PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def headers_of(rows: list[Any], kind: pa.DataType = PAIRS) -> list[Any]:
    table = pa.table(
        {"value": pa.array(["x"] * len(rows), pa.string()), "headers": pa.array(rows, kind)}
    )
    published: list[Any] = to_publish(table, 0)["headers"].to_pylist()
    return published


def pair(key: str | None, value: bytes | None) -> dict[str, Any]:
    return {"key": key, "value": value}


def test_names_of_columns_are_compared_without_case() -> None:
    table = pa.table({"VALUE": ["x"], "Message_Id": ["m"], "KEY": ["k"]})
    (row,) = to_publish(table, 0).select(["value", "message_id", "key"]).to_pylist()
    assert row == {"value": b"x", "message_id": "m", "key": "k"}
    check_publishable({"Value": "string", "deliver_AT": "timestamp"})
    with pytest.raises(InvalidSchema, match="column 'key' is there twice"):
        to_publish(pa.table({"value": ["x"], "key": ["a"], "Key": ["b"]}), 0)
    with pytest.raises(InvalidSchema, match="column 'Topic' is not one of a message"):
        check_publishable({"value": "string", "Topic": "string"})


def test_a_binary_key_is_utf_8() -> None:
    keys = pa.array(["å".encode(), None], pa.binary())
    published = to_publish(pa.table({"value": ["x", "y"], "key": keys}), 0)
    assert published["key"].to_pylist() == ["å", None]
    with pytest.raises(InvalidSchema, match="'key' has a value that string cannot hold"):
        to_publish(pa.table({"value": ["x"], "key": pa.array([b"\xff"], pa.binary())}), 0)


def test_headers_may_be_an_array_of_names_and_values() -> None:
    rows = [[pair("a", b"1"), pair("b", b"2")], None, [], [pair("c", b"")]]
    expected = [[("a", "1"), ("b", "2")], None, [], [("c", "")]]
    assert headers_of(rows) == expected
    table = pa.table({"value": ["x"] * 4, "headers": pa.array(rows, PAIRS)}).slice(1, 3)
    assert to_publish(table, 0)["headers"].to_pylist() == expected[1:]
    texts = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    assert headers_of([[{"key": "a", "value": "1"}]], texts) == [[("a", "1")]]
    assert headers_of([]) == []


def test_of_two_headers_of_one_name_the_last_counts() -> None:
    rows = [[pair("a", b"1"), pair("b", b"2"), pair("a", b"3")], None, [pair("a", b"4")]]
    assert headers_of(rows) == [[("a", "3"), ("b", "2")], None, [("a", "4")]]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (pair("a", None), "null value for 'a'"),
        (pair("a", b"\xff"), "not UTF-8"),
        (pair(None, b"1"), "without a name"),
        (None, "without a name"),
    ],
)
def test_a_header_that_no_message_can_have_is_refused(
    wrong: dict[str, Any] | None, why: str
) -> None:
    with pytest.raises(InvalidSchema, match=why) as caught:
        headers_of([[pair("b", b"1")], [wrong]])
    assert caught.value.data["column"] == "headers"


def test_other_types_are_refused_as_before() -> None:
    for name, kind in (("key", "int"), ("headers", "array<string>"), ("message_id", "binary")):
        with pytest.raises(InvalidSchema, match=f"column '{name}' is {kind}".replace("<", ".")):
            check_publishable({"value": "string", name: kind})
    with pytest.raises(InvalidSchema, match="bigint, not string or binary: cast it"):
        check_publishable({"value": "bigint"})


def test_a_priority_is_a_whole_number_from_0_to_9() -> None:
    for kind in ("double", "string", "boolean", "decimal(3,0)"):
        with pytest.raises(InvalidSchema, match=r"column 'priority' is .*, not int: cast it"):
            check_publishable({"value": "string", "priority": kind})
    for wrong in (-1, 10, 5_000_000_000):
        rows = pa.table({"value": ["x", "y"], "priority": pa.array([0, wrong], pa.int64())})
        with pytest.raises(InvalidSchema, match=f"'priority' has the value {wrong}: give whole"):
            to_publish(rows, 0)
