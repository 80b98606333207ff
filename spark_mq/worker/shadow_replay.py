"""Run a handler over messages that a group has settled, and settle nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from spark_mq.errors import CorruptLog, InvalidOption
from spark_mq.handler import HandlerPolicy
from spark_mq.ledger.message_index import FileSlice
from spark_mq.maintenance.condition import Condition, Where, condition_of
from spark_mq.message import check_past
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.history import SettledMessages, SettledRange, find_settled
from spark_mq.parquet.reader import MessageReader, cut_rows, cut_slices, to_delivery_table
from spark_mq.parquet.schema import FILE_SCHEMA, INSTANT
from spark_mq.util.clock import Duration
from spark_mq.util.progress import progress
from spark_mq.util.validation import validate_count
from spark_mq.worker.feed import GroupFeed
from spark_mq.worker.replay_report import ReplayReport, ReportBuilder
from spark_mq.worker.run import WorkOptions, check_handlers, decoding, make_pool
from spark_mq.worker.shadow_group import WORKER, ShadowCommits, ShadowGroup
from spark_mq.worker.state import WorkState
from spark_mq.worker.tasks import LeaseTasks, MessageTasks

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
_ENDLESS: Final = "36500d"  # a replay has no lease that ends

Piece = tuple[FileSlice, SettledRange]


def shadow_replay(
    group: GroupLedger,
    handler: Callable[[Any], Any],
    given: WorkOptions,
    *,
    since: datetime | Duration | None,
    until: datetime | Duration | None,
    where: Where | None,
    limit: int | None,
) -> ReplayReport:
    """Validate the options, run the handler, and report. See :meth:`spark_mq.Queue.replay`."""
    if HandlerPolicy.validated(given.on_error).on_error == "raise":
        raise InvalidOption(
            "on_error='raise' would end the replay at the first failure: use nack, reject or ack",
            option="on_error",
            value=given.on_error,
        )
    options = replace(given, worker_id=WORKER, max_lease_duration=_ENDLESS, until="empty")
    served = [(group, handler)]
    batches = check_handlers(served, options)
    rules = options.task_options(batches)
    state = _ReplayState(options.stop)
    start, end = _window(since, until, group.now())
    limit = None if limit is None else validate_count("limit", limit, most=2**63 - 1)
    condition = condition_of(where, SETTLED_SCHEMA, _EXAMPLE, given.stop)
    ((_, called),) = decoding(served, options, batches)
    pool = make_pool([called], options, state)
    group.settings()  # which say whether the order of keys counts
    settled = find_settled(group, start, end).without_others(group.name)
    rows = _SettledRows(group, settled, condition)
    if condition is None:
        messages = sum(settled.index.count(r.first, r.last) for r in settled.ranges)
        progress().expect(messages if limit is None else min(limit, messages))
    tasks = LeaseTasks(called, rules) if batches else MessageTasks(called, rules)
    report = ReportBuilder(group.name)
    shadow = ShadowGroup(group, rows.read(limit), report, state.fail)
    feed = GroupFeed(shadow, tasks, rules, pool, state, commits=ShadowCommits)
    pool.start()
    try:
        feed.run()
    finally:
        pool.stop()
    if state.error is not None:
        raise state.error
    shadow.finish()
    stopped = given.stop is not None and given.stop.is_set()
    return report.build(
        trimmed=settled.trimmed,
        unreadable=rows.unreadable,
        without_history=settled.unknown_count,
        stopped_because=shadow.hang or ("the event stop was set" if stopped else ""),
    )


def _window(
    since: datetime | Duration | None, until: datetime | Duration | None, now: int
) -> tuple[int | None, int | None]:
    start = None if since is None else check_past("since", since, now)
    end = None if until is None else check_past("until", until, now)
    if start is not None and end is not None and start >= end:
        raise InvalidOption(
            f"since={since!r} is not before until={until!r}, so nothing was settled in between. "
            "Use an earlier since",
            option="since",
            value=since,
        )
    return start, end


class _ReplayState(WorkState):
    """The state of a replay, which waits for no handler after an error."""

    def fail(self, error: BaseException) -> None:
        self.hurried = True
        self.over.set()
        super().fail(error)


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
        self.unreadable = 0  # those met while it looks for the first one
        for pieces in cut_slices(self._reader.files, self._pieces(first), max_rows=ROWS):
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
        newest = (
            (part, r)
            for r in reversed(self._settled.ranges)
            for piece in reversed(list(self._settled.index.slices(r.first, r.last)))
            for part in reversed(list(cut_rows(piece, ROWS)))
        )
        for part, r in newest:
            selected = self._sequences(part, r)
            if self._stopped:
                break
            if len(selected) >= limit:
                return selected[len(selected) - limit]
            limit -= len(selected)
        return 0

    def _sequences(self, part: FileSlice, r: SettledRange) -> Sequence[int]:
        if self._condition is None:
            return range(part.first, part.first + part.rows)
        selected: list[int] = self._selected([(part, r)])["sequence"].to_pylist()
        return selected

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
                return pa.concat_tables([self._table([piece]) for piece in pieces])
            self.unreadable += pieces[0][0].rows
            return SETTLED_SCHEMA.empty_table()
