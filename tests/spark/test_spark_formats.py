"""Values of Avro and Protobuf: what a stream and a look return, and what becomes of others."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from support.formats import ORDER, ORDER_VALUE, order_class
from support.harness import Stream

from spark_mq import Message, Queue
from spark_mq.integrations.formats import Avro, Confluent, Protobuf

AVRO = Avro(ORDER)
BAD = b"\x02"


def test_a_stream_gets_values_and_rejects_others_with_the_reason(
    spark: Any, queue: Queue, stream: Stream
) -> None:
    framed = Confluent(AVRO, 7)
    queue.publish([Message.encode({**ORDER_VALUE, "id": n}, framed) for n in (1, 2)] + [BAD])
    stream.options["valueFormat"] = framed.option
    seen: list[Any] = []

    def process(batch: Any, lease: Any) -> None:
        seen.extend(row.data.asDict(recursive=True) for row in batch.orderBy("sequence").collect())
        again = lease.read().where("data_error IS NULL").orderBy("sequence")
        seen.extend(row.data.id for row in again.collect())

    stream.run(stream.group.for_each_batch(process, on_error="raise", invalid="reject"))
    assert seen == [ORDER_VALUE, {**ORDER_VALUE, "id": 2}, 1, 2]
    assert (stream.group.stats().acked, stream.group.stats().dead) == (2, 1)
    queue.sweep()
    letters = queue.redrive(dry_run=True).table
    assert letters["value"].to_pylist() == [BAD]
    reason = "no Confluent header: a zero byte and 4 bytes of a schema id"
    assert letters["error"].to_pylist() == [reason]


@pytest.mark.slow
def test_a_batch_is_replayed_in_the_format_of_the_next_start(
    spark: Any, queue: Queue, stream: Stream
) -> None:
    old = {"type": "record", "name": "shop.Order", "fields": [{"name": "id", "type": "long"}]}
    queue.publish([Message.encode({"id": 1}, Confluent(Avro(old), 7))])
    stream.options["valueFormat"] = Confluent(Avro(old), 7).option
    seen: list[Any] = []

    def fail(batch: Any, lease: Any) -> None:
        seen.extend(row.data.asDict() for row in batch.collect())
        raise RuntimeError("no luck")

    with pytest.raises(StreamingQueryException, match="no luck"):
        stream.settle_with(fail)
    queue.publish([Message.encode(ORDER_VALUE, Confluent(AVRO, 8))])
    stream.options["valueFormat"] = Confluent(AVRO, 8, {7: old}).option

    def process(batch: Any, lease: Any) -> None:
        seen.extend(row.data.asDict(recursive=True) for row in batch.orderBy("sequence").collect())

    stream.settle_with(process)
    assert seen == [{"id": 1}, {"id": 1, "customer": None, "items": []}, ORDER_VALUE]
    assert stream.group.stats().acked == 2


def test_a_look_returns_protobuf_and_a_narrower_schema(spark: Any, queue: Queue) -> None:
    order = order_class()
    one = Protobuf(order)
    queue.publish([Message.encode(order(id=7, state=1, counts={"a": 2}), one), b"\xff"])
    reader = spark.read.format("spark_mq").option("valueFormat", one.option)
    rows = reader.load(queue.path).orderBy("sequence").select("data", "data_error").collect()
    assert rows[0].data.asDict(recursive=True) == {
        "id": 7, "customer": None, "items": [], "state": "PAID", "counts": {"a": 2}, "total": 0,
        "blob": bytearray(),
    }  # fmt: skip
    assert (rows[1].data, rows[1].data_error) == (
        None,
        "not valid Protobuf for shop.Order: the bytes are damaged",
    )
    kind = reader.load(queue.path).schema["data"].dataType.simpleString()
    narrow = reader.schema(f"data {kind}").load(queue.path)
    assert narrow.where("data.id = 7").count() == 1


def test_text_is_a_string_and_other_bytes_are_an_error(
    spark: Any, queue: Queue, stream: Stream
) -> None:
    queue.publish(["grüße", b"\xff\x00", b"", '{"id": 1}'])
    reason = "not text: byte 0 is not UTF-8"
    look = spark.read.format("spark_mq").option("valueFormat", "text").load(queue.path)
    assert look.schema["data"].dataType.simpleString() == "string"
    rows = look.orderBy("sequence").select("data", "data_error", "value").collect()
    assert [row.data for row in rows] == ["grüße", None, "", '{"id": 1}']
    assert [row.data_error for row in rows] == [None, reason, None, None]
    assert rows[1].value == b"\xff\x00"  # nothing is lost
    stream.options["valueFormat"] = "text"
    seen: list[Any] = []

    def process(batch: Any, lease: Any) -> None:
        seen.extend(row.data for row in batch.orderBy("sequence").collect())

    stream.run(stream.group.for_each_batch(process, on_error="raise", invalid="reject"))
    assert seen == ["grüße", "", '{"id": 1}']
    assert (stream.group.stats().acked, stream.group.stats().dead) == (3, 1)
    queue.sweep()
    assert queue.list_dead_letters()["error"].to_pylist() == [reason]


def test_a_wrong_format_is_refused_before_the_query_starts(spark: Any, queue: Queue) -> None:
    reader = spark.readStream.format("spark_mq")
    with pytest.raises(Exception, match="valueFormat='avro' is not a format"):
        reader.option("valueFormat", "avro").load(queue.path)
    with pytest.raises(Exception, match=r"valueFormat='json' is not a format.*give valueSchema"):
        reader.option("valueFormat", "json").load(queue.path)
    wrong = '{"avro": "long", "confluent": {"schemas": {"7": "nothing"}}}'
    refusal = "schema 7 of schemas: schema='nothing' is not an Avro schema"
    with pytest.raises(Exception, match=refusal):
        reader.option("valueFormat", wrong).load(queue.path)
    with pytest.raises(Exception, match="give one of them"):
        reader.option("valueFormat", AVRO.option).option("valueSchema", "id INT").load(queue.path)
