"""Memory: of a driver and its planner over an hour of ten leases a second, made faster.

Of a task, over a slice of a gigabyte.

Each is measured in a process of its own. The driver's runs the hooks of the streaming source (look,
lease and ack, plan), in turn with a worker of the Python API, which makes half of the leases; their
clock is moved by a tenth of a second for each lease.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import Point, Result

from curves.age import sweeper
from curves.made_up import fill
from curves.memory_of import memory_mb, peak_mb
from spark_mq import Queue
from spark_mq.testing import ManualClock

SIZE = 10
EACH = 18_000
"""Leases of the driver, and as many of the worker: an hour of ten a second."""
WARMUP = 100
PLACES = 10


def leases_of(path: str, leases: int) -> dict[str, Any]:
    """In a new process, so many leases of each: what is resident, in MB, after each tenth of
    them.
    """
    from spark_mq.streaming.source import StreamOptions, StreamSource

    clock = ManualClock()
    queue = Queue.open(path, clock=clock)
    source = StreamSource(queue.group("stream")._ledger, StreamOptions(max_messages=SIZE))
    worker = queue.group("worker")
    at = source.initial()
    seen = []
    for number in range(WARMUP + leases):
        end = source.latest(at)
        plan = source.plan(at, end)
        assert sum(piece.rows for piece, _ in plan.slices) == SIZE, "the queue ran dry"
        lease = worker.lease("bench", max_messages=SIZE)
        assert lease is not None
        assert len(lease.messages) == SIZE
        lease.ack()
        at = end
        clock.advance(0.2)
        done = number + 1 - WARMUP
        if done >= 0 and done % (leases // PLACES) == 0:
            seen.append((2 * done, memory_mb()))
    source.stop()
    return {"seen": seen}


def slice_of(path: str, rows: int) -> dict[str, Any]:
    """In a new process: what a task of Spark holds at most, in MB, above what it held before, while
    it goes through all of a queue.
    """
    from spark_mq.spark import partitions
    from spark_mq.spark.schema import READ_SCHEMA

    queue = Queue.open(path)
    lease = queue.group("bench").lease("bench", max_messages=rows)
    assert lease is not None
    index = queue._context.messages.index()
    pieces = tuple((piece, r) for r in lease._ranges for piece in index.slices(r.first, r.last))
    before, found, size = memory_mb(), 0, 0
    for batch in partitions.read(partitions.SlicePartition(queue.path, pieces), READ_SCHEMA):
        found += batch.num_rows
        size += batch.nbytes
    assert found == rows
    return {"before": before, "peak": peak_mb(), "slice": size / 2**20}


def in_a_process(what: str, path: str, number: int) -> dict[str, Any]:
    """One of these in a process of its own."""
    command = [sys.executable, "-m", "curves.memory", what, path, str(number)]
    run = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    )
    reported: dict[str, Any] = json.loads(run.stdout)
    return reported


def memory(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """Over time, and over slices in small and in big row groups.

    A sweep runs beside. Rounds do not count here.
    """
    from curves.deep import publish

    leases = 300 if short else EACH
    queue = Queue.create(folder / "memory", visibility_timeout="10m")
    fill(queue, (leases + WARMUP + 10) * SIZE)
    with sweeper(queue.path):
        seen = in_a_process("leases", queue.path, leases)["seen"]
    for done, resident in seen:
        yield Point("memory", done, {"driver and worker": resident})
    what = f"memory of a driver and a worker, {2 * leases:,} leases"
    start, middle, end = seen[0][1], seen[len(seen) // 2][1], seen[-1][1]
    yield Result(f"{what}: at the start", start, "MB")
    yield Result(f"{what}: in the middle", middle, "MB", f"{middle / start:.2f}x of the start")
    yield Result(f"{what}: at the end", end, "MB", f"{end / start:.2f}x of the start", "flat")
    rows = 100_000 if short else 1_000_000
    for kind in ("own", "foreign"):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            queue = Queue.create(f"{place}/slice")
            publish(queue, rows, 1_000, kind == "foreign")
            reported = in_a_process("slice", queue.path, rows)
        above = reported["peak"] - reported["before"]
        groups = "row groups of 20,000" if kind == "own" else "one row group"
        yield Result(f"memory of a task over {reported['slice']:,.0f} MB in {groups}: peak above "
                     "its start", above, "MB",
                     f"{above / reported['slice']:.2f}x of the slice", "bounded")  # fmt: skip


if __name__ == "__main__":
    measure = {"leases": leases_of, "slice": slice_of}[sys.argv[1]]
    print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
