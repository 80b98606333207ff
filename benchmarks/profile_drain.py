"""Where a drain through Spark spends its time: start-up, medians of each stage of a batch, and a
profile of the tasks' reader.

    .venv/bin/python benchmarks/profile_drain.py --messages 800000 --batch 200000
    # no Spark: one batch's partitions, under cProfile
    .venv/bin/python benchmarks/profile_drain.py --only reader

The stages are Spark's (``durationMs`` of its progress), but of ``addBatch``, which is all of
foreachBatch: the handler, and the rest (settling, if any).
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from peers.streams import Drained, Stores
from peers.values import KINDS, values
from pyspark.sql.types import StructType
from session import session

from spark_mq import Queue
from spark_mq.parquet.writer import ROW_GROUP_ROWS
from spark_mq.spark import partitions
from spark_mq.spark.schema import READ_SCHEMA


def stages(folder: Path, given: argparse.Namespace) -> None:
    """Drain by each side in turn. Print all but the first time, and the ratios to plain Delta."""
    with session(folder) as spark:
        stores = Stores(spark, folder / "stores", given.kind, given.batch)
        stores.fill(given.messages)
        sides = {
            "plain Delta": stores.from_delta,
            "spark_mq, the batch": lambda: stores.from_queue("batch"),
            "spark_mq, lease.read()": lambda: stores.from_queue("read"),
            "spark_mq, through Python": lambda: stores.from_queue("narrow"),
            "spark_mq, through Python, all columns": lambda: stores.from_queue("python"),
        }
        sides = {
            name: sides[name]
            for name in sides
            if not given.side or name in given.side or name == "plain Delta"
        }
        steady: dict[str, list[float]] = {name: [] for name in sides}
        total: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(1 + given.rounds):
            for name in list(sides)[:: -1 if number % 2 else 1]:  # none is always the first
                drained = sides[name]()
                if number:
                    show(name, drained, given.batch)
                    steady[name].append(statistics.median(drained.steady()))
                    total[name].append(drained.seconds)
        for name in sides:
            of_delta = [
                [
                    f"{theirs / own:.2f}"
                    for theirs, own in zip(times["plain Delta"], times[name], strict=True)
                ]
                for times in (steady, total)
            ]
            print(
                f"\n{name}, of plain Delta: steady state {of_delta[0]}, with start-up {of_delta[1]}"
            )


def show(name: str, drained: Drained, batch: int) -> None:
    cycle, handler = statistics.median(drained.steady()), statistics.median(drained.handler[2:])
    print(
        f"\n{name}: {drained.seconds:.2f} s in all, the first batch after {drained.begun:.2f} s; "
        f"steady state {batch / cycle:,.0f} messages/s, {cycle * 1000:.0f} ms a batch"
    )
    print(f"  {'the handler: reads every byte':<34}{handler * 1000:8.0f} ms")
    rest = drained.stages.get("addBatch", 0) - handler * 1000
    print(f"  {'the rest of addBatch (and settling)':<34}{rest:8.0f} ms")
    for stage, ms in sorted(drained.stages.items(), key=lambda item: -item[1]):
        if stage not in ("addBatch", "triggerExecution"):
            print(f"  {stage:<34}{ms:8.0f} ms")


def reader(folder: Path, kind: str, batch: int) -> None:
    """One batch's partitions, read as tasks read them but one after the other in this process.

    Then the same under a profiler.
    """
    queue = Queue.create(folder / "queue")
    for _ in range(2):
        queue.publish(pa.table({"value": pa.array(values(kind, batch // 2), pa.binary())}))
    lease = queue.group("profile").lease("profile", max_messages=batch)
    assert lease is not None
    index = queue._context.messages.index()
    pieces = [(piece, of) for of in lease._ranges for piece in index.slices(of.first, of.last)]
    parts = partitions.cut(queue.path, pieces, {}, 1)
    schema = StructType([READ_SCHEMA[name] for name in ("sequence", "lease_id", "value")])

    def read() -> int:
        return sum(rows.num_rows for part in parts for rows in partitions.read(part, schema))

    start = time.perf_counter()
    assert read() == batch
    seconds = time.perf_counter() - start
    with cProfile.Profile() as profile:
        read()
    stats = pstats.Stats(profile)
    decoded = sum(
        calls for (_, _, name), (_, calls, *_) in stats.stats.items() if "read_row_group" in name
    )  # type: ignore[attr-defined]
    groups = -(-batch // 2 // ROW_GROUP_ROWS) * 2
    print(
        f"\nreader: {batch:,} messages in {seconds * 1000:.0f} ms by one process "
        f"({batch / seconds:,.0f}/s), {len(parts)} partitions;"
    )
    print(
        f"  {decoded} row groups decoded where the files have {groups}: one that two partitions "
        "share is decoded by both"
    )
    stats.sort_stats("tottime").print_stats(12)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("stages", "reader"), help="default: both")
    parser.add_argument(
        "--messages", type=int, default=800_000, help="to drain; at least four batches"
    )
    parser.add_argument("--batch", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=1, help="after one that is not shown")
    parser.add_argument("--side", action="append", default=[], help="also this one; default: all")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        if given.only != "stages":
            reader(Path(folder) / "reader", given.kind, given.batch)
        if given.only != "reader":
            stages(Path(folder), given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
