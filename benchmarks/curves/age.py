"""The time of commits as a queue grows old: 20,000 leases and acks, with a sweep running beside
them as in production; 4,000 without.

The sweep is a process of its own that sweeps, pauses, and sweeps again, as ``jobs/sweep.py
--every`` does.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figures import Point, Result, summary

from curves.commits import Times, cycle
from curves.made_up import fill
from spark_mq import Queue

PAUSE = 10.0
"""Seconds between two sweeps: 20,000 leases are here made in minutes, not in an hour."""
LEASES, UNSWEPT, STEP = 20_000, 4_000, 1_000
SIZE = 10


def keep_sweeping(path: str, pause: float, ready: Any, stop: Any) -> None:
    """Sweeps until asked to stop."""
    queue = Queue.open(path)
    ready.set()
    while not stop.wait(pause):
        queue.sweep()


@contextmanager
def sweeper(path: str, pause: float = PAUSE) -> Iterator[None]:
    """A process that sweeps while the block runs."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=keep_sweeping, args=(path, pause, ready, stop))
    process.start()
    try:
        assert ready.wait(60), "the sweeper did not start"
        yield
    finally:
        stop.set()
        process.join(120)
        process.kill()


def log_files(queue: Queue) -> int:
    """Files of the ledgers' table: its log, and the data."""
    return len([file for file in Path(queue._context.ledgers.path).rglob("*") if file.is_file()])  # type: ignore[attr-defined]


def opened(path: str) -> float:
    """Milliseconds until a new handle has its first lease."""
    start = time.perf_counter()
    lease = Queue.open(path).group("bench").lease("new", max_messages=1)
    took = (time.perf_counter() - start) * 1000
    assert lease is not None
    lease.release()
    return took


def age(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """Two queues in turn, lease by lease: one is swept, one is not, and is left early, since each
    lease takes longer.

    Rounds do not count here: every lease does.
    """
    leases, unswept, step = (300, 200, 100) if short else (LEASES, UNSWEPT, STEP)
    queues = {
        kind: Queue.create(folder / f"age-{kind}", visibility_timeout="10m")
        for kind in ("with the sweep", "without")
    }
    for queue in queues.values():
        fill(queue, (leases + 20) * SIZE)
    medians: dict[str, list[dict[str, float]]] = {kind: [] for kind in queues}
    with sweeper(queues["with the sweep"].path, 1.0 if short else PAUSE):
        groups = {kind: queue.group("bench").ensure() for kind, queue in queues.items()}
        for _ in range(10):
            for group in groups.values():
                cycle(group, SIZE)
        for upto in range(step, leases + 1, step):
            if upto > unswept:
                groups.pop("without", None)
            times: dict[str, Times] = {kind: {"lease": [], "ack": []} for kind in queues}
            for _ in range(step):
                for kind, group in groups.items():
                    cycle(group, SIZE, times[kind])
            lines: dict[str, float] = {}
            for kind in groups:
                queue = queues[kind]
                reported = {
                    **summary("lease", times[kind]["lease"]),
                    **summary("ack", times[kind]["ack"]),
                }
                reported |= {
                    "open": statistics.median(opened(queue.path) for _ in range(3)),
                    "files": log_files(queue),
                }
                medians[kind].append(reported)
                lines |= {f"{name}, {kind}": value for name, value in reported.items()}
            yield Point("age", upto, lines)
    for kind, told_ in medians.items():
        first, last, upto = told_[0], told_[-1], len(told_) * step
        for name in ("lease p50", "ack p50", "open", "files"):
            unit = "" if name == "files" else "ms"
            what = {"open": "open and first lease", "files": "files of leases/"}.get(name, name)
            yield Result(f"age: {what}, the first {step:,} leases, {kind}", first[name], unit)
            yield Result(
                f"age: {what}, after {upto:,}, {kind}",
                last[name],
                unit,
                f"{last[name] / first[name]:.2f}x of the first",
            )
