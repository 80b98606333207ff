"""Order and priority in Spark: what batches keep, and what publishes and looks show."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from support.harness import Stream, make_queue, versions
from support.limits import Limits
from support.marks import slow, slow_but
from support.spark_session import plan_of
from support.tables import messages_of

from spark_mq import Message, Queue
from spark_mq.errors import InvalidSchema
from spark_mq.spark.dead_letter_copy import spark_copy

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


def publish(queue: Queue, commits: int = 3, count: int = 40, *, free: bool = False) -> None:
    """Commits of messages with random keys. The value is the number of the message."""
    pick = random.Random(7)
    numbers = iter(range(commits * count))
    for _ in range(commits):
        queue.publish(
            [
                Message(str(next(numbers)), key=pick.choice([None, *KEYS] if free else KEYS))
                for _ in range(count)
            ]
        )


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


@pytest.mark.parametrize("parts", [slow("1"), "4"])
def test_a_lane_of_a_batch_is_in_one_partition_in_order(
    stream: Stream, queue: Queue, parts: str
) -> None:
    publish(queue, free=True)
    stream.options["minPartitions"] = parts
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
        lanes = {lane(row.key) for row in rows if row.key is not None}
        assert min(int(parts), len(lanes)) <= len({row.part for row in rows}) <= int(parts)
    assert len({row.part for row in batches[0]}) == int(parts)
    assert sorted(int(row.value) for rows in batches for row in rows) == list(range(120))
    assert stream.group.stats().acked == 120


@pytest.mark.slow
def test_a_function_of_partitions_gets_the_messages_of_a_key_in_order(
    stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    publish(queue)
    stream.options["minPartitions"] = "3"
    log = tmp_path / "log"
    log.mkdir()

    def write(rows: Iterator[Any]) -> None:
        """What a handler with side effects does: it appends to the file of the key."""
        for row in rows:
            with (log / row.key).open("a") as file:
                file.write(f"{row.value.decode()}\n")

    stream.settle_with(lambda batch, lease: batch.foreachPartition(write))
    written = {path.name: [int(n) for n in path.read_text().split()] for path in log.iterdir()}
    assert sorted(written) == sorted(KEYS)
    assert all(numbers == sorted(numbers) for numbers in written.values())
    assert sum(map(len, written.values())) == 120


@pytest.mark.slow
def test_an_unordered_group_is_still_read_by_sparks_reader(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    publish(queue, 1)
    plans: dict[str, str] = {}

    def drain(group: str) -> None:
        stream = Stream(spark, queue, tmp_path / group, group)
        stream.settle_with(lambda batch, lease: plans.update({group: plan_of(batch)}))

    queue.group("ordered").configure(order="key")
    drain("ordered")
    drain("plain")
    assert "FileScan parquet" in plans["plain"]
    assert "FileScan parquet" not in plans["ordered"]


@pytest.mark.slow
def test_two_streams_never_hold_one_key_and_keep_its_order(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    publish(queue)
    queue.group("g").configure(order="key")
    first = Stream(spark, queue, tmp_path / "one", maxMessagesPerTrigger="20")
    second = Stream(spark, queue, tmp_path / "two", maxMessagesPerTrigger="20")
    seen: list[int] = []
    inner: list[int] = []

    def meanwhile(batch: Any, lease: Any) -> None:
        mine = {lane(row.key) for row in batch.collect()}
        if not inner:
            inner.append(1)

            def other(batch: Any, _: Any) -> None:
                rows = with_place(batch).collect()
                assert mine.isdisjoint({lane(row.key) for row in rows})
                seen.extend(row.sequence for row in rows)

            second.settle_with(other)
        seen.extend(row.sequence for row in batch.collect())

    first.settle_with(meanwhile)
    assert len(seen) == len(set(seen)) == 120
    keys = {row.sequence: row.key for row in peek(spark, queue, "g").collect()}
    for key in KEYS:
        mine = [seq for seq in seen if keys[seq] == key]
        assert mine == sorted(mine)


@pytest.mark.slow
def test_two_queues_in_one_stream_keep_the_order_of_each(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    other = make_queue(tmp_path / "other", lanes=LANES)
    groups = [one.group("g") for one in (queue, other)]
    for one in (queue, other):
        one.group("g").configure(order="key")
        publish(one, 2)
    stream = Stream(spark, queue, tmp_path / "checkpoint", minPartitions="4")
    frame = (
        spark.readStream.format("spark_mq").options(**stream.options)
        .load(path=f'["{queue.path}", "{other.path}"]')
    )  # fmt: skip
    batches: list[list[Any]] = []

    def process(batch: Any, lease: Any) -> None:
        both = batch.withColumn("key", F.concat("queue", "key"))
        batches.append(both.select("key", "sequence").collect())
        for one in (queue, other):
            check_order(with_place(batch.where(F.col("queue") == one.path)).collect())
        bad = batch.where("CAST(value AS STRING) = '5'")
        lease.reject(bad, error="five")

    stream.run(groups[0].for_each_batch(process, "raise", more_groups=groups[1:]), frame=frame)
    assert sum(map(len, batches)) == 160
    assert [one.stats().dead for one in groups] == [1, 1]
    assert [one.stats().acked for one in groups] == [79, 79]


# -- verdicts on rows


def one_key(queue: Queue, count: int = 5) -> None:
    queue.publish([Message(str(n), key="a") for n in range(count)])
    queue.publish([Message(f"other {n}", key="zzz") for n in range(2)])
    assert lane("a") != lane("zzz")


@pytest.mark.parametrize("how", ["lease.nack", slow("returned")])
def test_a_nacked_row_returns_the_later_rows_of_its_key_uncounted(
    stream: Stream, queue: Queue, how: str
) -> None:
    one_key(queue)
    batches: list[list[tuple[str, int]]] = []

    def process(batch: Any, lease: Any) -> Any:
        rows = batch.orderBy("sequence").collect()
        batches.append([(bytes(row.value).decode(), row.delivery_count) for row in rows])
        bad = batch.where("CAST(value AS STRING) = '2' AND delivery_count = 1")
        if how == "returned":
            return bad.select(
                "sequence", F.lit("nack").alias("outcome"), F.lit("0s").alias("delay")
            )
        lease.nack(bad, delay="0s")
        return None

    for _ in range(2):
        stream.settle_with(process)
    first, *later = batches
    assert sorted(first) == [*((str(n), 1) for n in range(5)), ("other 0", 1), ("other 1", 1)]
    assert [row for batch in later for row in batch] == [("2", 2), ("3", 1), ("4", 1)]
    assert stream.group.stats().acked == 7


@pytest.mark.slow
def test_the_settle_of_a_nacked_row_says_what_the_batch_still_holds(
    stream: Stream, queue: Queue
) -> None:
    one_key(queue)
    states: list[dict[str, str]] = []

    def process(batch: Any, lease: Any) -> None:
        lease.nack(batch.where("CAST(value AS STRING) = '2'"), delay="1h", error="busy")
        rows = peek(stream.spark, queue, "g").collect()
        states.append({bytes(row.value).decode(): row.state for row in rows})

    stream.settle_with(process)
    assert states[0] == {
        "0": "leased", "1": "leased", "2": "available", "3": "available", "4": "available",
        "other 0": "leased", "other 1": "leased",
    }  # fmt: skip
    stats = stream.group.stats()
    assert (stats.acked, stats.leased, stats.delayed) == (4, 0, 1)


def test_a_rejected_row_lets_the_later_rows_go_on(stream: Stream, queue: Queue) -> None:
    one_key(queue)
    stream.settle_with(
        lambda batch, lease: lease.reject(batch.where("CAST(value AS STRING) = '2'")) and None
    )
    stats = stream.group.stats()
    assert (stats.acked, stats.dead, stats.ready) == (6, 1, 0)


@pytest.mark.slow
def test_a_batch_that_failed_comes_again_in_order(stream: Stream, queue: Queue) -> None:
    publish(queue, 2)
    batches: list[list[Any]] = []

    def process(batch: Any, lease: Any) -> None:
        batches.append(with_place(batch).collect())
        if len(batches) == 1:
            raise ValueError("the sink is not there")

    stream.settle_with(process, on_error="nack")
    stream.settle_with(process)
    for rows in batches:
        check_order(rows)
    later = [row.sequence for rows in batches[1:] for row in rows]
    assert len(later) == len(set(later)) == 80
    assert stream.group.stats().acked == 80


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
    found = peek(spark, queue).orderBy("sequence").collect()
    slots: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in found:
        assert row.priority == int(row.value) % 3 * 4
        slots[row.key, row.priority].append(int(row.value))
    assert sum(map(len, slots.values())) == 300
    assert all(numbers == sorted(numbers) for numbers in slots.values())
    group = queue.group("g")
    group.configure(order="key")
    lease = group.lease("w", max_messages=20)
    assert {int(m.value) % 3 for m in lease.messages} == {2}


@pytest.mark.slow
def test_a_stream_publishes_keys_and_priorities(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    target = make_queue(tmp_path / "target", lanes=4)
    queue.publish([Message(str(n), key=f"k{n % 3}", priority=n % 2 * 9) for n in range(12)])
    writer = stream.frame().select("key", "value", "priority").writeStream.format("spark_mq")
    query = (
        writer.option("checkpointLocation", str(tmp_path / "relay")).trigger(availableNow=True)
        .start(target.path)
    )  # fmt: skip
    assert query.awaitTermination(60)
    rows = peek(spark, target).collect()
    assert sorted((int(row.value), row.key, row.priority) for row in rows) == [
        (n, f"k{n % 3}", n % 2 * 9) for n in range(12)
    ]
    first = target.group().lease("w", max_messages=6)
    assert {int(m.value) % 2 for m in first.messages} == {1}


@pytest.mark.parametrize(
    "kind", slow_but({"double"}, ["double", "string", "boolean", "decimal(3,0)"])
)
def test_a_priority_of_another_type_is_refused_before_any_job(
    spark: Any, queue: Queue, kind: str
) -> None:
    before = versions(queue)
    rows = spark.range(1).select(F.lit("x").alias("value"), F.lit(1).cast(kind).alias("priority"))
    with pytest.raises(Exception, match=r"column 'priority' is .*, not int: cast it") as caught:
        rows.write.format("spark_mq").mode("append").save(queue.path)
    assert kind.partition("(")[0] in str(caught.value)
    assert versions(queue) == before


@pytest.mark.parametrize("priority", slow_but({"10"}, ["-1", "10", "5000000000"]))
def test_a_priority_out_of_range_is_refused_and_nothing_is_published(
    spark: Any, queue: Queue, priority: str
) -> None:
    before = versions(queue)
    rows = spark.range(20, numPartitions=2).select(
        F.lit("x").alias("value"),
        F.when(F.col("id") == 13, F.lit(int(priority))).cast("long").alias("priority"),
    )
    with pytest.raises(PythonException) as caught:
        rows.write.format("spark_mq").mode("append").save(queue.path)
    assert f"column 'priority' has the value {priority}" in str(caught.value)
    assert "give whole numbers from 0 to 9, or null for 0" in str(caught.value)
    assert InvalidSchema.__name__ in str(caught.value)
    assert versions(queue) == before


# -- looks


def peek(spark: Any, queue: Queue, group: str | None = None) -> Any:
    reader = spark.read.format("spark_mq")
    return (reader if group is None else reader.option("consumerGroup", group)).load(queue.path)


@pytest.mark.delta
def test_a_read_shows_the_priority_that_counts(spark: Any, tmp_path: Path) -> None:
    """Also of foreign files, whose writers check nothing."""
    queue = make_queue(tmp_path / "plain")
    queue.publish([Message("nine", priority=9), "zero"])
    rows = spark.createDataFrame(
        [(bytearray(b"high"), 70), (bytearray(b"low"), -3), (bytearray(b"null"), None)],
        "value BINARY, priority INT",
    )
    rows.coalesce(1).write.format("delta").mode("append").save(f"{queue.path}/messages")
    rows = spark.createDataFrame([(bytearray(b"none"),)], "value BINARY")
    rows.write.format("delta").mode("append").save(f"{queue.path}/messages")
    expected = {"nine": 9, "zero": 0, "high": 9, "low": 0, "null": 0, "none": 0}

    def found(rows: Any) -> dict[str, int]:
        return {bytes(row.value).decode(): row.priority for row in rows.collect()}

    assert found(peek(spark, queue)) == expected
    seen: list[dict[str, int]] = []

    def process(batch: Any, lease: Any) -> None:
        seen.extend([found(batch), found(lease.read())])

    Stream(spark, queue, tmp_path / "c").settle_with(process)
    for way in (seen[::2], seen[1::2]):
        assert {value: priority for batch in way for value, priority in batch.items()} == expected


@pytest.mark.slow
def test_sql_computes_the_lane_of_a_key(spark: Any, queue: Queue) -> None:
    publish(queue, 1)
    rows = peek(spark, queue).selectExpr("sequence", f"crc32(key) % {LANES} AS lane").collect()
    index = messages_of(queue).index()
    for row in rows:
        ((slot, _, _),) = index.slot_runs(row.sequence, row.sequence)
        assert index.layout.lane_of(slot) == row.lane


# -- dead letters


def test_dead_letters_and_their_redrive_keep_key_and_priority(
    spark: Any, stream: Stream, queue: Queue, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    limits(copy_slices=1)
    sent = [(str(n), f"k{n % 4}", n % 2 * 7) for n in range(24)]
    for half in (sent[:12], sent[12:]):
        queue.publish([Message(value, key=key, priority=level) for value, key, level in half])
    stream.settle_with(lambda batch, lease: lease.reject(batch, error="bad") and None)
    jobs: list[int] = []
    real = spark.sparkContext.parallelize
    monkeypatch.setattr(
        spark.sparkContext, "parallelize", lambda *args: jobs.append(args[1]) or real(*args)
    )
    assert queue.sweep(copy=spark_copy(spark)).routed == 24
    assert jobs, "the copy ran in the driver"
    letters = peek(spark, queue.dead_letters).collect()
    assert sorted((bytes(r.value).decode(), r.key, r.priority) for r in letters) == sorted(sent)
    assert queue.redrive().messages == 24
    seen: list[tuple[str, str, int]] = []

    def process(batch: Any, lease: Any) -> None:
        rows = with_place(batch).collect()
        check_order(rows)
        seen.extend(
            (bytes(r.value).decode(), r.key, r.priority)
            for r in batch.select("value", "key", "priority").collect()
        )

    stream.settle_with(process)
    assert sorted(seen) == sorted(sent)


@pytest.mark.slow
def test_values_and_keys_of_a_large_batch_are_all_there(stream: Stream, queue: Queue) -> None:
    """Several Arrow batches a partition, files with many row groups of the reader's pages."""
    for _ in range(3):
        queue.publish([Message(f"{n}", key=KEYS[n % 12]) for n in range(30_000)])
    stream.options |= {"minPartitions": "5", "maxMessagesPerTrigger": "90000"}
    total = 0

    def process(batch: Any, lease: Any) -> None:
        nonlocal total
        rows = with_place(batch.withColumn("value", F.lit(b""))).collect()
        check_order(rows)
        total += len(rows)

    stream.settle_with(process)
    assert total == 90_000
    assert stream.group.stats().acked == 90_000
