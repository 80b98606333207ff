"""Publish by the sweep: due messages of schedules, and completion messages of closed batches.

The commit that publishes a schedule's messages also moves the number of the schedule to the last
instant in it. It lands only if that number, and the schedule, are still as they were read. So it
does no harm to run twice at once, or to be killed: without the commit nothing is published, and
with it all is done.

A batch takes three commits that can be run again. The first fixes the counts in the batch's entry.
The second publishes them under a producer number of the batch, which lands once. The third notes
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace

from spark_mq.delta.state import TableState
from spark_mq.errors import DuplicatePublish, ProducerFenced
from spark_mq.ledger.recurrence import jitter_of
from spark_mq.message import HEADER_PREFIX, from_rows, to_publish
from spark_mq.operations.batches import count_messages, count_outcomes, open_target
from spark_mq.operations.context import QueueContext
from spark_mq.operations.publish import publish_table
from spark_mq.storage.stored_entries import (
    BATCHES,
    SCHEDULES,
    Schedule,
    StoredBatch,
    schedule_txn,
)
from spark_mq.util.clock import MICROSECOND, to_datetime

MAX_INSTANTS: Final = 1_000  # of a schedule in one sweep
MAX_BYTES: Final = 8 * 2**20  # of their payloads
_TRIES: Final = 3  # each one is lost to another sweep, or to a change of the schedule
_BATCH: Final = HEADER_PREFIX + "batch_id"  # in a completion message
_QUEUE: Final = HEADER_PREFIX + "batch_queue"  # and the queue of the batch


def names_of_schedules(context: QueueContext) -> list[str]:
    """Return the names of the schedules as they were last read."""
    return SCHEDULES.names(context.messages.log.state)


def publish_due(context: QueueContext, name: str) -> int:
    """Publish the due messages of a schedule. Return their number."""
    state = context.messages.log.state
    for _ in range(_TRIES):
        published = _publish_instants(context, state, name)
        if published is not None:
            return published
        state = context.messages.look()
    return 0  # others publish them


def _publish_instants(context: QueueContext, state: TableState, name: str) -> int | None:
    """Publish what is due in a state. Return the number, or None if the state has changed."""
    schedule, last = SCHEDULES.find(state, name, context.path), state.txns.get(schedule_txn(name))
    if schedule is None:
        return 0  # somebody has removed it since
    now = context.now()
    most = min(MAX_INSTANTS, max(1, MAX_BYTES // max(1, len(schedule.value))))
    instants = schedule.due(last, now, most)
    if not instants:
        return 0

    def check(latest: TableState) -> None:
        if SCHEDULES.find(latest, name, context.path) != schedule:
            raise ProducerFenced(
                f"schedule {name!r} was changed meanwhile",
                producer_id=name,
                last_sequence=last,
                expected=last,
            )

    txn = (schedule_txn(name), instants[-1])
    note = {"operation": "publish", "schedule": name}
    table = _instants_table(context, schedule, name, instants, now)
    try:
        publish_table(context, table, txn=txn, after=last or 0, note=note, check=check)
    except (DuplicatePublish, ProducerFenced):
        return None
    return len(instants)


def _instants_table(
    context: QueueContext, schedule: Schedule, name: str, instants: Sequence[int], now: int
) -> pa.Table:
    rows = [_instant_row(context, schedule, name, instant) for instant in instants]
    return to_publish(from_rows(rows), now, context.settings.default_times(now))


def _instant_row(
    context: QueueContext, schedule: Schedule, name: str, instant: int
) -> dict[str, Any]:
    at = to_datetime(instant).isoformat()
    own = {HEADER_PREFIX + "schedule": name, HEADER_PREFIX + "scheduled_at": at}
    delay, usual = schedule.deliver_after, context.settings.delivery_delay
    if schedule.jitter:
        if delay is None:
            delay = 0 if usual is None else usual // MICROSECOND
        delay += jitter_of(name, instant, schedule.jitter)
    expiry = schedule.expires_after
    return {
        "message_id": f"{name}/{at}",
        "key": schedule.key,
        "value": schedule.value,
        "headers": [*{**schedule.headers, **own}.items()],
        "deliver_at": None if delay is None else to_datetime(instant + delay),
        "expires_at": None if expiry is None else to_datetime(instant + expiry),
        "priority": schedule.priority or None,
    }


def names_of_closed_batches(context: QueueContext) -> list[str]:
    """Return the names of the closed batches as they were last read."""
    return BATCHES.names(context.messages.log.state)


def complete_batch(context: QueueContext, name: str) -> int:
    """Publish the completion message of a batch that is settled. Return 1 if it has done so."""
    stored = BATCHES.find(context.messages.log.state, name, context.path)
    if stored is None:
        return 0
    if stored.published:
        _remove_old_batch(context, name, stored)
        return 0
    if stored.completed_at is None:
        counted = _counted(context, name, stored)
        if counted is None:
            return 0
        stored = _change_batch(context, name, stored, lambda old: counted if _is_open(old) else old)
        if stored is None or stored.published:
            return 0  # another sweep was faster
    published = _publish_completion(context, name, stored)
    _change_batch(context, name, stored, lambda old: replace(old, published=True))
    return int(published)


def _is_open(stored: StoredBatch) -> bool:
    return stored.completed_at is None


def _counted(context: QueueContext, name: str, stored: StoredBatch) -> StoredBatch | None:
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


def _change_batch(
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


def _publish_completion(context: QueueContext, name: str, stored: StoredBatch) -> bool:
    """Publish the completion message unless it is. Return whether this call has done it."""
    target = open_target(context, stored.to)
    now = target.now()
    row = {
        "message_id": f"{name}/complete",
        "value": json.dumps(_completion_value(context, name, stored)).encode(),
        "headers": [(_BATCH, name), (_QUEUE, context.path)],
    }
    table = to_publish(from_rows([row]), now, target.settings.default_times(now))
    note = {"operation": "publish", "batch": name}
    try:
        publish_table(target, table, txn=(f"spark_mq.batch:{stored.id}", 1), note=note)
    except DuplicatePublish:
        return False
    return True


def _completion_value(context: QueueContext, name: str, stored: StoredBatch) -> dict[str, Any]:
    return {
        "batch_id": name,
        "queue": context.path,
        "messages": stored.messages,
        "closed_at": to_datetime(stored.closed_at).isoformat(),
        "completed_at": to_datetime(stored.completed_at or 0).isoformat(),
        "groups": stored.counts,
    }


def _remove_old_batch(context: QueueContext, name: str, stored: StoredBatch) -> None:
    """Remove the entry of a batch that is complete for long, and whose messages are trimmed."""
    oldest = context.now() - context.settings.history_retention // MICROSECOND
    done = stored.completed_at is not None and stored.completed_at < oldest
    if not done or name in context.messages.index().batches():
        return

    def text(state: TableState) -> str | None:
        old = BATCHES.find(state, name, context.path)
        return None if old is None or old.id == stored.id else old.encode()

    context.messages.change_property(BATCHES.key(name), text, "remove batch")
