"""A store that fails for a moment while the log is looked at costs a look, never a message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.byte_store import ByteStore, Call
from support.handles import again, take
from support.queues import Make
from support.tables import add_values, messages_of

from spark_mq import Message, Queue
from spark_mq.testing import ManualClock


def fail_once(byte_store: ByteStore, queue: Queue) -> None:
    """The next data file that is opened is out of reach, and its bytes, once."""
    left = {"open", "read"}

    def fail(call: Call) -> Any:
        if "_delta_log" not in call.path and call.verb in left:
            left.remove(call.verb)
            raise OSError(24, "Too many open files")
        return call.run()

    byte_store.on("open", "read", act=fail, of=messages_of(queue).files)


def test_a_file_without_statistics_is_not_lost_by_a_failed_look(
    delta_queue: Make, byte_store: ByteStore
) -> None:
    queue = delta_queue()
    add_values(again(queue), b"first")
    fail_once(byte_store, queue)
    with pytest.raises(OSError, match="Too many"):
        queue.group().lease("w")
    queue.publish(["second"])
    assert take(queue.group()) == ["first", "second"]


def test_a_delayed_message_is_not_delivered_early_because_its_times_could_not_be_read(
    delta_queue: Make, clock: ManualClock, byte_store: ByteStore
) -> None:
    queue = delta_queue()
    again(queue).publish(Message("later", deliver_at=clock() + timedelta(hours=1)))
    fail_once(byte_store, queue)
    with pytest.raises(OSError, match="Too many"):
        queue.group().lease("w")
    assert queue.group().lease("w") is None
    assert queue.group().stats().delayed == 1


def test_a_file_without_statistics_may_be_trimmed(delta_queue: Make, clock: ManualClock) -> None:
    queue = delta_queue(retention=0)
    late = again(queue)
    assert late.stats()["published"] == 0
    add_values(queue, b"a")
    take(queue.group())
    clock.advance(5)
    assert queue.sweep().trimmed_files == 1
    queue.publish(["b"])
    assert again(queue).group().stats().ready == 1
    assert take(late.group()) == ["b"]
