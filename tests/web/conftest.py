"""A queue with something of everything, and clients of its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.stocked_queue import stocked_queue

from spark_mq import Message, Queue
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.interfaces.web import Access, HealthLimits, create_app


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    def message(name: str) -> Message:
        more = {"key": f"key-{name}", "message_id": f"id-{name}", "headers": {"kind": name}}
        return Message(f'{{"name": "{name}"}}', **more)

    return stocked_queue(tmp_path / "queues" / "orders", message, "bad customer")


@pytest.fixture
def overviews(tmp_path: Path) -> QueueMonitor:
    """Overviews that are never old enough to be shown again."""
    (tmp_path / "queues").mkdir(exist_ok=True)
    ticks = iter(range(0, 10**9, 100))
    return QueueMonitor(str(tmp_path / "queues"), clock=lambda: float(next(ticks)))


@pytest.fixture
def visit(overviews: QueueMonitor) -> Callable[..., TestClient]:
    """Returns a client of a page with some access."""

    def client(health: HealthLimits | None = None, **access: Any) -> TestClient:
        app = create_app(overviews, Access(**{"user": "alice", **access}), health)
        return TestClient(app, base_url="http://localhost", follow_redirects=False)

    return client
