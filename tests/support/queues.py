"""Fixtures that put both storages behind one name. The conftest of a folder imports them.

A table is the same Delta log on either store, so what holds in memory holds on a disk. `make test`
runs a test on both only if it is about the store: in tests/storage, or with the marker
``on_both_storages``. `make test-all` runs every test on both.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_mq import Queue
from spark_mq.delta.memory_files import is_in_memory
from spark_mq.testing import ManualClock, memory_queue
from support.marks import slow
from support.tables import context_of

Make = Callable[..., Queue]
Place = Callable[[], dict[str, Any]]


@pytest.fixture
def clock() -> ManualClock:
    """Stands still, at the present: Delta commits carry the machine's time."""
    return ManualClock()


@pytest.fixture
def delta_queue(tmp_path: Path, clock: ManualClock) -> Callable[..., Queue]:
    """Makes a queue on Delta tables. Its syncs would only take time: test_power_cut proves them."""
    return lambda **settings: Queue.create(
        tmp_path / "queue", clock=clock, **{"durable": False, **settings}
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "make" not in metafunc.fixturenames:
        return
    if metafunc.config.getoption("--store"):
        stores: list[object] = ["remote"]
    elif _is_about_stores(metafunc.definition):
        stores = ["memory", "delta"]
    else:
        stores = ["memory", slow("delta")]
    metafunc.parametrize("make", stores, indirect=True)


def _is_about_stores(test: pytest.Item) -> bool:
    folder = test.path.parent.name
    return folder == "storage" or test.get_closest_marker("on_both_storages") is not None


@pytest.fixture
def make(request: pytest.FixtureRequest, clock: ManualClock) -> Callable[..., Queue]:
    """Makes a queue in each storage in turn; with --store in an object store instead."""
    if request.param == "memory":
        return lambda **settings: memory_queue(clock, **settings)
    if request.param == "remote":
        store = request.getfixturevalue("remote")
        path = store.new_path()
        return lambda **settings: Queue.create(
            path, storage_options=store.options, clock=clock, **settings
        )
    return request.getfixturevalue("delta_queue")


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return a path without a queue, and the options of its store; with --store on that server."""
    if request.config.getoption("--store"):
        store = request.getfixturevalue("remote")
        return lambda: {"path": store.new_path(), "storage_options": store.options}
    return lambda: {"path": str(tmp_path / uuid.uuid4().hex)}


def beside(queue: Queue, name: str = "other", **settings: Any) -> Queue:
    """Another queue in the same storage."""
    context = context_of(queue)
    if is_in_memory(queue.path):
        return memory_queue(context.clock, **settings)
    given = {"storage_options": context.storage_options, "durable": False, **settings}
    return Queue.create(f"{queue.path}-{name}", clock=context.clock, **given)


@pytest.fixture
def queue(make: Callable[..., Queue]) -> Queue:
    """A queue with the default settings, in each storage in turn."""
    return make()
