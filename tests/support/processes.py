"""What the processes of the acceptance tests do: publishers, consumers good and bad, the sweep.

Each opens the queue for itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from spark_mq import Lease, Queue, ReceivedMessage
from spark_mq.errors import ContentionTimeout, LeaseLost

SPAWN: Final = multiprocessing.get_context("spawn")
SKEW: Final = "100ms"
SHORT: Final = {"visibility_timeout": "1s", "clock_skew": SKEW, "max_delivery_attempts": 20}
"""Settings of a queue whose leases run out soon."""
SLOW: Final = (LeaseLost, ContentionTimeout)
"""On a slow store a lease of one second runs out, and one process may lose races for half a minute:
both are reported as they are.
"""


def publish(path: str, options: dict[str, str], size: int, enough: Any) -> None:
    queue = Queue.open(path, storage_options=options)
    while not enough.wait(0.2):
        queue.publish(["x"] * size)


def consume(path: str, options: dict[str, str], stop: Any) -> None:
    """A good one, whose work takes a while: one that does nothing but commit would win nearly every
    race.
    """
    group = Queue.open(path, storage_options=options).group()
    while not stop.wait(0.1):
        with contextlib.suppress(*SLOW):
            lease = group.lease("good", max_messages=20, wait="200ms", poll_interval="50ms")
            if lease is not None:
                lease.ack()


def never_ack(path: str, options: dict[str, str], leases: int) -> None:
    group = Queue.open(path, storage_options=options).group()
    for _ in range(leases):
        with contextlib.suppress(*SLOW):
            group.lease("never", max_messages=7, wait="10s", poll_interval="50ms")


def crash(path: str, options: dict[str, str]) -> None:
    """Settles half of what it has leased, and dies."""
    group = Queue.open(path, storage_options=options).group()
    with contextlib.suppress(*SLOW):
        lease = group.lease("crash", max_messages=11, wait="10s", poll_interval="50ms")
        if lease is not None:
            lease.ack([m.sequence for m in lease.messages[::2]])
    os.kill(os.getpid(), signal.SIGKILL)


def chores(path: str, options: dict[str, str], stop: Any) -> None:
    queue = Queue.open(path, storage_options=options)
    while not stop.is_set():
        with contextlib.suppress(*SLOW):
            queue.sweep()
        stop.wait(0.2)


def handle(given: Lease | ReceivedMessage) -> None:
    """Take a moment, so that other threads have work, too. A poison kills the process."""
    time.sleep(0.02)
    messages = given.messages if isinstance(given, Lease) else [given]
    if any(message.value == b"poison" for message in messages):
        os.kill(os.getpid(), signal.SIGKILL)


def work(path: str, options: dict[str, str], how: dict[str, Any]) -> None:
    Queue.open(path, storage_options=options).group().work(handle, poll_interval="50ms", **how)


def start(target: Callable[..., None], *args: Any) -> Any:
    process = SPAWN.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def idle(queue: Queue) -> bool:
    stats = queue.group().ensure().stats()
    return not (stats.ready or stats.delayed or stats.leased or stats.dead or stats.transferring)
