"""Measure what a sink costs: ``lease.append`` beside ``write_deltalake``, and a fence.

Both groups lease the same messages in turn, append them to tables of their own, and ack them.

    python benchmarks/sink_costs.py --batches 100 --messages 1000
    python benchmarks/sink_costs.py --queue --batches 100 --messages 1000
    python benchmarks/sink_costs.py --spark --batches 20 --messages 10000

With --queue, the sink is another queue, beside a plain publish. With --spark, two streams of
foreachBatch take turns: one appends by ``lease.append``, the other by Spark's own Delta writer with
``lease.delta_options``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from spark_mq import ConsumerGroup, Lease, Queue

SCHEMA = pa.schema([("value", pa.binary())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--queue", action="store_true", help="the sink is a queue")
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    if given.spark:
        compare_streams(given.batches, given.messages)
        return
    # A checkpoint may still be written behind the last commit.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        sink, plain = (str(Path(folder) / name) for name in ("sink", "plain"))
        for place in (sink, plain):
            if given.queue:
                Queue.create(place)
            else:
                write_deltalake(place, SCHEMA.empty_table())
        plain_queue = Queue.open(plain) if given.queue else None
        queue = Queue.create(Path(folder) / "queue", max_delivery_attempts=None)
        with_sink, without = queue.group("billing"), queue.group("mail")
        with_sink.configure(sink=sink, retry="constant", retry_delay=0)
        without.ensure()
        for _ in range(given.batches):
            queue.publish([b"x" * 100] * given.messages)

        def write(lease: Lease) -> None:
            if plain_queue is None:
                write_deltalake(plain, rows_of(lease), mode="append")
            else:
                plain_queue.publish(rows_of(lease))

        def append(lease: Lease) -> None:
            lease.append(rows_of(lease))

        times: dict[str, list[float]] = {"plain": [], "sink": [], "resolved": []}
        for _ in range(given.batches):
            times["plain"].append(seconds(without, given.messages, write))
            times["sink"].append(seconds(with_sink, given.messages, append))
        for _ in range(given.batches):
            queue.publish([b"x" * 100] * given.messages)
            lease = with_sink.lease("w", max_messages=given.messages)
            assert lease is not None
            lease.nack(delay=0)
            times["resolved"].append(seconds(with_sink, given.messages, append))
    middle = {name: statistics.median(found) for name, found in times.items()}
    print(f"lease, write and ack: {middle['plain'] * 1e3:.1f} ms by a plain write, "
          f"{middle['sink'] * 1e3:.1f} ms by lease.append: "
          f"{middle['sink'] / middle['plain']:.2f}x")  # fmt: skip
    print(f"after a failed lease, which is fenced: {middle['resolved'] * 1e3:.1f} ms, so "
          f"a fence takes {(middle['resolved'] - middle['sink']) * 1e3:.1f} ms")  # fmt: skip


def compare_streams(batches: int, messages: int) -> None:
    from spark_mq.spark import for_each_batch, session

    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Else Delta's writer works in 50 partitions on what fits into one.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = session("sink costs", settings, delta=True)
    spark.sparkContext.setLogLevel("OFF")
    times: dict[str, list[float]] = {"plain": [], "sink": []}
    with tempfile.TemporaryDirectory() as folder:
        queue = Queue.create(Path(folder) / "queue")
        sink, plain = (str(Path(folder) / name) for name in ("sink", "plain"))
        write_deltalake(sink, SCHEMA.empty_table())
        queue.group("sink").configure(sink=sink)

        def append(batch: Any, lease: Any) -> None:
            begin = time.perf_counter()
            lease.append(batch.select("value"))
            times["sink"].append(time.perf_counter() - begin)

        def write(batch: Any, lease: Any) -> None:
            begin = time.perf_counter()
            writer = batch.select("value").write.format("delta").mode("append")
            writer.options(**lease.delta_options).save(plain)
            times["plain"].append(time.perf_counter() - begin)

        for at in range(batches + 2):
            queue.publish([b"x" * 100] * messages)
            for name, process in (("sink", append), ("plain", write)):
                frame = spark.readStream.format("spark_mq").option("consumerGroup", name)
                each = for_each_batch(queue.group(name), process)
                query = frame.load(queue.path).writeStream.foreachBatch(each)
                query = query.option("checkpointLocation", f"{folder}/checkpoint-{name}")
                query.trigger(availableNow=True).start().awaitTermination()
            if at == 1:  # the first two batches warm up
                for found in times.values():
                    found.clear()
    spark.stop()
    middle = {name: statistics.median(found) for name, found in times.items()}
    print(f"a write in foreachBatch: {middle['plain'] * 1e3:.0f} ms by Spark's Delta writer, "
          f"{middle['sink'] * 1e3:.0f} ms by lease.append: "
          f"{middle['sink'] / middle['plain']:.2f}x")  # fmt: skip


def seconds(group: ConsumerGroup, messages: int, write: Callable[[Lease], None]) -> float:
    begin = time.perf_counter()
    lease = group.lease("w", max_messages=messages)
    assert lease is not None
    write(lease)
    lease.ack()
    return time.perf_counter() - begin


def rows_of(lease: Lease) -> pa.Table:
    return lease.table().select(["value"]).cast(SCHEMA)


if __name__ == "__main__":
    main()
