"""Publish the due messages of a queue's schedules, each instant once.

The commit that publishes also moves the number of the schedule to the last instant in it. It lands
only if that number, and the schedule, are still as they were read. So it does no harm to run twice
at once, or to be killed: without the commit nothing is published, and with it all is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from spark_mq.delta.state import TableState
from spark_mq.errors import DuplicatePublish, ProducerFenced
from spark_mq.ledger.recurrence import jitter_of
from spark_mq.message import HEADER_PREFIX, from_rows, to_publish
from spark_mq.operations.context import QueueContext
from spark_mq.operations.publish import publish_table
from spark_mq.storage.stored_entries import SCHEDULES, Schedule, schedule_txn
from spark_mq.util.clock import MICROSECOND, to_datetime

MAX_INSTANTS: Final = 1_000  # of a schedule in one sweep
MAX_BYTES: Final = 8 * 2**20  # of their payloads
_TRIES: Final = 3  # each one is lost to another sweep, or to a change of the schedule


def names_of_schedules(context: QueueContext) -> list[str]:
    """Return the names of the schedules as they were last read."""
    return SCHEDULES.names(context.messages.log.state)


def publish_due(context: QueueContext, name: str) -> int:
    """Publish the due messages of a schedule. Return their number."""
    state = context.messages.log.state
    for _ in range(_TRIES):
        published = _publish(context, state, name)
        if published is not None:
            return published
        state = context.messages.look()
    return 0  # others publish them


def _publish(context: QueueContext, state: TableState, name: str) -> int | None:
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
    table = _table(context, schedule, name, instants, now)
    try:
        publish_table(context, table, txn=txn, after=last or 0, note=note, check=check)
    except (DuplicatePublish, ProducerFenced):
        return None
    return len(instants)


def _table(
    context: QueueContext, schedule: Schedule, name: str, instants: Sequence[int], now: int
) -> pa.Table:
    rows = [_row(context, schedule, name, instant) for instant in instants]
    return to_publish(from_rows(rows), now, context.settings.default_times(now))


def _row(context: QueueContext, schedule: Schedule, name: str, instant: int) -> dict[str, Any]:
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
