"""The time of the commit of a lease, and of an ack: against the size of the batch, against the
backlog.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import Point, Result, summary

from curves.made_up import fill
from spark_mq import ConsumerGroup, Queue

__all__ = ["against_backlog", "against_batch", "cycle"]

WARMUP = 2
Times = dict[str, list[float]]


def cycle(group: ConsumerGroup, size: int, times: Times | None = None) -> None:
    """One lease and one ack, each one commit; their milliseconds go into `times`."""
    start = time.perf_counter()
    lease = group.lease("bench", max_messages=size)
    leased = time.perf_counter()
    assert lease is not None, "the queue ran dry"
    assert len(lease) == size
    middle = time.perf_counter()
    lease.ack()
    if times is not None:
        times["lease"].append((leased - start) * 1000)
        times["ack"].append((time.perf_counter() - middle) * 1000)


def against_batch(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """All sizes in turn, on one group."""
    sizes = (100, 10_000, 100_000) if short else (100, 1_000, 10_000, 100_000, 1_000_000)
    queue = Queue.create(folder / "batch", visibility_timeout="10m")
    fill(queue, (rounds + WARMUP) * sum(sizes), commit=max(sizes))
    group = queue.group("bench").ensure()
    times: dict[int, Times] = {size: {"lease": [], "ack": []} for size in sizes}
    for number in range(rounds + WARMUP):
        for size in sizes:
            cycle(group, size, times[size] if number >= WARMUP else None)
    yield from reported("batch", times, "of {:,}")


def against_backlog(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """Leases of 1,000 from queues with so much behind it, in turn.

    From an empty one each time all that there is.
    """
    depths = (0, 10_000, 100_000) if short else (0, 10_000, 100_000, 1_000_000, 10_000_000)
    size, groups, queues = 1_000, {}, {}
    for depth in depths:
        queue = Queue.create(folder / f"backlog-{depth}", visibility_timeout="10m")
        fill(queue, depth, commit=10_000)
        queues[depth], groups[depth] = queue, queue.group("bench").ensure()
    times: dict[int, Times] = {depth: {"lease": [], "ack": []} for depth in depths}
    for number in range(rounds + WARMUP):
        for depth, group in groups.items():
            fill(queues[depth], size, commit=size)  # so that each of them stays as deep as it is
            group._context.messages.index()
            cycle(group, size, times[depth] if number >= WARMUP else None)
    yield from reported("backlog", times, f"of {size:,}, backlog {{:,}}")


def reported(curve: str, times: dict[int, Times], name: str) -> Iterator[Result | Point]:
    """The curve, and its p50 at each place beside that at the first one."""
    for verb in ("lease", "ack"):
        medians = {x: statistics.median(ms[verb]) for x, ms in times.items()}
        first = next(iter(medians.values()))
        for x, value in medians.items():
            against: Any = "" if x == next(iter(medians)) else f"{value / first:.2f}x of the first"
            yield Result(f"{curve}: {verb} {name.format(x)}, p50", value, "ms", against)
        yield Result(
            f"{curve}: {verb}, highest p50 over the lowest",
            max(medians.values()) / min(medians.values()),
            "x",
        )
    for x, ms in times.items():
        yield Point(curve, x, {**summary("lease", ms["lease"]), **summary("ack", ms["ack"])})
