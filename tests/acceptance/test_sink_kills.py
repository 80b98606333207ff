"""Workers that append to a table or a queue, killed at random: it has each message once.

``make fault`` kills more of them, by the variable SINK_KILLS.
"""

from __future__ import annotations

import os
import random
import signal
from multiprocessing.synchronize import Event
from typing import Any

import pyarrow as pa
import pytest
from support.handles import until
from support.processes import SHORT, SPAWN, start
from support.queues import Place
from support.sinks import SCHEMA, make_sink, values

from spark_mq import Lease, Queue

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("SINK_KILLS", "15"))
WORKERS = 3
PATIENCE = 60.0
"""Seconds from the last kill to the end."""
BAD = "7"  # a message ends so, and is rejected


def work(path: str, options: dict[str, str], stop: Event, ready: Event) -> None:
    """Append and ack until the parent kills this process, or sets `stop`."""

    def handle(lease: Lease) -> None:
        bad = [m.sequence for m in lease.messages if m.text.endswith(BAD)]
        if bad:
            lease.reject(bad)
        good = [m for m in lease.messages if m.sequence not in bad]
        lease.append(pa.table([[m.text for m in good]], SCHEMA))

    group = Queue.open(path, storage_options=options).group("billing")
    ready.set()
    group.work(handle, mode="batch", max_messages=20, poll_interval="50ms", stop=stop)


@pytest.mark.parametrize("kind", ["table", "queue"])
def test_workers_that_are_killed_write_each_message_once(place: Place, kind: str) -> None:
    given, sink = place(), place()["path"]
    path, options = given["path"], given.get("storage_options", {})
    make_sink(sink, kind, options)
    settings = {**SHORT, "max_delivery_attempts": None, "breaker_threshold": None}
    queue = Queue.create(**given, **settings)
    group = queue.group("billing")
    group.configure(sink=sink)
    stop, draw, count = SPAWN.Event(), random.Random(KILLS), 0
    workers = [begin(path, options, stop) for _ in range(WORKERS)]
    try:
        for _ in range(KILLS):
            queue.publish([f"{count + n}" for n in range(100)])
            count += 100
            at = draw.randrange(WORKERS)
            process, ready = workers[at]
            assert ready.wait(PATIENCE)
            process.join(draw.random() * 0.6)  # so long it works
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            workers[at] = begin(path, options, stop)
        until(lambda: not ((left := group.stats()).ready or left.leased or left.delayed), "the end")
    finally:
        stop.set()
        for process, _ in workers:
            process.join(PATIENCE)
            process.kill()
    queue.sweep()
    texts = [str(n) for n in range(count)]
    assert values(sink, options) == sorted(t for t in texts if t[-1] != BAD)
    letters = [value.decode() for value in queue.list_dead_letters()["value"].to_pylist()]
    assert sorted(letters) == sorted(t for t in texts if t[-1] == BAD)


def begin(path: str, options: dict[str, str], stop: Event) -> tuple[Any, Event]:
    ready = SPAWN.Event()
    return start(work, path, options, stop, ready), ready
