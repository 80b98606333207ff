"""Values of Avro and Protobuf as Arrow columns of Spark's types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import types as t
from support.formats import ORDER, ORDER_VALUE, order_class
from support.read_values import read_values

from spark_mq import InvalidOption, Queue
from spark_mq.integrations.formats import Avro, Confluent, Protobuf
from spark_mq.spark import SparkMQDataSource


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "q", durable=False)


def parsed(queue: Queue, option: str, *values: bytes | None) -> tuple[list[Any], list[str | None]]:
    return read_values(queue, list(values), valueFormat=option)


def kind_of(option: str) -> Any:
    """Return the type of the column `data`."""
    schema: Any = SparkMQDataSource({"path": "/q", "valueFormat": option}).schema()
    return schema["data"].dataType


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    named = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "R", "fields": named}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def test_text_is_utf8_or_an_error(queue: Queue) -> None:
    assert kind_of("text") == t.StringType()
    data, errors = parsed(queue, "text", "grüße".encode(), b"a\xff", None, b"")
    assert data == ["grüße", None, None, ""]
    assert errors == [None, "not text: byte 1 is not UTF-8", "the value is null", None]
    for wrong in ("TEXT", "binary", "json"):
        with pytest.raises(InvalidOption, match=f"valueFormat='{wrong}' is not a format.*'text'"):
            kind_of(wrong)


ALL = record(
    ("flag", "boolean"),
    ("small", "int"),
    ("ratio", "float"),
    ("raw", "bytes"),
    ("hash", {"type": "fixed", "name": "H", "size": 2}),
    ("state", {"type": "enum", "name": "E", "symbols": ["NEW", "PAID"]}),
    ("day", logical("int", "date")),
    ("at", logical("long", "timestamp-millis")),
    ("exact", logical("long", "timestamp-micros")),
    ("local", logical("long", "local-timestamp-micros")),
    ("price", logical("bytes", "decimal", precision=9, scale=2)),
    ("ref", logical("string", "uuid")),
    ("counts", {"type": "map", "values": ["null", logical("string", "uuid")]}),
    ("again", {"type": "array", "items": ["null", "H"]}),
    ("other", ["null", "E"]),
)
REF = UUID(int=7)
ALL_VALUE: dict[str, Any] = {
    "flag": True,
    "small": -(2**31),
    "ratio": 0.5,
    "raw": b"\xff",
    "hash": b"ab",
    "state": "PAID",
    "day": date(1969, 12, 31),
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "exact": datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    "local": datetime(2026, 1, 31, 12, 0, 0, 7),
    "price": Decimal("-1234567.89"),
    "ref": REF,
    "counts": {"a": REF, "b": None},
    "again": [b"cd", None],
    "other": None,
}


def test_all_types_of_avro(queue: Queue) -> None:
    avro = Avro(ALL)
    kind = kind_of(avro.option)
    assert kind.simpleString() == (
        "struct<flag:boolean,small:int,ratio:float,raw:binary,hash:binary,state:string,day:date,"
        "at:timestamp,exact:timestamp,local:timestamp_ntz,price:decimal(9,2),ref:string,"
        "counts:map<string,string>,again:array<binary>,other:string>"
    )
    assert [field.name for field in kind.fields if field.nullable] == ["other"]
    data, errors = parsed(queue, avro.option, avro.encode(ALL_VALUE), None)
    expected = {
        **ALL_VALUE,
        "ref": str(REF),
        "counts": [("a", str(REF)), ("b", None)],
    }
    assert data == [expected, None]
    assert errors == [None, "the value is null"]


def test_protobuf_has_defaults_and_nulls_by_presence(queue: Queue) -> None:
    order = order_class()
    option = Protobuf(order).option
    assert kind_of(option).simpleString() == (
        "struct<id:bigint,customer:string,items:array<struct<sku:string,price:double>>,"
        "state:string,counts:map<string,int>,total:decimal(20,0),blob:binary>"
    )
    full = order(id=1, customer="Zoë", items=[{"sku": "a", "price": 2.5}], state=1)
    full.counts["x"], full.total, full.blob = 3, 2**64 - 1, b"\xff"
    newer = b"\x20\x09"  # state 9, which this schema lacks
    data, errors = parsed(queue, option, full.SerializeToString(), b"", newer, b"\xff")
    empty = {"id": 0, "customer": None, "items": [], "state": "NEW", "counts": [],
             "total": Decimal(0), "blob": b""}  # fmt: skip
    assert data == [
        {"id": 1, "customer": "Zoë", "items": [{"sku": "a", "price": 2.5}], "state": "PAID",
         "counts": [("x", 3)], "total": Decimal(2**64 - 1), "blob": b"\xff"},
        empty,
        {**empty, "state": "9"},
        None,
    ]  # fmt: skip
    assert errors == [None] * 3 + ["not valid Protobuf for shop.Order: the bytes are damaged"]


def test_protobufs_timestamp_is_one(queue: Queue) -> None:
    from google.protobuf.timestamp_pb2 import Timestamp

    stamps = [Timestamp(seconds=-1, nanos=5_000), Timestamp(seconds=2**62)]
    values = [stamp.SerializeToString() for stamp in stamps]
    data, errors = parsed(queue, Protobuf(Timestamp).option, *values)
    assert data == [datetime(1969, 12, 31, 23, 59, 59, 5, UTC), None]
    assert errors == [None, "a number, text or time is out of the range of its type"]


def test_a_value_that_a_column_cannot_hold_spoils_no_other(queue: Queue) -> None:
    long = Avro('"long"')
    values = [long.encode(1), long.encode(2**40), b"", long.encode(2)]
    data, errors = parsed(queue, Avro('"int"').option, *values)
    assert data == [1, None, None, 2]
    assert errors == [
        None,
        "a number, text or time is out of the range of its type",
        "not valid Avro for int: it ends early",
        None,
    ]


def test_ids_of_schemas_are_looked_up_in_the_mapping(queue: Queue) -> None:
    old = record(("id", "int"))
    new = record(("id", "long"), ("name", ["null", "string"]))
    new["fields"][1]["default"] = None
    payloads = [b"\0\0\0\0\x07\x02", Confluent(Avro(new), 9).encode({"id": 2, "name": "a"}),
                b"\0\0\0\0\x08\x02", b"\x02"]  # fmt: skip
    data, errors = parsed(queue, Confluent(Avro(new), 9, {7: old}).option, *payloads)
    assert data == [{"id": 1, "name": None}, {"id": 2, "name": "a"}, None, None]
    assert errors == [
        None,
        None,
        "schema 8 is not among the given ones: add it to schemas",
        "no Confluent header: a zero byte and 4 bytes of a schema id",
    ]


def test_any_bytes_give_data_or_an_error(queue: Queue) -> None:
    chance = Random(7)
    payloads = [chance.randbytes(chance.randrange(41)) for _ in range(1_000)]
    for one in (Avro(ALL), Avro(ORDER), Protobuf(order_class()), Confluent(Avro(ORDER), 7)):
        valid = one.encode(ORDER_VALUE) if "Order" in one.option and "avro" in one.option else b""
        found = parsed(queue, one.option, *payloads, valid)
        for data, error in zip(*found, strict=True):
            assert (data is None) == (error is not None)


def test_what_has_no_type_in_spark_is_refused() -> None:
    cases = [
        (Avro('["int", "string"]'), "a union of several types"),
        (Avro(record(("at", logical("int", "time-millis")))), "time-millis"),
        (Avro(logical("bytes", "decimal", precision=39)), "a decimal of 39 digits"),
        (Avro('"null"'), "the type null"),
        (Protobuf(order_class("shop.Tree")), "shop.Tree, which contains itself"),
    ]
    for one, text in cases:
        with pytest.raises(InvalidOption, match=f"valueFormat has .*{text}"):
            kind_of(one.option)
