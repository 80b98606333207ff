"""Run a handler over messages that a group has settled, and settle nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import CorruptLog, HandlerTimeout, InvalidHandlerResult, InvalidOption
from spark_mq.formats.base import Format
from spark_mq.handler import HandlerPolicy
from spark_mq.ledger.message_index import FileSlice
from spark_mq.maintenance.condition import Condition
from spark_mq.message import ReceivedMessage, check_past, to_received
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.pauses import LOCAL_POLL
from spark_mq.operations.settled import SettledMessages, SettledRange, find_settled
from spark_mq.parquet.reader import MessageReader, to_delivery_table
from spark_mq.parquet.schema import FILE_SCHEMA, INSTANT
from spark_mq.util.clock import Duration
from spark_mq.util.show import show_duration
from spark_mq.util.validation import validate_count
from spark_mq.worker.decisions import Verdict, verdict_of_error
from spark_mq.worker.open_tasks import LaneChains
from spark_mq.worker.pools import Pool
from spark_mq.worker.replay_report import ReplayReport, ReportBuilder
from spark_mq.worker.run import WorkOptions, check_handlers, decoding, make_pool
from spark_mq.worker.shadow_lease import ShadowLease
from spark_mq.worker.state import WorkState
from spark_mq.worker.tasks import Done, LeaseTasks, MessageTasks, Task, TaskOptions, Tasks
from spark_mq.worker.time_limit import TimeLimit

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
PATIENCE_SECONDS: Final = 5.0  # with handlers that all hang
_ENDLESS: Final = "36500d"  # a replay has no lease that ends

Piece = tuple[FileSlice, SettledRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of :meth:`spark_mq.Queue.replay`, not validated yet."""

    since: datetime | Duration | None = None
    until: datetime | Duration | None = None
    where: str | None = None
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
    where = given.where
    condition = None if where is None else Condition(where, SETTLED_SCHEMA, _EXAMPLE)
    ((_, called),) = decoding(served, options, batches, state)
    pool = make_pool([called], options, state)
    group.settings()  # whose last look says whether the order of keys counts
    settled = find_settled(group, since, until)
    rows = _SettledRows(group, settled, condition)
    tasks = LeaseTasks(called, rules) if batches else MessageTasks(called, rules)
    calls = _Calls(tasks, rules, pool, state)
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
        table[name].to_pylist()
        for name in ("failure_count", "first_leased_at", "priority", "deliver_at", "expires_at")
    ]
    return to_received(table.set_column(at, SETTLED_SCHEMA.field(at), counts), more)


def _tasks_of(tasks: Tasks, calls: _Calls, lease: ShadowLease) -> list[tuple[Task, int | None]]:
    """Return the tasks of a lease, each with its lane."""
    found = tasks.of_lease(calls, lease)
    return [(_Task(one.feed, one.handler, one.lease, one.message), lane) for one, lane in found]


class _Task(Task):
    """A task that telemetry does not count as the work of a worker."""

    __slots__ = ()

    def run(self) -> float:
        return self._run(self.call)


def _seconds(done: Sequence[Done], calls: _Calls) -> dict[int, float]:
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

    def read(self, limit: int | None) -> Iterator[pa.Table]:
        """Yield the messages, at most `limit` and then the newest, in tables of SETTLED_SCHEMA."""
        first = 0 if limit is None else self._first_of_newest(limit)
        self.unreadable = 0  # those of the look for the first one
        for pieces in _chunks(self._pieces(first)):
            table = self._selected(pieces)
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


