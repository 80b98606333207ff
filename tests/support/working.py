"""Run a worker beside a test, or until a queue is empty, and see what became of its messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from spark_mq import ConsumerGroup, Queue, WorkSummary

from .handles import again
from .tables import context_of, ledgers_of

__all__ = ["counts", "drain", "events", "fail", "leave_heartbeat", "working"]


def drain(queue: Queue, handler: Callable[[Any], Any], **options: Any) -> WorkSummary:
    """Work until nothing is due, by messages unless `mode` says otherwise."""
    return queue.group().work(handler, **{"mode": "message", "until": "empty", **options})


def fail(_: object) -> None:
    """Handle a message or a lease badly."""
    raise ValueError("boom")


def counts(queue: Queue) -> dict[str, int]:
    """How many messages are in each state, as another process sees it. Zeros are left out."""
    stats = again(queue).group().ensure().stats()
    names = ("ready", "delayed", "leased", "dead", "blocked", "acked", "dropped")
    return {name: value for name in names if (value := getattr(stats, name))}


def events(queue: Queue, sequence: int) -> list[str]:
    """What happened to a message."""
    return [event.event for event in queue.trace(sequence).events]


@contextmanager
def working(
    group: ConsumerGroup, handler: Callable[[Any], Any] = lambda _: None, **options: Any
) -> Iterator[Future[WorkSummary]]:
    """A worker that runs in the block, and ends without an error within a minute."""
    stop, pool = threading.Event(), ThreadPoolExecutor(1)
    running = pool.submit(group.work, handler, **{"mode": "batch", "stop": stop, **options})
    pool.shutdown(wait=False)
    try:
        yield running
    finally:
        stop.set()
        running.result(60)


def leave_heartbeat(queue: Queue, group: str, worker_id: str, **facts: Any) -> None:
    """Write the file by which a worker is visible, as one does that is killed now."""
    now = context_of(queue).now()
    content = {
        "worker_id": worker_id, "host": "host-1", "process_id": 4711, "version": "0.2.0",
        "started_at": now, "seen_at": now, "interval": 30_000_000, "state": "idle", "settled": 5,
        **facts,
    }  # fmt: skip
    path = f"_workers/{group}/{worker_id}.json"
    ledgers_of(queue).files.write(path, json.dumps(content).encode())
