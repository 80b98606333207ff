"""Values of other formats in a stream: what the page on payloads tells people to do."""

from __future__ import annotations

from typing import Any

from pyspark.sql.functions import udf
from support.formats import ORDER, ORDER_VALUE
from support.harness import Stream

from spark_mq import Message, Queue
from spark_mq.errors import InvalidPayload
from spark_mq.integrations.formats import Avro

AVRO = Avro(ORDER)
ITEMS = "ARRAY<STRUCT<sku STRING, price DOUBLE>>"
BAD = b"\x02"
REASON = "not valid Avro for shop.Order: it ends early"


def test_a_stream_gets_values_and_rejects_others_with_the_reason(
    queue: Queue, stream: Stream
) -> None:
    queue.publish([Message.encode({**ORDER_VALUE, "id": n}, AVRO) for n in (1, 2)] + [BAD])

    contents = f"STRUCT<id BIGINT, customer STRING, items {ITEMS}>"

    @udf(f"contents {contents}, data_error STRING", useArrow=False)
    def decode(value):  # without types, for which Spark would ask pandas
        try:
            return AVRO.decode(bytes(value)), None
        except InvalidPayload as error:
            return None, str(error)

    frame = stream.frame().select("*", decode("value").alias("decoded"))
    seen: list[Any] = []

    def process(batch: Any, lease: Any) -> None:
        rows = batch.orderBy("sequence").collect()
        seen.extend(row.contents.asDict(recursive=True) for row in rows)

    each = stream.group.for_each_batch(process, on_error="raise", invalid="reject")
    stream.run(each, frame=frame.select("*", "decoded.*"))
    assert seen == [ORDER_VALUE, {**ORDER_VALUE, "id": 2}]
    assert (stream.group.stats().acked, stream.group.stats().dead) == (2, 1)
    queue.sweep()
    letters = queue.list_dead_letters()
    assert letters["value"].to_pylist() == [BAD]
    assert letters["error"].to_pylist() == [REASON]
