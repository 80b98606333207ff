"""Count throughput, find slow or failing messages, and list what people changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.states import UNSETTLED
from spark_mq.operations.context import QueueContext
from spark_mq.operations.history import read_history
from spark_mq.storage.history_table import FAILURES
from spark_mq.util.clock import SECOND, Duration, to_datetime
from spark_mq.util.columns import sort_rows
from spark_mq.util.records import Record
from spark_mq.util.validation import (
    RESERVED_PREFIX,
    validate_choice,
    validate_count,
    validate_duration,
)

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_EVENT_COLUMNS: Final = ("committed_at", "consumer_group", "event", "outcome", "message_count")
ENDS: Final = ("acked", "dead_lettered", "dropped", "expired")
_COUNTS: Final = ("published", "leased", "failed", *ENDS)
_LEAST_SECONDS: Final = 1.0
"""A rate over less time says little. A shorter interval counts in full."""
THROUGHPUT_SCHEMA: Final = pa.schema(
    [
        pa.field("at", _INSTANT),
        pa.field("consumer_group", pa.string()),
        *(pa.field(name, pa.int64()) for name in _COUNTS),
        pa.field("published_per_second", pa.float64()),
        pa.field("settled_per_second", pa.float64()),
    ]
)
"""One row for each interval and group.

