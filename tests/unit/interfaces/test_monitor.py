"""The overviews of queues that a page and `top` share."""

from __future__ import annotations

from pathlib import Path

from spark_mq import Queue
from spark_mq.interfaces.monitor import QueueMonitor


def test_an_overview_is_read_once_a_second(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "orders", durable=False)
    queue.publish(["a", "b"])
    now = [0.0]
    overviews = QueueMonitor(queue.path, clock=lambda: now[0])
    assert overviews.queues() == {"orders": queue.path}
    first = overviews.overview("orders")
    queue.publish("new")
    assert overviews.overview("orders") is first
    now[0] = 1.5
    assert overviews.overview("orders").published == 3
    queue.publish("newer")
    overviews.forget("orders")
    assert overviews.overview("orders").published == 4


def test_new_queues_are_found_after_ten_seconds(tmp_path: Path) -> None:
    for name in ("first", "second"):
        Queue.create(tmp_path / name, durable=False)
    now = 0.0
    monitor = QueueMonitor(str(tmp_path), clock=lambda: now)
    assert len(monitor.queues()) == 2
    Queue.create(tmp_path / "third", durable=False)
    now = 9.0
    assert len(monitor.queues()) == 2
    now = 11.0
    assert len(monitor.queues()) == 3
    Queue.create(tmp_path / "fourth", durable=False)
    now = 13.0
    assert monitor.overview("fourth").published == 0, "at once if it is asked for"
