"""Run a handler over messages that a group has settled, and settle nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import CorruptLog, InvalidOption
from spark_mq.handler import HandlerPolicy
from spark_mq.ledger.message_index import FileSlice
from spark_mq.maintenance.condition import Condition, Where, condition_of
from spark_mq.message import ReceivedMessage, check_past, to_received
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.settled import SettledMessages, SettledRange, find_settled
from spark_mq.parquet.reader import MessageReader, to_delivery_table
from spark_mq.parquet.schema import FILE_SCHEMA, INSTANT
from spark_mq.payload_format import Format
from spark_mq.util.clock import Duration, optional_datetime
from spark_mq.util.progress import progress
from spark_mq.util.validation import validate_count
from spark_mq.worker.replay_report import ReplayReport, ReportBuilder
from spark_mq.worker.run import WorkOptions, check_handlers, decoding, make_pool
from spark_mq.worker.shadow_calls import ShadowCalls
from spark_mq.worker.shadow_lease import ShadowLease
from spark_mq.worker.state import WorkState
from spark_mq.worker.tasks import Done, LeaseTasks, MessageTasks, Task, Tasks

__all__ = ["SETTLED_SCHEMA", "ReplayOptions", "shadow_replay"]

SETTLED_SCHEMA: Final = pa.schema(
    [
        pa.field("sequence", pa.int64()),
        *(field for field in FILE_SCHEMA),
        pa.field("outcome", pa.string()),
        pa.field("settled_at", INSTANT),
        pa.field("delivery_count", pa.int32()),
        pa.field("failure_count", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("error", pa.string()),
        pa.field("first_leased_at", INSTANT),
    ]
)
"""The columns that `where` of a shadow replay may use."""

_EXAMPLE: Final = "outcome = 'acked'"
ROWS: Final = 5_000  # messages in memory at a time
_BYTES: Final = 16 * 2**20  # of their files, but one message at least
_ENDLESS: Final = "36500d"  # a replay has no lease that ends

Piece = tuple[FileSlice, SettledRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of :meth:`spark_mq.Queue.replay`, not validated yet."""

    since: datetime | Duration | None = None
    until: datetime | Duration | None = None
    where: Where | None = None
    limit: int | None = None
    mode: str = "batch"
    format: Format | None = None
    threads: int = 1
    concurrency: int | None = None
    max_messages: int | None = None
    timeout: Duration | None = None
    on_error: str = "nack"
    stop: threading.Event | None = None

    def of_worker(self) -> WorkOptions:
        """Return the options of a worker that runs the handler. Raise InvalidOption."""
        if HandlerPolicy.validated(self.on_error).on_error == "raise":
            raise InvalidOption(
                "on_error='raise' would end the replay at the first failure: use nack, reject or "
                "ack",
                option="on_error",
                value=self.on_error,
            )
        return WorkOptions(
            mode=self.mode,
            worker_id=None,
            threads=self.threads,
            concurrency=self.concurrency,
            max_messages=self.max_messages,
            visibility_timeout=None,
            max_lease_duration=_ENDLESS,
            timeout=self.timeout,
            on_error=self.on_error,
            ack="on_success",
            shutdown_timeout=0,
            stop=self.stop,
            poll_interval=None,
            settle_linger=None,
            until=None,
            fail_on_data_loss=False,
            format=self.format,
        )


def shadow_replay(
    group: GroupLedger, handler: Callable[[Any], Any], given: ReplayOptions
) -> ReplayReport:
    """Validate the options, run the handler, and report. See :meth:`spark_mq.Queue.replay`."""
    options, now = given.of_worker(), group.now()
    served = [(group, handler)]
    batches = check_handlers(served, options)
    rules = options.task_options(batches)
    state = WorkState(options.stop)
    since, until = (
        None if at is None else check_past(name, at, now)
        for name, at in (("since", given.since), ("until", given.until))
    )
    if since is not None and until is not None and since >= until:
        raise InvalidOption(
            f"since={given.since!r} is not before until={given.until!r}, so nothing was settled "
            "in between. Use an earlier since",
            option="since",
            value=given.since,
        )
    limit = None if given.limit is None else validate_count("limit", given.limit, most=2**63 - 1)
    condition = condition_of(given.where, SETTLED_SCHEMA, _EXAMPLE, given.stop)
    ((_, called),) = decoding(served, options, batches)
    pool = make_pool([called], options, state)
    group.settings()  # whose last look says whether the order of keys counts
    settled = find_settled(group, since, until).without_others(group.name)
    rows = _SettledRows(group, settled, condition)
    if condition is None:
        found = sum(settled.index.count(one.first, one.last) for one in settled.ranges)
        progress().expect(found if limit is None else min(limit, found))
    tasks = LeaseTasks(called, rules) if batches else MessageTasks(called, rules)
    calls = ShadowCalls(tasks, rules, pool, state)
    report = ReportBuilder(group.name)
    size = rules.lease.max_messages if batches else ROWS
    with calls:
        for table in rows.read(limit):
            if state.stop.is_set():
                break
            leases = _leases(group, table, size)
            done = calls.run([one for lease in leases for one in _tasks_of(tasks, calls, lease)])
            parts = [part for lease in leases for part in lease.parts] + tasks.parts(done)
            report.add(table, parts, _seconds(done, calls))
            if calls.stopped_because:
                break
    stopped = "the event stop was set" if state.stop.is_set() else ""
    return report.build(
        trimmed=settled.trimmed,
        unreadable=rows.unreadable,
        without_history=settled.unknown_count,
        stopped_because=calls.stopped_because or stopped,
    )


