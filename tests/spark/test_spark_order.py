"""Order and priority in Spark: what batches keep, and what publishes and looks show."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from support.harness import Stream, add_foreign_file, look, make_queue
from support.limits import Limits
from support.tables import messages_of

from spark_mq import Message, Queue

LANES = 16
KEYS = [f"account-{n}" for n in range(12)]


@pytest.fixture(autouse=True)
def small_batches_count(limits: Limits) -> None:
    """Spark's own reader also reads the few bytes of a test, if it keeps the order."""
    limits(plan_bytes=1)


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return make_queue(tmp_path / "queue", lanes=LANES)


@pytest.fixture
def stream(spark: Any, queue: Queue, tmp_path: Path) -> Stream:
    stream = Stream(spark, queue, tmp_path / "checkpoint")
    stream.group.configure(order="key")
    return stream


def lane(key: str) -> int:
    return crc32(key.encode()) % LANES


def with_place(rows: Any) -> Any:
    """Rows with their partition and their place in it."""
    return rows.select(
        "key", "sequence", "value", F.spark_partition_id().alias("part"),
        F.monotonically_increasing_id().alias("place"),
    )  # fmt: skip


def check_order(rows: list[Any]) -> None:
    """A lane is in one partition, and there in the order of sequence."""
    lanes = defaultdict(list)
    for row in rows:
        if row.key is not None:
            lanes[lane(row.key)].append(row)
    for mine in lanes.values():
        assert len({row.part for row in mine}) == 1
        places = [row.sequence for row in sorted(mine, key=lambda row: row.place)]
        assert places == sorted(places)


# -- a batch


@pytest.mark.slow
def test_a_lane_of_a_batch_is_in_one_partition_in_order(stream: Stream, queue: Queue) -> None:
    pick = random.Random(7)
    for first in (0, 40, 80):
        queue.publish([Message(f"{first + n}", key=pick.choice([None, *KEYS])) for n in range(40)])
    stream.options["minPartitions"] = "4"
    batches: list[list[Any]] = []

    def process(batch: Any, lease: Any) -> None:
        batches.append(with_place(batch).collect())
        if len(batches) > 1:
            return
        filtered = batch.where("key IS NOT NULL").withColumn("more", F.upper("key"))
        check_order(with_place(filtered).collect())
        check_order(with_place(batch.coalesce(2)).collect())
        check_order(with_place(batch.persist()).collect())

    stream.settle_with(process)
    for rows in batches:
        check_order(rows)
    assert len({row.part for row in batches[0]}) == 4
    assert sorted(int(row.value) for rows in batches for row in rows) == list(range(120))
    assert stream.group.stats().acked == 120


# -- publish


def test_a_dataframe_is_published_in_lanes_in_the_order_of_its_rows(
    spark: Any, queue: Queue
) -> None:
    rows = spark.range(300, numPartitions=3).select(
        F.col("id").cast("string").alias("value"),
        F.concat(F.lit("k"), F.col("id") % 20).alias("key"),
        (F.col("id") % 3 * 4).cast("int").alias("priority"),
    )
    rows.write.format("spark_mq").mode("append").save(queue.path)
    index = messages_of(Queue.open(queue.path)).index()
    files = [slots for _, slots, _, _ in index.pieces_with_slots(0, index.last_sequence)]
    assert [file.is_sorted for file in files] == [True] * 3
    found = look(spark, queue).selectExpr("*", f"crc32(key) % {LANES} AS lane")
    slots: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in found.orderBy("sequence").collect():
        assert row.priority == int(row.value) % 3 * 4
        assert row.lane == lane(row.key)
        slots[row.key, row.priority].append(int(row.value))
    assert sum(map(len, slots.values())) == 300
    assert all(numbers == sorted(numbers) for numbers in slots.values())


# -- looks


@pytest.mark.slow
def test_spark_reads_the_priority_that_counts(spark: Any, tmp_path: Path) -> None:
    """Of foreign files, too, whose writers check nothing."""
    queue = make_queue(tmp_path / "plain")
    queue.publish([Message("nine", priority=9), "zero"])
    priorities = pa.array([70, -3, None], pa.int32())
    rows = pa.table({"value": [b"high", b"low", b"null"], "priority": priorities})
    add_foreign_file(queue, "some.parquet", rows)
    add_foreign_file(queue, "none.parquet", pa.table({"value": [b"none"]}))
    expected = {"nine": 9, "zero": 0, "high": 9, "low": 0, "null": 0, "none": 0}
    seen: dict[str, int] = {}

    def process(batch: Any, lease: Any) -> None:
        seen.update({bytes(row.value).decode(): row.priority for row in lease.read().collect()})

    Stream(spark, queue, tmp_path / "c").settle_with(process)
    assert seen == expected
