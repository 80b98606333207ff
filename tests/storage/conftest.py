"""Both storages behind one fixture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_mq import Queue
from spark_mq.testing import ManualClock, memory_queue


@pytest.fixture
def clock() -> ManualClock:
    """Stands still, at the present: Delta commits carry the machine's time."""
    return ManualClock()


@pytest.fixture
def delta_queue(tmp_path: Path, clock: ManualClock) -> Callable[..., Queue]:
    """Makes a queue on Delta tables."""
    return lambda **settings: Queue.create(tmp_path / "queue", clock=clock, **settings)


@pytest.fixture(params=["memory", "delta"])
def make(request: pytest.FixtureRequest, clock: ManualClock) -> Callable[..., Queue]:
    """Makes a queue in each storage in turn."""
    if request.param == "memory":
        return lambda **settings: memory_queue(clock, **settings)
    return request.getfixturevalue("delta_queue")


@pytest.fixture
def queue(make: Callable[..., Queue]) -> Queue:
    """A queue with the default settings, in each storage in turn."""
    return make()
