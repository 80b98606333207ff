"""What a long log costs: opening a queue of many single-message commits in a new process, its first
lease, a poll, a publish.

    .venv/bin/python benchmarks/backlog.py --commits 20000

The commits are made up: their JSON is written directly, an hour old, as a publisher of single
messages would have left it, with a checkpoint every --checkpoint-every of them. Before, and after
sweeps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from spark_mq import Queue
from spark_mq.parquet.writer import write_file

PROBES = 20
LINKS = 10_000
"""Names a file may have; ext4 allows 65,000."""


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

    def median(action: object) -> float:
        times = []
        for _ in range(PROBES):
            start = time.perf_counter()
            action()  # type: ignore[operator]
            times.append((time.perf_counter() - start) * 1000)
        return statistics.median(times)

    return {
        "messages": index.total,
        "open, ms": (opened - started) * 1000,
        "first look at the log, ms": (indexed - opened) * 1000,
        "first lease, ms": (leased - indexed) * 1000,
        "poll, ms": median(queue._context.messages.index),
        "stats(), ms": median(group.stats),
        "next lease and ack, ms": median(lambda: group.lease("w").ack()),  # type: ignore[union-attr]
        "publish of one message, ms": median(lambda: queue.publish(b"y")),
    }


def show(title: str, path: str) -> None:
    done = subprocess.run(
        [sys.executable, __file__, "--probe", path], check=True, capture_output=True, text=True
    )
    reported = json.loads(done.stdout)
    files = sum(len(names) for _, _, names in os.walk(Path(path, "messages", "_delta_log")))
    print(
        f"{title} ({files:,} files in the log): "
        + ", ".join(f"{name}: {value:,.1f}" for name, value in reported.items()),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=20_000)
    parser.add_argument("--checkpoint-every", type=int, default=5_000)
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        print(json.dumps(probe(args.probe)))
        return
    with tempfile.TemporaryDirectory() as folder:
        queue = Queue.create(Path(folder, "queue"))
        fill(queue, args.commits, args.checkpoint_every)
        show("before a sweep", queue.path)
        for number in (1, 2):
            start = time.perf_counter()
            report = Queue.open(queue.path).sweep()
            print(f"sweep {number}: {time.perf_counter() - start:.1f} s, {report}", flush=True)
            show("after it", queue.path)


if __name__ == "__main__":
    main()
