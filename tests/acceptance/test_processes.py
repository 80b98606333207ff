"""A queue under processes of all kinds, each of its own; what came of it is read from the tables afterwards, not from their words."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from checker import check_queue

from spark_mq import Lease, Message, Queue
from spark_mq.sweep import sweep

SPAWN = multiprocessing.get_context("spawn")
SKEW = "100ms"


def publish(path: str, size: int, enough: Any) -> None:
    queue = Queue.open(path)
    while not enough.wait(0.2):
        queue.publish(["x"] * size)


def consume(path: str, stop: Any) -> None:
    """A good one, whose work takes a while: one that does nothing but commit would win nearly every race."""
    group = Queue.open(path).group()
    while not stop.wait(0.1):
        lease = group.lease("good", max_messages=20, wait="200ms", max_poll_interval="50ms")
        if lease is not None:
            lease.ack()


def never_ack(path: str, leases: int) -> None:
    group = Queue.open(path).group()
    for _ in range(leases):
        group.lease("never", max_messages=7, wait="10s", max_poll_interval="50ms")


def crash(path: str) -> None:
    """Settles half of what it has leased, and dies."""
    lease = Queue.open(path).group().lease("crash", max_messages=11, wait="10s", max_poll_interval="50ms")
    if lease is not None:
        lease.ack([m.sequence for m in lease.messages[::2]])
    os.kill(os.getpid(), signal.SIGKILL)


def chores(path: str, stop: Any) -> None:
    queue = Queue.open(path)
    while not stop.is_set():
        sweep(queue)
        stop.wait(0.2)


def handle(lease: Lease) -> None:
    if any(m.value == b"poison" for m in lease.messages):
        os.kill(os.getpid(), signal.SIGKILL)


def work(path: str) -> None:
    Queue.open(path).group().work(handle, max_messages=30, max_poll_interval="50ms")


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


def start(target: Callable[..., None], *args: Any) -> Any:
    process = SPAWN.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def idle(queue: Queue) -> bool:
    stats = queue.group().stats()
    return not (stats.ready or stats.delayed or stats.in_flight or stats.dead or stats.routing)


def test_every_message_ends_once_and_no_two_leases_overlap(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue", visibility_timeout="1s", clock_skew=SKEW, max_delivery_attempts=20)
    stop, enough = SPAWN.Event(), SPAWN.Event()
    publishers = [start(publish, queue.path, size, enough) for size in (5, 10)]
    others = [start(consume, queue.path, stop), start(chores, queue.path, stop)]
    bad = [start(never_ack, queue.path, 4), *(start(crash, queue.path) for _ in range(3))]
    try:
        for process in bad:
            process.join(120)
        enough.set()
        for process in publishers:
            process.join(60)
        assert [process.exitcode for process in publishers] == [0, 0]
        assert {process.exitcode for process in bad[1:]} == {-signal.SIGKILL}
        until(lambda: idle(queue))
    finally:
        enough.set()
        stop.set()
        for process in others:
            process.join(60)
    sweep(queue)
    found = check_queue(queue.path, skew=timedelta(seconds=0.1), drained=["default"])
    assert found.wrong == []
    assert found.counts["lease_expired"] > 4, "what was never acked came again"
    print(dict(found.counts))


def test_a_poison_that_kills_its_worker_is_dead_lettered_alone(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue", visibility_timeout="500ms", clock_skew=SKEW, max_delivery_attempts=4)
    receipt = queue.publish([Message("poison" if n == 17 else f"{n}") for n in range(60)])
    deaths = 0

    def restart() -> bool:
        nonlocal deaths
        worker = start(work, queue.path)
        until(lambda: not worker.is_alive() or idle(queue) or bool(queue.group().stats().dead))
        deaths += worker.exitcode is not None
        worker.kill()
        worker.join()
        return bool(queue.group().stats().dead)

    until(restart)
    sweep(queue)
    queue.group().work(handle, max_messages=30, until_empty=True)
    until(lambda: idle(queue))
    sweep(queue)
    found = check_queue(queue.path, skew=timedelta(seconds=0.1), drained=["default"])
    assert found.wrong == []
    assert queue.finished(outcome="dead_lettered")["sequence"].to_pylist() == [receipt.sequences[17]]
    assert deaths == 4
