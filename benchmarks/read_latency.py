"""Measure how long a lease takes to read 1,000 small messages.

Several source trees are measured in turns, because other load changes the figures.

    python benchmarks/read_latency.py            # this tree
    python benchmarks/read_latency.py OLD NEW    # two checkouts; the ratio is NEW / OLD
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MESSAGES = 1_000
LEASES = 20
ROUNDS = 3
LAYOUTS = {
    "one file": (1_000, LEASES),
    "10 files": (100, 10 * LEASES),
    "a slice of 100,000": (100_000, 1),
}


def values(kind: str, rows: int) -> list[bytes]:
    """Return values of 1 KB, or small JSON documents."""
    chance = random.Random(rows)
    if kind == "1 KB":
        return [chance.randbytes(1_024) for _ in range(rows)]
    documents = ({"id": n, "amount": chance.random(), "name": "x"} for n in range(rows))
    return [json.dumps(document).encode() for document in documents]


def measure(folder: str) -> dict[str, float]:
    """Return the lower quartile in milliseconds of each kind of read.

    Each read has a new lease.
    """
    from spark_mq import Queue

    found: dict[str, list[float]] = {}
    for kind in ("1 KB", "JSON"):
        for layout, (rows, files) in LAYOUTS.items():
            queue = Queue.create(f"{folder}/{kind} {layout}")
            batch = values(kind, rows)
            for _ in range(files):
                queue.publish(batch)
            for number in range(LEASES):
                lease = queue.group().lease("w", max_messages=MESSAGES)
                assert lease is not None
                what = "table()" if number % 2 else "messages"
                began = time.perf_counter()
                read = lease.messages if what == "messages" else lease.table()
                took = time.perf_counter() - began
                found.setdefault(f"{kind}, {layout}, {what}", []).append(took)
                assert len(read) == MESSAGES
                lease.ack()
    return {name: 1_000 * statistics.quantiles(times[1:], n=4)[0] for name, times in found.items()}


def of_tree(tree: str) -> dict[str, float]:
    """Measure in a new process that imports spark_mq from a tree."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--measure", folder]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": tree}, stdout=subprocess.PIPE, check=True
        )
    return json.loads(done.stdout)


def main(trees: list[str]) -> None:
    """Print one line for each kind of read."""
    rounds = [{tree: of_tree(tree) for tree in trees} for _ in range(ROUNDS)]
    print(f"{'ms for 1,000 messages':40}", *(f"{Path(tree).name:>10}" for tree in trees), "ratio")
    for name in rounds[0][trees[0]]:
        each = [statistics.median(of[tree][name] for of in rounds) for tree in trees]
        print(f"{name:40}", *(f"{ms:10.2f}" for ms in each), f"{each[-1] / each[0]:5.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1:] or [str(Path(__file__).parents[1])])
