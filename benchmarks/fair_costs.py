"""Measure leases and acks of a large backlog of many tenants: fair, with a limit by key, without.

Each commit of the backlog has messages of all tenants, or of one with ``--apart``. The groups of
one queue lease the same backlog in turn, each by some workers that hold one lease at a time.

    python benchmarks/fair_costs.py --messages 10000000 --tenants 1000 --workers 8
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from spark_mq import ConsumerGroup, Lease, Queue

FEATURES: Final[Mapping[str, Mapping[str, Any]]] = {
    "without": {},
    'order="fair"': {"order": "fair"},
    "max_in_flight_per_key": {"max_in_flight_per_key": 1_000},
    'order="key"': {"order": "key"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--lanes", type=int, default=1_024)
    parser.add_argument("--commit", type=int, default=100_000, help="messages of each commit")
    parser.add_argument("--apart", action="store_true", help="each commit has one tenant")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lease", type=int, default=1_000, help="messages of each lease")
    parser.add_argument("--leases", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        queue = Queue.create(Path(folder) / "queue", lanes=given.lanes)
        for at in range(given.messages // given.commit):
            tenants = [at] * given.commit if given.apart else range(given.commit)
            keys = [f"tenant {number % given.tenants}" for number in tenants]
            queue.publish(pa.table({"value": [b"x" * 100] * given.commit, "key": keys}))
        groups = {name: queue.group(f"g{at}") for at, name in enumerate(FEATURES)}
        for name, group in groups.items():
            group.configure(**FEATURES[name])
        held: dict[str, deque[Lease]] = {name: deque() for name in FEATURES}
        times: dict[str, list[float]] = {name: [] for name in FEATURES}
        sizes: dict[str, list[int]] = {name: [] for name in FEATURES}
        turns = list(FEATURES)
        for _ in range(given.leases):
            turns.append(turns.pop(0))  # the first of a round is the slowest
            for name in turns:
                begin = time.perf_counter()
                leased = turn(groups[name], held[name], given.workers, given.lease)
                times[name].append(time.perf_counter() - begin)
                sizes[name].append(leased)
        for name in FEATURES:
            times[name] = times[name][given.workers :]
            sizes[name] = sizes[name][given.workers :]
    base = sum(times["without"]) / sum(sizes["without"])
    for name, found in times.items():
        each = sum(found) / max(1, sum(sizes[name]))
        print(
            f"{name}: {statistics.median(found) * 1e3:.2f} ms for {statistics.median(sizes[name])} "
            f"messages, {each / base:.2f}x of a message"
        )


def turn(group: ConsumerGroup, held: deque[Lease], workers: int, messages: int) -> int:
    """Lease for one of the workers, and ack what it held before. Return the messages leased."""
    if len(held) == workers:
        held.popleft().ack()
    lease = group.lease("w", max_messages=messages)
    if lease is not None:
        held.append(lease)
    return 0 if lease is None else len(lease)


if __name__ == "__main__":
    main()
