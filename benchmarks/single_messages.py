"""Compare a handler for single messages with leases of one message, in one run.

    .venv/bin/python benchmarks/single_messages.py --messages 200 --work 10ms --threads 8

Each round fills three queues with the same messages. Then ``group.work`` drains one with leases of
one, one with ``mode="message"`` in as many threads, and one with as many coroutines. The handler
waits for
``--work``. It prints the median of the rounds: seconds, messages a second, commits in ``leases/``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import Result

from spark_mq import Queue
from spark_mq.util.clock import SECOND
from spark_mq.util.validation import validate_duration


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
        "leases of one": (handle, {"threads": slots}),
        "each message, threads": (handle, {"mode": "message", "threads": slots}),
        "each message, async": (handle_async, {"mode": "message", "concurrency": slots}),
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
        goal = "<= 100" if name == "leases of one" else ""
        yield Result(f"{what}: commits", commits, "", goal=goal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--work", default="10ms")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    work = validate_duration("--work", given.work, zero=True) / SECOND
    figures: dict[str, list[tuple[float, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            for name, (handler, options) in kinds(work, given.threads).items():
                queue = filled(Path(folder) / f"{number} {name}", given.messages)
                figures.setdefault(name, []).append(drained(queue, handler, **options))
    base = statistics.median(took for took, _ in figures["leases of one"])
    for name, rounds in figures.items():
        took = statistics.median(took for took, _ in rounds)
        commits = statistics.median(commits for _, commits in rounds)
        rate = given.messages / took
        print(f"{name:22} {took:7.2f} s {rate:9,.0f}/s {commits:5.0f} commits {base / took:6.1f}x")


if __name__ == "__main__":
    main()
