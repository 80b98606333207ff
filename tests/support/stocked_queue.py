"""A queue with a message in each state, for tests of what people see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_mq import Message, Queue

__all__ = ["sequence_of", "stocked_queue"]


def stocked_queue(path: Path, message: Callable[[str], Message], error: str) -> Queue:
    """Group `billing` has an acked, a delayed, a dead, a leased and a ready message.

    Group `audit` is done. `message` makes each from its name, with the id ``id-NAME``.
    """
    queue = Queue.create(path, durable=False)
    queue.publish([message(name) for name in ("acked", "nacked", "bad", "leased", "unread")])
    lease = queue.group("billing").lease("worker-7", max_messages=4, visibility_timeout="1h")
    acked, nacked, bad, _ = (message.sequence for message in lease.messages)
    lease.ack([acked])
    lease.nack([nacked], error="no luck", delay="1h")
    lease.reject([bad], error=error)
    queue.group("audit").lease("worker-8", max_messages=9).ack()
    return queue


def sequence_of(queue: Queue, name: str) -> int:
    (found,) = queue.find(message_id=f"id-{name}")
    return found
