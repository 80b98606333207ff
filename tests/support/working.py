"""Run a worker beside a test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_mq import ConsumerGroup, Queue, WorkSummary

from .tables import context_of, ledgers_of

__all__ = ["leave_heartbeat", "working"]


@contextmanager
def working(
    group: ConsumerGroup,
    handler: Callable[[Any], Any] = lambda _: None,
    *,
    patience: float = 30,
    **options: Any,
) -> Iterator[list[WorkSummary]]:
    """A worker that runs in the block, and ends without an error within `patience` seconds.

    The list gets its summary.
    """
    stop, failed, done = threading.Event(), list[BaseException](), list[WorkSummary]()

    def work() -> None:
        try:
            done.append(group.work(handler, **{"mode": "batch", "stop": stop, **options}))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(patience)
        assert not thread.is_alive()
    for error in failed:
        raise error


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
