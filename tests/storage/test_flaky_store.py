"""A store that fails for a moment while the log is looked at costs a look, never a message."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.byte_store import ByteStore, Call
from support.tables import add_values, context_of, messages_of

from spark_mq import Message, Queue


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
    tmp_path: Path, byte_store: ByteStore
) -> None:
    queue = Queue.create(tmp_path / "q")
    add_values(Queue.open(queue.path), b"first")
    fail_once(byte_store, queue)
    with pytest.raises(OSError, match="Too many"):
        queue.group().lease("w")
    queue.publish(["second"])
    lease = queue.group().lease("w", max_messages=10)
    assert [m.value for m in lease.messages] == [b"first", b"second"]


def test_a_delayed_message_is_not_delivered_early_because_its_times_could_not_be_read(
    tmp_path: Path, byte_store: ByteStore
) -> None:
    queue = Queue.create(tmp_path / "q")
    Queue.open(queue.path).publish(
        [Message("later", deliver_at=context_of(queue).clock() + timedelta(hours=1))]
    )
    fail_once(byte_store, queue)
    with pytest.raises(OSError, match="Too many"):
        queue.group().lease("w")
    assert queue.group().lease("w") is None
    assert queue.group().stats().delayed == 1


def test_a_file_without_statistics_may_be_trimmed(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", retention=0)
    add_values(queue, b"a")
    lease = queue.group().lease("w")
    lease.ack()
    late = Queue.open(queue.path, clock=lambda: context_of(queue).clock() + timedelta(seconds=5))
    assert late.sweep().trimmed_files == 1
    queue.publish(["b"])
    lease = Queue.open(queue.path).group().lease("w")
    assert lease.messages[0].value == b"b"
