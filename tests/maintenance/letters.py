"""Dead letters, and redrives of them that are killed."""

from __future__ import annotations

from collections.abc import Sequence

from support.handles import killed, lease, take

from spark_mq import Message, Queue

__all__ = ["back", "die_in_a_redrive", "with_dead"]


def with_dead(queue: Queue, errors: Sequence[str], values: Sequence[str | bytes] = ()) -> Queue:
    """A queue with a letter for each error. Its id, key and value have its number, or a value."""
    receipt = queue.publish([
        Message(values[n] if values else str(n), key=f"k{n}", headers={"own": "1"},
                message_id=f"id-{n}")
        for n in range(len(errors))
    ])  # fmt: skip
    taken = lease(queue, len(errors))
    for sequence, error in zip(receipt.sequences, errors, strict=True):
        taken.reject([sequence], error=error)
    assert queue.sweep().routed == len(errors)
    return queue


def die_in_a_redrive(queue: Queue, at: int = 2, when: str = "before", **options: object) -> None:
    """Die before or after a commit of a redrive: it freezes letters, publishes and settles."""
    with killed(at=at, when=when):
        queue.redrive(**options)


def back(queue: Queue) -> list[str]:
    """The values that are there to be leased again, in order."""
    return take(queue.group())
