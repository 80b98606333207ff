"""How soon a worker in another process handles a message, and what it costs to wait for one.

    .venv/bin/python benchmarks/publish_to_handler.py

A queue on a local disk. Messages come one at a time, so that each of them finds the worker waiting.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import Result, p95

from spark_mq import Queue

PAUSE = 0.2
"""Seconds between two messages, and up to as much again."""
IDLE = 10.0
"""Seconds without a message."""
DEADLINE = 60.0


def serve(path: str, started: Any, stop: Any, handled: Any) -> None:
    """Tell when each message was handled, and the CPU seconds of this process until then."""

    def handle(_: Any) -> None:
        handled.put((time.monotonic(), time.process_time()))

    started.set()
    Queue.open(path).group().work(handle, mode="message", stop=stop)


def publish_to_handler(folder: Path, rounds: int) -> Iterator[Result]:
    """The part of bench.py: from the call of the publish, and from its return."""
    context = multiprocessing.get_context("spawn")
    started, stop, handled = context.Event(), context.Event(), context.Queue()
    queue = Queue.create(folder / "queue")
    queue.group().ensure()
    worker = context.Process(target=serve, args=(queue.path, started, stop, handled))
    worker.start()

    def publish() -> tuple[float, float, float]:
        """Return the milliseconds until the handler, and the worker's CPU seconds."""
        called = time.monotonic()
        queue.publish(b"x" * 100)
        returned = time.monotonic()
        at, used = handled.get(timeout=DEADLINE)
        return 1000 * (at - called), 1000 * (at - returned), used

    try:
        assert started.wait(DEADLINE)
        publish()
        seen = []
        for _ in range(3 * rounds):
            time.sleep(PAUSE * (1 + random.random()))
            seen.append(publish())
        before, began = publish()[2], time.monotonic()
        time.sleep(IDLE)
        waited = time.monotonic() - began
        busy = 100 * (publish()[2] - before) / waited  # also with what one message costs
    finally:
        stop.set()
        worker.join(DEADLINE)
    what = "publish in one process to handler in another"
    for since, times in (
        ("", [called for called, _, _ in seen]),
        (", from the end of the publish", [returned for _, returned, _ in seen]),
    ):
        yield Result(f"{what}{since}, p50", statistics.median(times), "ms")
        yield Result(f"{what}{since}, p95", p95(times), "ms")
    yield Result("a worker that waits for messages: CPU of a core", busy, "%")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=30, help="of three messages")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        for found in publish_to_handler(Path(folder), rounds):
            print(f"{found.name}: {found.value:.1f} {found.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
