"""Complete closed message batches: count how their messages ended, and publish that once.

Each step is one commit that can be run again. The first fixes the counts in the batch's entry. The
second publishes them under a producer number of the batch, which lands once. The third notes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from spark_mq.delta.state import TableState
from spark_mq.errors import DuplicatePublish
from spark_mq.message import HEADER_PREFIX, from_rows, to_publish
from spark_mq.operations.batches import count_messages, count_outcomes, open_target
from spark_mq.operations.context import QueueContext
from spark_mq.operations.publish import publish_table
from spark_mq.storage.stored_entries import BATCHES, StoredBatch
from spark_mq.util.clock import MICROSECOND, to_datetime

_BATCH: Final = HEADER_PREFIX + "batch_id"  # in a completion message
_QUEUE: Final = HEADER_PREFIX + "batch_queue"  # and the queue of the batch


def names_of_closed_batches(context: QueueContext) -> list[str]:
    """Return the names of the closed batches as they were last read."""
    return BATCHES.names(context.messages.log.state)


def complete_batch(context: QueueContext, name: str) -> int:
    """Publish the completion message of a batch that is settled. Return 1 if it has done so."""
    stored = BATCHES.find(context.messages.log.state, name, context.path)
    if stored is None:
        return 0
    if stored.published:
        _remove_old(context, name, stored)
        return 0
    if stored.completed_at is None:
        counted = _count(context, name, stored)
        if counted is None:
            return 0
        stored = _change(context, name, stored, lambda old: counted if _is_open(old) else old)
        if stored is None or stored.published:
            return 0  # another sweep was faster
    published = _publish(context, name, stored)
    _change(context, name, stored, lambda old: replace(old, published=True))
    return int(published)


def _is_open(stored: StoredBatch) -> bool:
    return stored.completed_at is None


def _count(context: QueueContext, name: str, stored: StoredBatch) -> StoredBatch | None:
    """Return the batch with its counts, or None if some messages are not settled."""
    index = context.messages.index()
    members = index.batches().get(name, [])
    counts: dict[str, Mapping[str, int]] = {}
    for group in stored.groups:
        outcomes = count_outcomes(context.group(group), index, members)
        if outcomes is None:
            return None
        counts[group] = outcomes
    messages = count_messages(index, members)
    return replace(stored, completed_at=context.now(), messages=messages, counts=counts)


def _change(
    context: QueueContext,
    name: str,
    expected: StoredBatch,
    changed: Callable[[StoredBatch], StoredBatch],
) -> StoredBatch | None:
    """Change the entry of a batch in one commit. Return it, or None if it is gone."""

    def text(state: TableState) -> str | None:
        old = BATCHES.find(state, name, context.path)
        if old is None:
            return None
        return (changed(old) if old.id == expected.id else old).encode()

    state = context.messages.change_property(BATCHES.key(name), text, "complete batch")
    stored = BATCHES.find(state, name, context.path)
    return stored if stored is not None and stored.id == expected.id else None


def _publish(context: QueueContext, name: str, stored: StoredBatch) -> bool:
    """Publish the completion message unless it is. Return whether this call has done it."""
    target = open_target(context, stored.to)
    now = target.now()
    row = {
        "message_id": f"{name}/complete",
        "value": json.dumps(_value(context, name, stored)).encode(),
        "headers": [(_BATCH, name), (_QUEUE, context.path)],
    }
    table = to_publish(from_rows([row]), now, target.settings.default_times(now))
    note = {"operation": "publish", "batch": name}
    try:
        publish_table(target, table, txn=(f"spark_mq.batch:{stored.id}", 1), note=note)
    except DuplicatePublish:
        return False
    return True


def _value(context: QueueContext, name: str, stored: StoredBatch) -> dict[str, Any]:
    return {
        "batch_id": name,
        "queue": context.path,
        "messages": stored.messages,
        "closed_at": to_datetime(stored.closed_at).isoformat(),
        "completed_at": to_datetime(stored.completed_at or 0).isoformat(),
        "groups": stored.counts,
    }


def _remove_old(context: QueueContext, name: str, stored: StoredBatch) -> None:
    """Remove the entry of a batch that is complete for long, and whose messages are trimmed."""
    oldest = context.now() - context.settings.history_retention // MICROSECOND
    done = stored.completed_at is not None and stored.completed_at < oldest
    if not done or name in context.messages.index().batches():
        return

    def text(state: TableState) -> str | None:
        old = BATCHES.find(state, name, context.path)
        return None if old is None or old.id == stored.id else old.encode()

    context.messages.change_property(BATCHES.key(name), text, "remove batch")
