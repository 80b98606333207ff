"""A forked process is refused the handles of its parent, also if a thread held their locks.

It may open the queue again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forks import in_a_fork
from support.handles import lease
from support.tables import context_of, group_ledger_of

from spark_mq import Queue
from spark_mq.errors import UsedAfterFork
from spark_mq.parquet.files import footers, row_groups

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    queue = Queue.create(tmp_path / "queue")
    queue.publish(["a", "b"])
    return queue


USES: dict[str, Callable[[Any], Any]] = {
    "publish": lambda world: world.queue.publish("x"),
    "group": lambda world: world.queue.group("g"),
    "sweep": lambda world: world.queue.sweep(),
    "dead letters": lambda world: world.queue.dead_letters.publish("x"),
    "lease": lambda world: world.group.lease("w"),
    "stats": lambda world: world.group.stats(),
    "messages": lambda world: world.lease.messages,
    "ack": lambda world: world.lease.ack(),
    "extend": lambda world: world.lease.extend(),
    "buffered publish": lambda world: world.publisher.publish("x"),
    "flush": lambda world: world.publisher.flush(),
    "close": lambda world: world.publisher.close(),
}


class World:
    def __init__(self, queue: Queue) -> None:
        self.queue, self.group = queue, queue.group()
        self.lease, self.publisher = lease(queue, 1), queue.publisher()


@pytest.mark.parametrize("use", USES)
def test_a_handle_of_the_parent_is_refused(queue: Queue, use: str) -> None:
    world = World(queue)
    ledger = group_ledger_of(world.group)
    batcher = ledger.queue.committer.batcher
    # As while another thread publishes and commits.
    with batcher._lock.hold(), context_of(queue)._lock, world.publisher._changed:
        error = in_a_fork(lambda: USES[use](world))
    assert isinstance(error, UsedAfterFork)
    assert "spawn or forkserver" in str(error)
    assert queue.path in error.data["what"]
    world.publisher.close()
    assert world.lease.ack().settled == 1, "the parent goes on"


def test_a_forked_process_may_read_while_a_thread_of_the_parent_reads(queue: Queue) -> None:
    row_groups.reset()
    queue.publish([b"%d" % number for number in range(10)])

    def read_two() -> list[bytes]:
        taken = lease(Queue.open(queue.path), 2)
        values = [m.value for m in taken.messages]
        taken.ack()
        return values

    assert read_two() == [b"a", b"b"]
    read_two(), read_two()  # The second read of a part keeps the row group.
    (kept,) = row_groups._kept.values()
    with footers._lock, row_groups._lock, kept.lock:  # as another thread
        assert in_a_fork(read_two) == [b"4", b"5"]
    assert queue.group().stats().acked == 8
