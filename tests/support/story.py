"""A whole story of a queue, and what came of it. It is the same in each store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from spark_mq import Lease, Message, Queue
from spark_mq.delta.state import CHECKPOINT_HINT
from spark_mq.delta.tables import write_checkpoint
from spark_mq.testing import ManualClock

from .handles import again, housekeep
from .tables import ledgers_of, messages_of, put_back

__all__ = ["story"]

SETTINGS = {
    **{"retention": "1h", "dedup_window": "1h", "max_delivery_attempts": 3, "retry_delay": 0},
    "durable": False,
}
Note = Callable[[str, Any], None]


def story(place: dict[str, Any]) -> list[tuple[str, Any]]:
    """Publish, lease, settle, sweep, clean, recover, redrive and archive. Return all results."""
    clock = ManualClock()
    queue = Queue.create(**place, **SETTINGS, clock=clock)
    found: list[tuple[str, Any]] = []

    def note(name: str, result: Any) -> None:
        found.append((name, result))

    for day in range(2):
        note("sequences", [*publish(queue, day)])
        settle(queue, note)
        queue = again(queue)  # which reads the log from its start
        note("swept", asdict(queue.sweep()))
        clock.advance("2h")  # leases expire, and old messages are trimmed
    tables = messages_of(queue), ledgers_of(queue)
    for table in tables:
        write_checkpoint(table.files)
    note("sequences", [*publish(queue, 2)])  # commits after a checkpoint stay
    settle(queue, note)
    housekeep(queue, keep_versions=3, keep_seconds=0.0)
    for table in tables:
        table.files.delete(CHECKPOINT_HINT)  # so a listing has to show the checkpoint
    queue = again(queue)
    note("stats", counts(queue))

    with put_back(queue, "leases"):
        settle(queue, note)
    queue = again(queue)
    report = queue.recover()
    note("recovered", (report.needed, again(queue).recover(dry_run=True).needed))

    queue = again(queue)
    note("redriven", queue.redrive())
    queue.sweep()
    settle(queue, note)
    queue.sweep()
    ended = queue.finished().to_pylist()
    note("finished", sorted((one["sequence"], one["outcome"]) for one in ended))
    note("letters", [m.value for m in queue.dead_letters.peek(100)])
    note("stats", counts(queue))
    return found


def publish(queue: Queue, day: int) -> list[int]:
    sequences: list[int] = []
    for number in range(8):
        batch = [Message(f"{day}-{number}-{n}", dedup_id=f"{day}-{number}-{n}") for n in range(3)]
        sequences += queue.publish(batch).sequences
    queue.publish(Message("again", dedup_id=f"{day}-0-0"))
    return sequences


def settle(queue: Queue, note: Note) -> None:
    """Ack most messages, and nack, reject, release or keep one of each lease in turn."""
    for verb in ("nack", "reject", "release", "keep", "reject"):
        lease = queue.group().lease("w", max_messages=7)
        if lease is None:
            break
        note("leased", [(m.sequence, m.value, m.delivery_count) for m in lease.messages])
        act(lease, verb)


def counts(queue: Queue) -> dict[str, Any]:
    found = asdict(queue.group().stats())
    return {name: value for name, value in found.items() if not name.endswith("_age")}


def act(lease: Lease, verb: str) -> None:
    first, *rest = (m.sequence for m in lease.messages)
    if verb != "keep":
        getattr(lease, verb)([first])
    if rest:
        lease.ack(rest)
