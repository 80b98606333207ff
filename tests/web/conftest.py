"""A queue with something of everything, and clients of its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from spark_mq import Message, Queue
from spark_mq.web import Access, HealthLimits, OverviewCache, create_app


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """Group `billing`: acked, delayed, dead, leased and ready. Group `audit`: done."""
    queue = Queue.create(tmp_path / "queues" / "orders", durable=False)
    names = ["acked", "nacked", "bad", "leased", "unread"]
    queue.publish([
        Message(f'{{"name": "{name}"}}', key=f"key-{name}", message_id=f"id-{name}",
                headers={"kind": name})
        for name in names
    ])  # fmt: skip
    lease = queue.group("billing").lease("worker-7", max_messages=4, visibility_timeout="1h")
    acked, nacked, bad, _ = (message.sequence for message in lease.messages)
    lease.ack([acked])
    lease.nack([nacked], error="no luck", delay="1h")
    lease.reject([bad], error="bad customer")
    queue.group("audit").lease("worker-8", max_messages=9).ack()
    return queue


@pytest.fixture
def overviews(tmp_path: Path) -> OverviewCache:
    """Overviews that are never old enough to be shown again."""
    (tmp_path / "queues").mkdir(exist_ok=True)
    ticks = iter(range(0, 10**9, 100))
    return OverviewCache(str(tmp_path / "queues"), clock=lambda: float(next(ticks)))


@pytest.fixture
def visit(overviews: OverviewCache) -> Callable[..., TestClient]:
    """Returns a client of a page with some access."""

    def client(health: HealthLimits | None = None, **access: Any) -> TestClient:
        app = create_app(overviews, Access(**{"user": "alice", **access}), health)
        return TestClient(app, base_url="http://localhost", follow_redirects=False)

    return client