def _leases(group: GroupLedger, table: pa.Table, size: int) -> list[ShadowLease]:
    """Return the messages of a table as leases of at most `size` messages."""
    messages = _received(table)
    return [
        ShadowLease(group, table.slice(at, size), messages[at : at + size])
        for at in range(0, table.num_rows, size)
    ]


def _received(table: pa.Table) -> list[ReceivedMessage]:
    # A message that was skipped was never delivered. This is its first delivery.
    at = table.schema.get_field_index("delivery_count")
    counts = pc.max_element_wise(table["delivery_count"], pa.scalar(1, pa.int32()))
    more = [
        table["failure_count"].to_pylist(),
        _instants(table["first_leased_at"]),
        table["priority"].to_pylist(),
        _instants(table["deliver_at"]),
        _instants(table["expires_at"]),
    ]
    return to_received(table.set_column(at, SETTLED_SCHEMA.field(at), counts), more)


def _instants(column: pa.ChunkedArray) -> list[datetime | None]:
    """Return a column of instants. Most rows share few, and each is converted once."""
    values = column.cast(pa.int64()).to_pylist()
    known = {one: optional_datetime(one) for one in set(values)}
    return [known[one] for one in values]


def _tasks_of(
    tasks: Tasks, calls: ShadowCalls, lease: ShadowLease
) -> list[tuple[Task, int | None]]:
    """Return the tasks of a lease, each with its lane."""
    found = tasks.of_lease(calls, lease)
    return [
        (_LeaseTask(one.feed, one.handler, one.lease) if one.message is None else one, lane)
        for one, lane in found
    ]


class _LeaseTask(Task):
    """A task that telemetry does not count as the work of a worker."""

    __slots__ = ()

    def run(self) -> float:
        return self._run(self.call)


def _seconds(done: Sequence[Done], calls: ShadowCalls) -> dict[int, float]:
    """Return the time of the call that had each message."""
    found: dict[int, float] = {}
    for task, _ in done:
        took = calls.seconds[task]
        if task.message is not None:
            found[task.message.sequence] = took
        else:
            for first, last in task.lease._held.granted:
                found.update(dict.fromkeys(range(first, last + 1), took))
    calls.seconds.clear()
    return found


class _SettledRows:
    """Reads settled messages in order, those that a condition selects."""

    def __init__(
        self, group: GroupLedger, settled: SettledMessages, condition: Condition | None
    ) -> None:
        self._settled, self._condition = settled, condition
        self._reader = MessageReader(group.messages.files)
        self.unreadable = 0

    @property
    def _stopped(self) -> bool:
        return self._condition is not None and self._condition.stopped

    def read(self, limit: int | None) -> Iterator[pa.Table]:
        """Yield the messages, at most `limit` and then the newest, in tables of SETTLED_SCHEMA."""
        first = 0 if limit is None else self._first_of_newest(limit)
        self.unreadable = 0  # those of the look for the first one
        for pieces in _chunks(self._pieces(first)):
            table = self._selected(pieces)
            if self._stopped:
                return
            if limit is not None:
                table = table.slice(0, limit)
                limit -= table.num_rows
            if table.num_rows:
                yield table

    def _pieces(self, first: int) -> Iterator[Piece]:
        for r in self._settled.ranges:
            if r.last >= first:
                for piece in self._settled.index.slices(max(first, r.first), r.last):
                    yield piece, r

    def _first_of_newest(self, limit: int) -> int:
        """Return the sequence of the `limit`-th newest message, or 0 if there are fewer."""
        for r in reversed(self._settled.ranges):
            for piece in reversed(list(self._settled.index.slices(r.first, r.last))):
                rows = piece.rows
                while rows:
                    count = rows if self._condition is None else min(rows, ROWS)
                    rows -= count
                    part = piece.part(rows, count)
                    if self._condition is None:
                        found: Sequence[int] = range(part.first, part.first + count)
                    else:
                        found = self._selected([(part, r)])["sequence"].to_pylist()
                        if self._stopped:
                            return 0
                    if len(found) >= limit:
                        return found[len(found) - limit]
                    limit -= len(found)
        return 0

    def _selected(self, pieces: Sequence[Piece]) -> pa.Table:
        table = self._table(pieces)
        return table if self._condition is None else self._condition.select(table)

    def _table(self, pieces: Sequence[Piece]) -> pa.Table:
        """Return the messages of some slices. Count those that cannot be read."""
        try:
            payload = self._reader.read(*(piece for piece, _ in pieces))
            payload.validate(full=True)  # or a text without UTF-8 would fail in the handler's place
            return to_delivery_table(payload, pieces, SETTLED_SCHEMA, {})
        except (CorruptLog, pa.ArrowInvalid):
            if len(pieces) > 1:
                return pa.concat_tables([self._table([one]) for one in pieces])
            self.unreadable += pieces[0][0].rows
            return SETTLED_SCHEMA.empty_table()


def _chunks(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Yield slices in lists that are small enough for the memory."""
    chunk, rows, size = list[Piece](), 0, 0
    for piece, r in pieces:
        left = piece
        while left.rows:
            fit = max(1, left.rows * _BYTES // max(1, left.size))
            part = left.part(0, min(left.rows, ROWS - rows, fit))
            chunk.append((part, r))
            rows, size = rows + part.rows, size + part.size
            left = left.part(part.rows, left.rows - part.rows)
            if rows >= ROWS or size >= _BYTES:
                yield chunk
                chunk, rows, size = [], 0, 0
    if chunk:
        yield chunk
