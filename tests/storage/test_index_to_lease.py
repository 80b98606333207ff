"""A lease from a backlog in an object store does not ask for newer messages each time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.byte_store import ByteStore
from support.handles import again, lease
from support.limits import Limits
from support.tables import as_in_a_store, messages_of

from spark_mq import Message, Queue


@pytest.fixture
def queue(delta_queue: Callable[..., Queue], limits: Limits) -> Queue:
    """A queue whose messages act as if they were in an object store. They were just looked at."""
    limits(recent_seconds=60.0)
    queue = as_in_a_store(delta_queue())
    queue.publish([str(n) for n in range(10)])
    queue.group().ensure()
    assert queue.stats()["published"] == 10
    return queue


def texts(queue: Queue, count: int) -> list[str]:
    return [m.text for m in lease(queue, count).messages]


def test_a_backlog_is_leased_without_a_look(queue: Queue, byte_store: ByteStore) -> None:
    looks = byte_store.paths("read", "stat", "list", of=messages_of(queue).files)
    again(queue).publish(["10"])
    assert texts(queue, 4) == ["0", "1", "2", "3"]
    assert texts(queue, 6) == ["4", "5", "6", "7", "8", "9"]
    assert not [path for path in looks if path.startswith("_delta_log")]
    assert texts(queue, 1) == ["10"]
    assert [path for path in looks if path.startswith("_delta_log")]


def test_priorities_and_times_need_a_look(queue: Queue) -> None:
    other = again(queue)
    other.publish(Message("high", priority=9))
    assert texts(queue, 2) == ["0", "1"], "as of the last look"
    assert queue.stats()["published"] == 11
    other.publish(Message("higher", priority=9))
    assert texts(queue, 2) == ["high", "higher"], "from the first priority on, each lease looks"


def test_an_old_look_is_repeated(queue: Queue, limits: Limits) -> None:
    limits(recent_seconds=0.0)
    again(queue).publish(Message("high", priority=9))
    assert texts(queue, 1) == ["high"]