class _Calls:
    """Calls a handler with tasks by a pool, and notes the verdicts. The feed of its tasks."""

    def __init__(self, tasks: Tasks, rules: TaskOptions, pool: Pool, state: WorkState) -> None:
        self._tasks, self._policy, self._pool, self._state = tasks, rules.policy, pool, state
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._waiting, self._running = dict[Task, None](), dict[Task, None]()
        self._chains: LaneChains[Task] = LaneChains()
        self._done: list[Done] = []
        self.seconds: dict[Task, float] = {}
        self.stopped_because = ""  # once no handler can be called
        self._stuck = 0.0, ""  # since when all handlers hang, and their limit
        self._time_limit = None
        if rules.timeout is not None:
            self._time_limit = TimeLimit(rules.timeout, self._oldest, self._end_late, state.fail)
        state.add(self._changed)

    def __enter__(self) -> _Calls:
        self._pool.start()
        if self._time_limit is not None:
            self._time_limit.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._waiting.clear()
        if self._time_limit is not None:
            self._time_limit.stop()
        self._pool.stop()

    def run(self, tasks: Sequence[tuple[Task, int | None]]) -> list[Done]:
        """Return the tasks with their verdicts, fewer if the replay must end. Raise its error."""
        with self._lock:
            self._waiting.update((task, None) for task, _ in tasks)
            for task, lane in tasks:
                if lane is None or self._chains.add(lane, task):
                    self._pool.submit(task)
        while not self._is_over():
            self._changed.wait(LOCAL_POLL)
            self._changed.clear()  # before the next look, so that no change in between is missed
        if self._state.error is not None:
            raise self._state.error
        with self._lock:
            done, self._done = self._done, []
        return done

    def _is_over(self) -> bool:
        with self._lock:
            if self._state.error is not None:
                return True
            if self._state.stop.is_set():
                self._waiting.clear()
            if self._waiting and self._is_stuck():
                return True
            return not (self._waiting or self._running)

    def _is_stuck(self) -> bool:
        """Return whether all handlers hang, so that the replay must end."""
        # A coroutine that was cancelled needs a moment to end.
        since, limit = self._stuck
        if self._pool.concurrency or time.monotonic() < since + PATIENCE_SECONDS:
            return False
        self.stopped_because = (
            f"all handlers have exceeded their time limit of {limit} and still run"
        )
        return True

    # -- in the pool's threads

    def claim(self, task: Task) -> bool:
        with self._lock:
            if task not in self._waiting or self._state.stop.is_set():
                return False
            del self._waiting[task]
            task.started = time.monotonic()
            self._running[task] = None
            return True

    def finish(self, task: Task, result: Any, error: BaseException | None) -> float:
        with self._lock:  # or the pool would count it as given up after it has returned
            if task not in self._running:
                return 0.0
        self._end(task, result, error)
        return 0.0

    def _end(self, task: Task, result: Any, error: BaseException | None) -> None:
        seconds = time.monotonic() - task.started
        try:
            verdict = self._verdict(task, result, error)
        except BaseException as wrong:  # of the program, as in a worker
            self._state.fail(wrong)
            return
        with self._lock:
            if task not in self._running:
                return  # it exceeded its time limit meanwhile
            del self._running[task]
            self._note(task, verdict, seconds)

    def _note(self, task: Task, verdict: Verdict, seconds: float) -> None:
        self._done.append((task, verdict))
        self.seconds[task] = seconds
        if (following := self._chains.remove(task)) is not None:
            self._pool.submit(following)
        if not (self._waiting or self._running):
            self._changed.set()

    def _verdict(self, task: Task, result: Any, error: BaseException | None) -> Verdict:
        if error is None:
            return self._tasks.verdict(task, result)
        is_mistake = task.message is None and isinstance(error, InvalidHandlerResult)
        if is_mistake or not isinstance(error, Exception):
            raise error
        return verdict_of_error(error, self._policy)

    # -- in the thread of the time limit

    def _oldest(self) -> Task | None:
        with self._lock:
            return next(iter(self._running), None)

    def _end_late(self, task: Task, error: HandlerTimeout) -> None:
        """Let a task fail that exceeds the time limit, and refuse what its handler returns."""
        seconds = time.monotonic() - task.started
        with self._lock:
            if task not in self._running:
                return
            del self._running[task]  # before its coroutine ends as one that was cancelled
            self._pool.give_up(task)
            if not self._pool.concurrency:
                self._stuck = time.monotonic(), show_duration(error.data["timeout"])
            self._note(task, verdict_of_error(error, self._policy), seconds)
