"""A queue with something of everything, and clients of its page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.forms import client_of
from support.stocked_queue import stocked_queue

from spark_mq import Message, Queue


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    def message(name: str) -> Message:
        more = {"key": f"key-{name}", "message_id": f"id-{name}", "headers": {"kind": name}}
        return Message(f'{{"name": "{name}"}}', **more)

    return stocked_queue(tmp_path / "queues" / "orders", message, "bad customer")


@pytest.fixture
def visit(tmp_path: Path) -> Callable[..., TestClient]:
    """Returns a client of a page with some access, which reads each overview again."""
    (tmp_path / "queues").mkdir(exist_ok=True)
    ticks = iter(range(0, 10**9, 100))
    return partial(client_of, tmp_path / "queues", clock=lambda: float(next(ticks)))
