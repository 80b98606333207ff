"""Leases that begin deep inside a big file of a foreign writer: a million rows in one row group, by
plain delta-rs.

What it takes to lease 1,000 messages and read them, by the Python API and by what a task of Spark
runs, at the start of the file and further on; and the memory that it takes. Beside it the same rows
as spark_mq writes them, in row groups of 20,000.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import WriterProperties, write_deltalake
from figures import Point, Result

from curves.memory_of import peak_mb
from spark_mq import Queue
from spark_mq.lease import Lease

POSITIONS = (0, 25, 50, 75, 99)
"""In % of the file."""
BATCH = 1_000


def publish(queue: Queue, rows: int, size: int, foreign: bool) -> None:
    """Random values, which no compression makes smaller."""
    noise = os.urandom(size * rows)
    offsets = pa.array(range(0, (rows + 1) * size, size), pa.int32())
    values = pa.Array.from_buffers(
        pa.binary(), rows, [None, offsets.buffers()[1], pa.py_buffer(noise)]
    )
    if not foreign:
        queue.publish(pa.table({"value": values}))
        return
    write_deltalake(
        queue._context.messages.path,
        pa.table({"value": values}),
        mode="append",
        schema_mode="merge",
        writer_properties=WriterProperties(
            compression="SNAPPY", max_row_group_size=rows, write_batch_size=rows
        ),
        target_file_size=4 * rows * (size + 100),
    )
    files = list(queue._context.messages.index().slices(0, 1 << 62))
    meta = pq.ParquetFile(Path(queue._context.messages.path, files[0].path)).metadata
    assert (len(files), meta.num_row_groups, meta.num_rows) == (1, 1, rows), (
        "not one file with one row group"
    )


def with_python(queue: Queue, lease: Lease) -> int:
    """Reads as the Python API does."""
    return int(lease.table().num_rows)


def with_task(queue: Queue, lease: Lease) -> int:
    """Reads as a task of Spark does, by its very function, batch by batch."""
    from spark_mq.spark import partitions
    from spark_mq.spark.schema import READ_SCHEMA

    index = queue._context.messages.index()
    pieces = [(piece, r) for r in lease._ranges for piece in index.slices(r.first, r.last)]
    parts = partitions.cut(queue.path, pieces, {}, 1)
    return sum(batch.num_rows for part in parts for batch in partitions.read(part, READ_SCHEMA))


READERS: dict[str, Callable[[Queue, Lease], int]] = {
    "Python": with_python,
    "a Spark task": with_task,
}


def one(path: str, reader: str, group: str, start: int) -> float:
    """Milliseconds of a lease from `start` on, and its reading, in a fresh handle."""
    queue = Queue.open(path)
    asked = queue.group(f"g{os.getpid()}-{group}", start=start).ensure()
    begun = time.perf_counter()
    lease = asked.lease("bench", max_messages=BATCH)
    assert lease is not None
    assert READERS[reader](queue, lease) == BATCH
    return (time.perf_counter() - begun) * 1000


def probe(path: str, reader: str, rounds: int) -> dict[str, object]:
    """In a new process: milliseconds by position, and the most memory that this process ever had,
    in MB.
    """
    index = Queue.open(path)._context.messages.index()
    starts = {at: index.nth_from(0, index.total * at // 100 + 1) for at in POSITIONS}
    one(path, reader, "first", starts[0])
    times: dict[int, list[float]] = {at: [] for at in POSITIONS}
    for number in range(rounds):
        for at, start in starts.items():
            times[at].append(one(path, reader, f"{number}-{at}", start))
    return {"ms": {at: statistics.median(ms) for at, ms in times.items()}, "peak": peak_mb()}


def deep(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """The curve over the position, for values of 1 KB and of 100 B."""
    rows = 100_000 if short else 1_000_000
    for size in (100,) if short else (1_000, 100):
        lines: dict[str, dict[str, float]] = {}
        for kind in ("foreign", "own"):
            queue = Queue.create(folder / f"{kind}-{size}")
            publish(queue, rows, size, kind == "foreign")
            for reader in READERS:
                command = [
                    sys.executable,
                    "-m",
                    "curves.deep",
                    queue.path,
                    reader,
                    str(max(2, rounds // 6)),
                ]
                run = subprocess.run(
                    command,
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=Path(__file__).parents[1],
                )
                reported = json.loads(run.stdout)
                lines[f"{kind}, {reader}"] = reported["ms"]
                what = (
                    f"deep in a file of {rows:,} rows of {size} B, {kind}, {reader}: lease and "
                    f"read {BATCH:,}"
                )
                ms = list(reported["ms"].values())
                goal = "the same at each position" if kind == "foreign" else ""
                yield Result(f"{what}, at 0 %", ms[0], "ms")
                yield Result(
                    f"{what}, at {POSITIONS[-1]} %",
                    ms[-1],
                    "ms",
                    f"{ms[-1] / ms[0]:.2f}x of 0 %",
                    goal,
                )
                yield Result(f"{what}, peak memory", reported["peak"], "MB")
        for at in POSITIONS:
            yield Point(
                f"position, {size} B", at, {name: ms[str(at)] for name, ms in lines.items()}
            )


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
