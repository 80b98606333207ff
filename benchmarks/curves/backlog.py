"""A long log: 100,000 commits of one message each, opened by a new process, before sweeps and after
them.

The commits are made up: their JSON is written directly, an hour old, as a publisher of single
messages would have left it, with a checkpoint now and then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from figures import Point, Result, median_ms

from curves.made_up import LINKS
from spark_mq import Queue
from spark_mq.parquet.writer import write_file

MEASURED = ("open and first lease, ms", "poll, ms", "stats(), ms", "publish of one message, ms")
PROCESSES = 3
"""An odd number: of each figure the middle one counts."""
PROBES = 20


def fill(queue: Queue, commits: int, checkpoint_every: int) -> None:
    """Makes up so many commits of one message each.

    Their data files are a few files under many names.
    """
    path = Path(queue._context.messages.path)
    messages = pa.table(
        {
            "message_id": ["m"],
            "value": [b"x" * 100],
            "published_at": pa.array([0], pa.timestamp("us", "UTC")),
        }
    )
    hour_ago = time.time() - 3600
    os.utime(path / "_delta_log" / f"{0:020d}.json", (hour_ago, hour_ago))
    for version in range(1, commits + 1):
        if version % LINKS == 1:
            file = write_file(queue._context.messages.files, messages)
        name = f"part-{uuid.uuid4()}.parquet"
        os.link(path / file.path, path / name)
        reported = {
            "timestamp": int(hour_ago * 1000),
            "operation": "WRITE",
            "spark_mq_operation_id": uuid.uuid4().hex,
        }
        add = {"path": name, "partitionValues": {}, "size": file.size, "modificationTime": 0,
               "dataChange": True,
               "stats": file.stats}  # fmt: skip
        log = path / "_delta_log" / f"{version:020d}.json"
        log.write_text(
            json.dumps({"commitInfo": reported}) + "\n" + json.dumps({"add": add}) + "\n"
        )
        os.utime(log, (hour_ago, hour_ago))
        if version % checkpoint_every == 0:
            DeltaTable(path, version=version).create_checkpoint()


def probe(path: str) -> dict[str, float]:
    """In a new process: milliseconds for each step."""
    started = time.perf_counter()
    queue = Queue.open(path)
    opened = time.perf_counter()
    group = queue.group(f"g{os.getpid()}").ensure()
    index = queue._context.messages.index()
    indexed = time.perf_counter()
    lease = group.lease("w")
    leased = time.perf_counter()
    assert lease is not None
    lease.ack()

    return {
        "messages": index.total,
        "open, ms": (opened - started) * 1000,
        "first look at the log, ms": (indexed - opened) * 1000,
        "first lease, ms": (leased - indexed) * 1000,
        "poll, ms": median_ms(queue._context.messages.index, PROBES, 0),
        "stats(), ms": median_ms(group.stats, PROBES, 0),
        "next lease and ack, ms": median_ms(lambda: group.lease("w").ack(), PROBES, 0),  # type: ignore[union-attr]
        "publish of one message, ms": median_ms(lambda: queue.publish(b"y"), PROBES, 0),
    }


def probed(path: str, processes: int) -> dict[str, float]:
    """Medians over a few new processes."""
    each = []
    for _ in range(processes):
        run = subprocess.run(
            [sys.executable, "-m", "curves.backlog", path],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        reported = json.loads(run.stdout)
        each.append(
            reported
            | {
                "open and first lease, ms": reported["open, ms"]
                + reported["first look at the log, ms"]
                + reported["first lease, ms"]
            }
        )
    return {name: sorted(one[name] for one in each)[processes // 2] for name in each[0]}


def backlog(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """Logs of several lengths; rounds do not count here."""
    shortest: dict[str, float] = {}
    for commits in (50, 500, 2_000) if short else (50, 1_000, 10_000, 100_000):
        queue = Queue.create(folder / f"log-{commits}")
        fill(queue, commits, max(100, commits // 20))
        before = probed(queue.path, 1 if short else PROCESSES)
        for _ in range(2):
            Queue.open(queue.path).sweep()
        after = probed(queue.path, 1 if short else PROCESSES)
        for kind, reported in (("without a sweep", before), ("swept", after)):
            for name in MEASURED:
                what, unit = name.split(", ")
                first = shortest.setdefault(f"{kind} {what}", reported[name])
                yield Result(
                    f"{commits:,} commits of one message, {kind}: {what}",
                    reported[name],
                    unit,
                    f"{reported[name] / first:.2f}x of the shortest log",
                )
        lines = {f"{name.removesuffix(', ms')}, {kind}": reported[name]
                 for kind, reported in (("without a sweep", before), ("swept", after))
                 for name in (*MEASURED, "next lease and ack, ms")}  # fmt: skip
        yield Point("log", commits, lines)


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1])))
