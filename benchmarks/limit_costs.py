"""Measure what the limits of a group cost: leases and acks with each of them, and without.

The groups of one queue lease the same messages in turn. Their limits are so high that nobody waits.

    python benchmarks/limit_costs.py --leases 300 --messages 1000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from spark_mq import ConsumerGroup, Queue

FEATURES: Final[Mapping[str, Mapping[str, Any]]] = {
    "without": {},
    "rate_limit": {"rate_limit": "1000000000/s"},
    "byte_rate_limit": {"byte_rate_limit": "1000g/s"},
    "max_in_flight_bytes": {"max_in_flight_bytes": "1000g"},
    "retry as a list": {"retry": ["1s", "1m"]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--leases", type=int, default=300)
    parser.add_argument("--messages", type=int, default=1_000, help="of each lease")
    parser.add_argument("--held", type=int, default=0, help="leases that stay open meanwhile")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        queue = Queue.create(Path(folder) / "queue")
        groups = [queue.group(f"g{at}") for at in range(len(FEATURES))]
        for group, settings in zip(groups, FEATURES.values(), strict=True):
            group.configure(**settings)
        for _ in range(given.leases + given.held):
            queue.publish([b"x" * 100] * given.messages)
        for group in groups:
            for _ in range(given.held):
                group.lease("holder", max_messages=given.messages, visibility_timeout="1h")
        times: dict[str, list[float]] = {name: [] for name in FEATURES}
        turns = list(zip(FEATURES, groups, strict=True))
        for _ in range(given.leases):
            turns.append(turns.pop(0))  # the first of a round is the slowest
            for name, group in turns:
                times[name].append(seconds(group, given.messages))
    base = statistics.median(times["without"])
    for name, found in times.items():
        middle = statistics.median(found)
        print(f"{name}: {middle * 1e3:.2f} ms, {middle / base:.2f}x")


def seconds(group: ConsumerGroup, messages: int) -> float:
    """Return how long a lease and its ack take."""
    begin = time.perf_counter()
    lease = group.lease("w", max_messages=messages)
    assert lease is not None
    assert len(lease) == messages
    lease.ack()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