``failed`` counts nacks, rejects, expired leases, and batches given back from a dead driver.
``consumer_group`` is null in the rows that count ``published``. ``settled_per_second`` is the rate
of ``acked``, ``dead_lettered``, ``dropped`` and ``expired`` together. An interval that has not
ended has the rates of its time so far, of one second at least.
"""

BY: Final = ("slowest", "failing")
MAX_BUCKETS: Final = 100_000
_MOST_KEPT: Final = timedelta(days=10_000)  # a longer time may be before the year 1


@dataclass(frozen=True, slots=True)
class MessageRecord(Record):
    """Messages ``first..last`` that had the same life in a group.

    Attributes
    ----------
    group, first, last, messages
        The group, the sequences (inclusive) and their number.
    duration
        From the first delivery to the settle, or until now. A dead letter ended when a sweep routed
        it.
    state
        The outcome, such as "acked", or the state in the ledger.
    delivery_count, failure_count
        Deliveries and failures.
    worker_id
        The last worker.
    reason, error
        Why they died, and the text of the last failure.
    """

    group: str
    first: int
    last: int
    messages: int
    duration: timedelta
    state: str
    delivery_count: int
    failure_count: int
    worker_id: str | None
    reason: str | None
    error: str | None


def throughput(
    context: QueueContext,
    *,
    since: Duration = "1h",
    every: Duration = "1m",
    group: str | None = None,
) -> pa.Table:
    length = validate_duration("every", every)
    span = validate_duration("since", since)
    validate_count("since/every", -(-span // length), most=MAX_BUCKETS)
    now = context.now()
    start = (now - span) // length * length
    counts = defaultdict[tuple[int, str | None], Counter[str]](Counter)  # by interval and group
    for file in reversed(context.messages.index().files):
        if file.committed_at >= start:
            counts[file.committed_at // length * length, None]["published"] += file.rows
    events = read_history(context, group=group, since=start, columns=_EVENT_COLUMNS)
    for row in _event_sums(events, length):
        own = counts[row["bucket"], row["consumer_group"]]
        own[row["outcome"] or row["event"]] += row["message_count_sum"]
        if row["event"] in FAILURES:
            own["failed"] += row["message_count_sum"]
    rows = [
        {"at": to_datetime(at), "consumer_group": name, **with_rates(own, at, length, now)}
        for (at, name), own in sorted(
            counts.items(), key=lambda item: (item[0][0], item[0][1] or "")
        )
        if not own.keys().isdisjoint(_COUNTS)  # other events alone make no row
    ]
    return pa.Table.from_pylist(rows, schema=THROUGHPUT_SCHEMA)


def throughput_known_since(context: QueueContext) -> tuple[datetime, datetime]:
    """Return since when the publishes of a queue, and the events of its groups, are known.

    Both are known since the queue was created, except that a trim may have forgotten old publishes,
    and a sweep drops days of ``history/``.
    """
    index = context.messages.index()
    created = context.messages.log.state.metadata.get("createdTime") or 0  # in milliseconds
    publishes = born = to_datetime(created * 1000)
    if index.forgotten_to >= 0:
        publishes = to_datetime(index.files[0].committed_at if index.files else context.now())
    kept = min(context.settings.history_retention, _MOST_KEPT)
    oldest = to_datetime(context.now()) - kept
    first_day = oldest.replace(hour=0, minute=0, second=0, microsecond=0)
    return publishes, max(born, first_day)


def with_rates(
    counts: Mapping[str, int], start: int, length: int, now: int
) -> dict[str, int | float]:
    """Return the counts of an interval of microseconds with their rates."""
    full = length / SECOND
    seconds = min(full, max(_LEAST_SECONDS, (now - start) / SECOND))
    row = {name: counts.get(name, 0) for name in _COUNTS}
    return {
        **row,
        "published_per_second": row["published"] / seconds,
        "settled_per_second": sum(row[name] for name in ENDS) / seconds,
    }


def _event_sums(rows: pa.Table, length: int) -> list[dict[str, Any]]:
    rows = rows.filter(pc.is_valid(rows["event"]))
    at = rows["committed_at"].cast(pa.int64())
    bucket = pc.multiply(pc.divide(at, length), length)
    rows = rows.select(["consumer_group", "event", "outcome", "message_count"])
    keys = ["bucket", "consumer_group", "event", "outcome"]
    sums: list[dict[str, Any]] = (
        rows.append_column("bucket", bucket)
        .group_by(keys, use_threads=False)
        .aggregate([("message_count", "sum")])
        .to_pylist()
    )
    return sums


def notable_messages(
    context: QueueContext, group: str, n: int = 10, *, by: str, since: Duration = "1d"
) -> list[MessageRecord]:
    """Return the slowest or the most failing messages of a group, by ``by``."""
    validate_count("n", n)
    validate_choice("by", by, BY)
    start = context.now() - validate_duration("since", since)
    lives = [*_ended(context, group, start, n, by), *_living(context, group)]
    if not lives:
        context.group(group).require_group()  # a group that was dropped has a history
    if by == "failing":
        lives = [life for life in lives if life.failure_count]
        lives.sort(key=lambda life: (-life.failure_count, -life.delivery_count, life.first))
    else:
        lives.sort(key=lambda life: (-life.duration, life.first))
    return lives[:n]


def _ended(
    context: QueueContext, group: str, start: int, n: int, by: str
) -> Iterator[MessageRecord]:
    rows = read_history(context, group=group, since=start)
    rows = rows.filter(pc.and_(pc.is_valid(rows["outcome"]), pc.is_valid(rows["first_leased_at"])))
    began, ended = (rows[name].cast(pa.int64()) for name in ("first_leased_at", "committed_at"))
    rows = rows.append_column("taken", pc.subtract(ended, began))
    order = "failure_count" if by == "failing" else "taken"
    for row in rows.take(pc.select_k_unstable(rows, n, [(order, "descending")])).to_pylist():
        yield _record(group, row, row["taken"], row["outcome"], row["worker_id"])


def _living(context: QueueContext, group: str) -> Iterator[MessageRecord]:
    ledger, now = context.group(group).current(), context.now()
    for r in ledger.ranges_at(ledger.find(UNSETTLED, ("first_leased_at", "is set", None))):
        took = now - (r.first_leased_at or now)
        yield _record(group, r._asdict(), took, str(r.state), r.worker)


def _record(
    group: str, row: Mapping[str, Any], took: int, state: str, worker: str | None
) -> MessageRecord:
    names = ("first", "last", "delivery_count", "failure_count", "reason", "error")
    return MessageRecord(
        group=group,
        messages=row["message_count"],
        duration=timedelta(microseconds=max(0, took)),
        state=state,
        worker_id=worker,
        **{name: row[name] for name in names},
    )


_OPERATIONS: Final = (
    "configure", "create group", "discard", "drop group", "pause", "redriven", "resume", "seek",
    "trim", "unblock",
)  # fmt: skip
"""Operations that people run or start. The stored text may have more words after these."""
_KEYS: Final = ["version", "committed_at", "consumer_group", "operation", "user", "detail"]


@dataclass(frozen=True, slots=True)
class ChangeRecord(Record):
    """A change that a person made.

    Attributes
    ----------
    at
        The time of the commit (aware, UTC).
    group
        The group, or None for a change of the queue itself or a redrive.
    operation
        The operation, such as "pause".
    user
        The person, or the user and host of the process. None for a group that a lease created.
    messages
        How many messages it concerned.
    in_dead_letters
        Whether the dead-letter queue has the commit.
    detail
        The reason of a pause, discard or dead letter, the settings that a configure changed, a
        seek's target, or the condition of a redrive or a discard of letters. None for other
        changes, and for a redrive that another process had to finish.
    """

    at: datetime
    group: str | None
    operation: str
    user: str | None
    messages: int
    in_dead_letters: bool = False
    detail: str | None = None


def list_changes(
    context: QueueContext, n: int, since: Duration, group: str | None = None
) -> list[ChangeRecord]:
    start = context.now() - validate_duration("since", since)
    dead, changes = context.existing_dead_letters(), list[ChangeRecord]()
    if dead is not None and dead.path != context.path:
        changes += _changes(dead, start, group, True)
    changes += _changes(context, start, group, False)
    changes.sort(key=lambda change: change.at)
    return changes[::-1][:n]


def _changes(
    context: QueueContext, start: int, group: str | None, dead: bool
) -> Iterator[ChangeRecord]:
    rows = read_history(context, group=group, since=start, columns=[*_KEYS, "message_count"])
    named = pc.match_substring_regex(rows["operation"], rf"(^|\+)({'|'.join(_OPERATIONS)})")
    rows = rows.filter(pc.or_(pc.is_valid(rows["user"]), pc.fill_null(named, False)))
    step = pc.equal(rows["operation"], "freeze redrive")  # of a redrive, which follows
    rows = rows.filter(pc.invert(pc.fill_null(step, False)))
    sums: pa.Table = rows.group_by(_KEYS, use_threads=False).aggregate([("message_count", "sum")])
    for row in sort_rows(sums, "version").to_pylist():  # group_by keeps no order
        name = row["consumer_group"]
        yield ChangeRecord(
            row["committed_at"],
            None if name is None or name.startswith(RESERVED_PREFIX) else name,
            row["operation"] or "",
            row["user"],
            row["message_count_sum"] or 0,
            dead,
            row["detail"],
        )
