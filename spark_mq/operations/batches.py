"""Close, list and complete the message batches of a queue.

One commit of ``messages/`` closes a batch for all publishers. A commit of ``leases/`` then notes
it. A kill between the two leaves a batch that is closed, but not noted.

A completion takes three commits that can be run again. The first fixes the counts in the batch's
entry. The second publishes them under a producer number of the batch, which lands once. The third
notes it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from spark_mq.delta.object_store import canonical_uri
from spark_mq.delta.state import TableState
from spark_mq.errors import BatchClosed, DuplicatePublish, InvalidOption, SparkMQError
from spark_mq.ledger.intervals import Interval, intersect, normalise, subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import SETTLED, Ledger
from spark_mq.message import HEADER_PREFIX, from_rows, to_publish
from spark_mq.operations.context import GroupLedger, QueueContext, group_not_found
from spark_mq.operations.create import note_change, open_context
from spark_mq.operations.history import OUTCOMES, last_ends, read_group_history
from spark_mq.operations.publish import publish_table
from spark_mq.storage.stored_entries import BATCHES, StoredBatch
from spark_mq.util.clock import MICROSECOND, optional_datetime, to_datetime
from spark_mq.util.records import Record
from spark_mq.util.validation import invalid, validate_name

_MAX_ALL_BYTES: Final = 2**20  # of all entries, because each change writes them all
UNKNOWN: Final = "unknown"  # settled, and no outcome is known
_BATCH: Final = HEADER_PREFIX + "batch_id"  # in a completion message
_QUEUE: Final = HEADER_PREFIX + "batch_queue"  # and the queue of the batch
COUNTED: Final = (*(outcome for outcome in OUTCOMES if outcome != "redriven"), UNKNOWN)


@dataclass(frozen=True, slots=True)
class BatchInfo(Record):
    """A message batch of a queue.

    Attributes
    ----------
    name
        The ``batch_id``.
    state
        "open": messages may be published to it. "closed": its messages are not all settled, or no
        sweep has looked since. "complete": the counts are fixed, and the completion message is
        published, now or by the next sweep.
    messages
        How many messages the queue has of it.
    settled
        How many of them each group has settled: each group of the queue, while the batch is open.
    groups, to
        The groups that must settle it, and the queue of the completion message. For an open batch,
        there are none and it is None.
    closed_at, completed_at
        When it was closed, and when a sweep found it complete, or None.
    counts
        The messages by group and outcome, as in the completion message. Empty before.
    """

    name: str
    state: str
    messages: int
    settled: int
    groups: tuple[str, ...]
    to: str | None
    closed_at: datetime | None
    completed_at: datetime | None
    counts: Mapping[str, Mapping[str, int]]


def open_target(context: QueueContext, to: str) -> QueueContext:
    """Return the queue of a completion message. Raise QueueNotFound."""
    options = context.storage_options
    if canonical_uri(to, options) == canonical_uri(context.path, options):
        return context
    return open_context(to, options, context.clock)


# -- closing


def close_batch(
    context: QueueContext, name: str, to: str, groups: Iterable[str] | None
) -> BatchInfo:
    """Close a batch, as :meth:`spark_mq.Queue.close_batch` describes."""
    validate_name("batch_id", name)
    if context.settings.is_dead_letter_queue:
        raise InvalidOption(
            f"{context.path} is a dead-letter queue, whose sweep completes no batch: publish the "
            "batch to another queue",
            option="batch_id",
            value=name,
        )
    if open_target(context, to).settings.is_dead_letter_queue:
        why = (
            "is a dead-letter queue, which is for dead letters: give a queue whose "
            "groups process the completion message"
        )
        raise invalid("to", to, why)
    wanted = _wanted(context, groups)
    notes: list[str] = []  # of the last try

    def text(state: TableState) -> str:
        old = BATCHES.find(state, name, context.path)
        if old is not None:
            _check_same(context, name, old, to, None if groups is None else wanted)
            notes[:] = []
            return old.encode()
        encoded = StoredBatch(uuid.uuid4().hex, to, wanted, context.now()).encode()
        if BATCHES.size(state, name, encoded) > _MAX_ALL_BYTES:
            why = (
                f"makes the closed batches larger than {_MAX_ALL_BYTES:,} bytes "
                "together: sweep, which removes those that were complete before the queue's "
                "history_retention, or use fewer, larger batches"
            )
            raise invalid("batch_id", name, why)
        notes[:] = [f"batch {name} closed"]
        return encoded

    state = context.messages.change_property(BATCHES.key(name), text, "close batch")
    for note in notes:
        note_change(context, note)
    return _info(context, state, name, context.messages.index())


def _wanted(context: QueueContext, groups: Iterable[str] | None) -> tuple[str, ...]:
    """Return the groups that must settle a batch. Raise InvalidOption or GroupNotFound."""
    known = context.ledgers.groups()
    if groups is None:
        if not known:
            raise InvalidOption(
                f"{context.path} has no groups, so nobody settles a batch: create a group before "
                "the close, as by queue.group(name).ensure()",
                option="groups",
                value=None,
            )
        return tuple(sorted(known))
    given = [groups] if isinstance(groups, str) else list(groups)
    wanted = tuple(sorted({validate_name("groups", name) for name in given}))
    if not wanted:
        raise InvalidOption(
            "groups=[] settles nothing: name the groups, or leave groups out for all of them",
            option="groups",
            value=given,
        )
    for name in wanted:
        if name not in known:
            raise group_not_found(context, name)
    return wanted


def _check_same(
    context: QueueContext, name: str, old: StoredBatch, to: str, groups: tuple[str, ...] | None
) -> None:
    options = context.storage_options
    same_queue = canonical_uri(old.to, options) == canonical_uri(to, options)
    if same_queue and groups in (None, old.groups):
        return
    raise BatchClosed(
        f"batch {name!r} of {context.path} is closed already, with to={old.to!r} and "
        f"groups={list(old.groups)}: close it the same way, or use another batch_id",
        batch_id=name,
    )


# -- looks


def list_batches(context: QueueContext) -> list[BatchInfo]:
    index = context.messages.index()
    state = context.messages.log.state
    names = {*index.batches(), *BATCHES.names(state)}
    return [_info(context, state, name, index) for name in sorted(names)]


def _info(context: QueueContext, state: TableState, name: str, index: MessageIndex) -> BatchInfo:
    stored = BATCHES.find(state, name, context.path)
    if stored is not None and stored.completed_at is not None:
        messages = settled = stored.messages
    else:
        members = index.batches().get(name, [])
        names = context.ledgers.groups() if stored is None else stored.groups
        messages = count_messages(index, members)
        settled = messages - _unsettled(context, names, index, members) if names else 0
    if stored is None:
        return BatchInfo(name, "open", messages, settled, (), None, None, None, {})
    return BatchInfo(
        name,
        "closed" if stored.completed_at is None else "complete",
        messages,
        settled,
        stored.groups,
        stored.to,
        optional_datetime(stored.closed_at),
        optional_datetime(stored.completed_at),
        stored.counts,
    )


def _unsettled(
    context: QueueContext, groups: Iterable[str], index: MessageIndex, members: Sequence[Interval]
) -> int:
    unsettled: list[Interval] = []
    for name in groups:
        ledger = context.ledgers.read(name).ledger
        if ledger is not None:  # a dropped group settles nothing more
            unsettled += unsettled_members(ledger, index, members)
    return count_messages(index, normalise(unsettled))


def uncounted_start(context: QueueContext) -> list[int]:
    """Return the sequence before the first message of a batch that is not counted, if any."""
    # The index must keep the batch's messages, because only the index says which they are.
    batches = context.messages.index().batches()
    if not batches:
        return []
    state = context.messages.log.state
    return [
        intervals[0][0] - 1
        for name, intervals in batches.items()
        if not _is_counted(state, name, context.path)
    ]


def _is_counted(state: TableState, name: str, path: str) -> bool:
    try:
        stored = BATCHES.find(state, name, path)
    except SparkMQError:
        return False  # another version may count it
    return stored is not None and stored.completed_at is not None


# -- completion, by the sweep


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


# -- members: the intervals of a batch, between which other messages lie, and in which gaps are


def unsettled_members(
    ledger: Ledger, index: MessageIndex, members: Sequence[Interval]
) -> list[Interval]:
    """Return the members that a group has not settled, in any state."""
    start = ledger.head.start_sequence
    rest = subtract(members, [(0, start)] if start >= 0 else [])
    if rest:
        settled = ledger.ranges_at(ledger.find((SETTLED,)))
        rest = subtract(rest, [(r.first, r.last) for r in settled])
    return [interval for interval in rest if index.count(*interval)]


def count_messages(index: MessageIndex, members: Iterable[Interval]) -> int:
    return sum(index.count(*interval) for interval in members)


def count_ends(
    ends: Iterable[tuple[str, Interval]], index: MessageIndex, members: Sequence[Interval]
) -> dict[str, int]:
    """Count the members by outcome. Those without a known end are missing."""
    of_outcome: dict[str, list[Interval]] = {}
    for outcome, interval in ends:
        of_outcome.setdefault(outcome, []).append(interval)
    return {
        outcome: count_messages(index, intersect(members, intervals))
        for outcome, intervals in of_outcome.items()
    }


def count_outcomes(
    group: GroupLedger, index: MessageIndex, members: Sequence[Interval]
) -> dict[str, int] | None:
    """Count members by outcome in a group, or return None if some are not settled."""
    # A group that was dropped settles nothing more, and its outcomes are unknown.
    counts = dict.fromkeys(COUNTED, 0)
    ledger = group.snapshot().ledger
    if members and ledger is not None:
        index = group.index_for(ledger, members[-1][1])  # others may have leased later messages
        if unsettled_members(ledger, index, members):
            return None
        low, high = members[0][0], members[-1][1]
        names = ("version", "event", "outcome", "first", "last")
        rows = read_group_history(group, names, within=(low, high))
        ends = ((end["outcome"], place) for end, place in last_ends(rows, low, high))
        counts |= count_ends(ends, index, members)
    counts[UNKNOWN] = count_messages(index, members) - sum(counts.values())
    return counts
