"""Through Spark: from publish to acked on an idle queue, and what a micro-batch of 10,000 costs
beyond what Spark itself takes.

Spark's own share is that of an equally shaped Python data source which yields the same rows from
memory, under the same handler.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from figures import Point, Result, p95
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from session import session

from spark_mq import Queue
from spark_mq.spark.schema import READ_SCHEMA, arrow_schema

BATCH = 10_000
VALUE = 1_000
WARMUP = 2
DEADLINE = 60.0

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # Spark's workers cannot import this module


class Memory(DataSource):
    """``batches`` batches of 10,000 rows in the columns of spark_mq, from memory."""

    @classmethod
    def name(cls) -> str:
        return "memory_of_same_shape"

    def schema(self) -> StructType:
        return READ_SCHEMA

    def streamReader(self, schema: StructType) -> MemoryReader:
        return MemoryReader(int(self.options["batches"]))


class MemoryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the number of a batch."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """It is known from the start how much there is."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"batch": min(self.batches, start["batch"] + 1)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(end["batch"])] if end != start else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        wanted, at = arrow_schema(READ_SCHEMA), datetime.now(UTC)
        given = {
            "sequence": pa.array(range(BATCH), pa.int64()),
            "message_id": pa.array([str(n) for n in range(BATCH)]),
            "value": pa.array([b"x" * VALUE] * BATCH, pa.binary()),
            "published_at": pa.repeat(pa.scalar(at, wanted.field("published_at").type), BATCH),
            "lease_id": pa.repeat(pa.scalar("none"), BATCH),
        }
        columns = [
            given[f.name].cast(f.type) if f.name in given else pa.nulls(BATCH, f.type)
            for f in wanted
        ]
        yield from pa.table(columns, schema=wanted).to_batches()


def count(batch: Any, _: Any) -> None:
    """The handler: looks at every value."""
    batch.selectExpr("sum(length(value))").collect()


def latency(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """Both, in one session."""
    with session(folder) as spark:
        spark.dataSource.register(Memory)
        yield from publish_to_acked(spark, folder, max(5, rounds))
        queues = (Queue.create(folder / f"micro-batches-{n}") for n in range(1 if short else 3))
        yield from beyond_spark(spark, folder, queues, max(4, rounds // 3))


def publish_to_acked(spark: SparkSession, folder: Path, rounds: int) -> Iterator[Result | Point]:
    """One message at a time, on an idle queue with a running stream of the default trigger, until
    its ack has landed.
    """
    queue = Queue.create(folder / "idle")
    group = queue.group("bench").ensure()
    reached, called, acked = threading.Event(), [0.0], [0.0]
    settle = group.for_each_batch(count)

    def timed(batch: Any, batch_id: int) -> None:
        called[0] = time.perf_counter()
        settle(batch, batch_id)
        acked[0] = time.perf_counter()
        reached.set()

    stream = spark.readStream.format("spark_mq").option("consumerGroup", "bench").load(queue.path)
    query = (
        stream.writeStream.foreachBatch(timed)
        .option("checkpointLocation", str(folder / "idle-checkpoint"))
        .start()
    )
    times, found = [], []
    try:
        for number in range(WARMUP + rounds):
            reached.clear()
            start = time.perf_counter()
            queue.publish(b"x" * VALUE)
            assert reached.wait(DEADLINE), f"message {number} was not acked: {query.exception()}"
            assert group.stats().acked == number + 1, (
                "the function returned before its ack had landed"
            )
            times.append((acked[0] - start) * 1000)
            found.append((called[0] - start) * 1000)
            idle(query)
    finally:
        query.stop()
    times, found = times[WARMUP:], found[WARMUP:]
    yield Result(
        "publish to acked, default trigger, idle queue, p50",
        statistics.median(times),
        "ms",
    )
    yield Result("publish to acked, default trigger, idle queue, p95", p95(times), "ms")
    yield Result(
        "publish to acked: until foreachBatch is called, p50", statistics.median(found), "ms"
    )


def idle(query: Any) -> None:
    """Waits until the stream has found nothing new a few times: it looks less often then, up to
    idlePollInterval.
    """
    deadline, status = time.monotonic() + DEADLINE, threading.Event()
    since = time.monotonic()
    while time.monotonic() - since < 2.0:
        if query.status["isTriggerActive"] and query.status["isDataAvailable"]:
            since = time.monotonic()
        assert time.monotonic() < deadline, "the stream does not come to rest"
        status.wait(0.05)


def beyond_spark(
    spark: SparkSession, folder: Path, queues: Iterable[Queue], batches: int, place: str = ""
) -> Iterator[Result | Point]:
    """The duration of a trigger, for batches of each queue and of the source in memory, in turn."""
    durations: dict[str, list[dict[str, float]]] = {"spark_mq": [], "memory": []}
    for number, queue in enumerate(queues):
        for _ in range(WARMUP + batches):
            queue.publish(pa.table({"value": pa.repeat(pa.scalar(b"x" * VALUE), BATCH)}))
        group = queue.group("bench").ensure()
        ours = group.read_stream(spark, maxMessagesPerTrigger=BATCH)
        theirs = spark.readStream.format(Memory.name()).option("batches", WARMUP + batches).load()
        for kind, stream, function in (
            ("spark_mq", ours, group.for_each_batch(count)),
            ("memory", theirs, count),
        ):
            durations[kind] += run(
                stream, function, folder / f"checkpoint-{kind}-{number}", batches
            )
        assert group.stats().acked == BATCH * (WARMUP + batches)
    p50 = {
        kind: {name: statistics.median(times.get(name, 0) for times in each) for name in each[0]}
        for kind, each in durations.items()
    }
    own, spark_own = p50["spark_mq"]["triggerExecution"], p50["memory"]["triggerExecution"]
    what = f"{place}micro-batch of {BATCH:,}"
    yield Result(f"{what}: a source in memory, p50", spark_own, "ms")
    yield Result(
        f"{what}: spark_mq, with lease and settle, p50",
        own,
        "ms",
        f"{own / spark_own:.2f}x of memory",
    )
    yield Result(f"{what}: beyond what Spark itself takes, p50", own - spark_own, "ms")
    for name in ("latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets"):
        yield Result(
            f"{what}: {name}, p50",
            p50["spark_mq"].get(name, 0),
            "ms",
            f"memory: {p50['memory'].get(name, 0):.0f} ms",
        )


def run(stream: Any, function: Any, checkpoint: Path, batches: int) -> list[dict[str, float]]:
    """Spark's own durations, by batch, without the first ones."""
    query = (
        stream.writeStream.foreachBatch(function)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    query.awaitTermination()
    seen = [dict(one.durationMs) for one in query.recentProgress if one.numInputRows]
    assert len(seen) == WARMUP + batches, f"{len(seen)} batches"
    return seen[WARMUP:]
