"""Queues within each other, in a store whose folders are only parts of names."""

from __future__ import annotations

import pytest

from spark_mq import errors
from spark_mq.delta.memory_files import MemoryFiles
from spark_mq.operations.create import create_queue_tables, new_settings, open_context
from spark_mq.util.clock import system_clock


@pytest.mark.parametrize("inner", ["inner", "a/b/inner", "history"])
def test_a_store_has_no_folders_and_refuses_both(inner: str) -> None:
    root = MemoryFiles(system_clock)
    team, below = f"{root.root}/team", f"{root.root}/team/{inner}"
    settings = new_settings({})
    create_queue_tables(below, settings, {}, exist_ok=False)
    with pytest.raises(errors.NotAQueue, match="there is a queue at"):
        create_queue_tables(team, settings, {}, exist_ok=False)
    create_queue_tables(f"{root.root}/other", settings, {}, exist_ok=False)
    with pytest.raises(errors.NotAQueue, match="lies within the queue at"):
        create_queue_tables(f"{root.root}/other/{inner}", settings, {}, exist_ok=False)
    assert open_context(below, {}, system_clock).dead_letters().path == f"{below}/dead_letters"
