"""Compare a handler for single messages with leases of one message, in one run.

Each round fills three queues with the same messages. Then ``group.work`` drains one with leases of
one, one with ``mode="message"`` in as many threads, and one with as many coroutines.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import Result

from spark_mq import Queue


def filled(path: Path, messages: int) -> Queue:
    queue = Queue.create(path)
    queue.publish([b"x" * 100] * messages)
    queue.group().ensure()
    return queue


def revision(queue: Queue) -> int:
    ledger = queue.group()._ledger.snapshot().ledger
    return 0 if ledger is None else ledger.head.revision


def drained(queue: Queue, handler: Callable[[Any], Any], **options: Any) -> tuple[float, int]:
    """Return the seconds and the commits that a drain took."""
    before, started = revision(queue), time.perf_counter()
    summary = queue.group().work(handler, until="settled", **options)
    took = time.perf_counter() - started
    stats = queue.group().stats()
    assert (stats.ready, stats.leased, summary.failed) == (0, 0, 0)
    return took, revision(queue) - before


def kinds(work: float, slots: int) -> dict[str, tuple[Callable[[Any], Any], dict[str, Any]]]:
    def handle(_: Any) -> None:
        time.sleep(work)

    async def handle_async(_: Any) -> None:
        await asyncio.sleep(work)

    return {
        "leases of one": (handle, {"mode": "batch", "threads": slots}),
        "each message, threads": (handle, {"threads": slots}),
        "each message, async": (handle_async, {"concurrency": slots}),
    }


def single_messages(folder: Path, rounds: int) -> Iterator[Result]:
    """The part of bench.py: 200 messages, 8 threads, a handler that waits for 10 ms."""
    messages, threads = 200, 8
    for name, (handler, options) in kinds(0.01, threads).items():
        seen = [
            drained(filled(folder / f"{name} {number}", messages), handler, **options)
            for number in range(max(1, rounds // 6))
        ]
        what = f"group.work, {threads} threads, {messages} messages, {name}"
        took = statistics.median(took for took, _ in seen)
        yield Result(f"{what}: messages/s", messages / took, "/s")
        commits = statistics.median(commits for _, commits in seen)
        yield Result(f"{what}: commits", commits, "")
