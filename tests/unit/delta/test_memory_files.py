"""The files of a queue in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import count

import pytest

from spark_mq.delta.memory_files import MemoryBackend, MemoryFiles
from spark_mq.util.clock import system_clock


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """Collect garbage at each object that is made, which is when another thread may run."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("eager_collector")
def test_a_list_of_files_holds_while_another_thread_writes() -> None:
    files = MemoryFiles(system_clock)
    backend, numbers = MemoryBackend(files.root), count()
    for number in range(100):
        backend.write(f"old/{number}", b"")

    def other_thread(phase: str, info: dict[str, int]) -> None:
        backend.write(f"new/{next(numbers)}", b"")

    gc.callbacks.append(other_thread)
    try:
        assert len(list(backend.list("old"))) == 100
    finally:
        gc.callbacks.remove(other_thread)
