"""The files of a queue in memory."""

from __future__ import annotations

import gc
from itertools import count

from spark_mq.delta.memory_files import MemoryBackend, MemoryFiles
from spark_mq.util.clock import system_clock


def test_a_list_of_files_holds_while_another_thread_writes() -> None:
    """Garbage is collected at each object that is made, which is when another thread may run."""
    files = MemoryFiles(system_clock)
    backend, numbers = MemoryBackend(files.root), count()
    for number in range(100):
        backend.write(f"old/{number}", b"")

    def other_thread(phase: str, info: dict[str, int]) -> None:
        backend.write(f"new/{next(numbers)}", b"")

    before = gc.get_threshold()
    gc.set_threshold(1)
    gc.callbacks.append(other_thread)
    try:
        assert len(list(backend.list("old"))) == 100
    finally:
        gc.callbacks.remove(other_thread)
        gc.set_threshold(*before)
