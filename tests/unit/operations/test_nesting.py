"""Queues within each other, in a store whose folders are only parts of names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.rule_variants import instead, rule_variant

from spark_mq import Queue, errors
from spark_mq.delta.memory_files import MemoryFiles
from spark_mq.util.clock import system_clock


@pytest.fixture(autouse=True)
def paths_in_memory() -> Iterator[None]:
    """Let the public methods take paths that only memory_queue has."""
    with rule_variant("absolute_path", instead(lambda right, a: a.path)):
        yield


@pytest.mark.parametrize("inner", ["inner", "a/b/inner", "history"])
def test_a_store_has_no_folders_and_refuses_both(inner: str) -> None:
    root = MemoryFiles(system_clock)
    team, below = f"{root.root}/team", f"{root.root}/team/{inner}"
    Queue.create(below)
    with pytest.raises(errors.NotAQueue, match="there is a queue at"):
        Queue.create(team)
    Queue.create(f"{root.root}/other")
    with pytest.raises(errors.NotAQueue, match="lies within the queue at"):
        Queue.create(f"{root.root}/other/{inner}")
    assert Queue.open(below).dead_letters.path == f"{below}/dead_letters"
