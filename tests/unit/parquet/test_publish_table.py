"""Columns of messages in the types of others: Kafka's keys and headers, names in any case."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from support.handles import lease

from spark_mq import InvalidSchema
from spark_mq.testing import memory_queue

PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def published(table: pa.Table) -> pa.Table:
    """Publish a table. Return what a lease gets of it."""
    queue = memory_queue()
    queue.publish(table)
    return lease(queue).table()


def refused(why: str, **columns: pa.Array) -> None:
    with pytest.raises(InvalidSchema, match=why):
        memory_queue().publish(pa.table({"value": ["x"], **columns}))


def headers_of(rows: list[Any], kind: pa.DataType = PAIRS) -> list[Any]:
    table = pa.table({"value": ["x"] * len(rows), "headers": pa.array(rows, kind)})
    headers: list[Any] = published(table)["headers"].to_pylist()
    return headers


def pair(key: str | None, value: bytes | None) -> dict[str, Any]:
    return {"key": key, "value": value}


def test_names_of_columns_are_compared_without_case() -> None:
    table = pa.table({"VALUE": ["x"], "Message_Id": ["m"], "KEY": ["k"]})
    (row,) = published(table).select(["value", "message_id", "key"]).to_pylist()
    assert row == {"value": b"x", "message_id": "m", "key": "k"}
    refused("column 'key' is there twice", key=pa.array(["a"]), Key=pa.array(["b"]))


def test_a_binary_key_is_utf_8() -> None:
    keys = pa.array(["å".encode(), None], pa.binary())
    found = published(pa.table({"value": ["x", "y"], "key": keys}))
    assert found["key"].to_pylist() == ["å", None]
    wrong = pa.array([b"\xff"], pa.binary())
    refused("'key' has a value that string cannot hold", key=wrong)


def test_headers_may_be_an_array_of_names_and_values() -> None:
    rows = [[pair("a", b"1"), pair("b", b"2")], None, [], [pair("c", b"")]]
    expected = [[("a", "1"), ("b", "2")], None, [], [("c", "")]]
    assert headers_of(rows) == expected
    table = pa.table({"value": ["x"] * 4, "headers": pa.array(rows, PAIRS)}).slice(1, 3)
    assert published(table)["headers"].to_pylist() == expected[1:]
    texts = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    assert headers_of([[{"key": "a", "value": "1"}]], texts) == [[("a", "1")]]
    assert memory_queue().publish(table.slice(0, 0)).published == 0


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


def test_other_types_are_refused() -> None:
    refused("column 'headers' is array.string", headers=pa.array([["a"]]))
    refused("column 'message_id' is binary", message_id=pa.array([b"a"]))


def test_a_priority_is_a_whole_number_from_0_to_9() -> None:
    for kind in (pa.float64(), pa.string(), pa.bool_(), pa.decimal128(3, 0)):
        refused(r"column 'priority' is .*, not int: cast it", priority=pa.nulls(1, kind))
    for wrong in (-1, 10, 5_000_000_000):
        priority = pa.array([wrong], pa.int64())
        refused(f"'priority' has the value {wrong}: give whole", priority=priority)
