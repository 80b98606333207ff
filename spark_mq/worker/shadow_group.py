"""Lease settled messages to a worker, and record its verdicts instead of settling anything."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.commands import Command
from spark_mq.ledger.intervals import Interval, from_sequences, intersect, subtract
from spark_mq.ledger.ranges import LEASED, Ledger, LedgerHeader, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.settle import Extend, Extended, Settle, SettleOutcome, SettlePart
from spark_mq.message import MessageSelector, ReceivedMessage, to_received
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.settle import SettleResult
from spark_mq.operations.sinks import check_schema_mode
from spark_mq.parquet.schema import DELIVERY_SCHEMA
from spark_mq.util.clock import SECOND, optional_datetime
from spark_mq.util.progress import progress
from spark_mq.worker.decisions import Verdict
from spark_mq.worker.leases import FeedCommits
from spark_mq.worker.pools import Pool
from spark_mq.worker.replay_report import ReportBuilder
from spark_mq.worker.tasks import Done, Task, WorkerLease

WORKER: Final = "shadow-replay"
_HELD: Final = 3600 * SECOND  # how long a lease seems to last
_PAUSE: Final = SECOND // 100  # between two checks whether the last handlers have ended
PATIENCE_SECONDS: Final = 5.0  # with handlers that all hang


class ShadowGroup(GroupLedger):
    """A group whose leases have messages of `tables`, and whose settles change nothing.

    The tables have at least the columns of `DELIVERY_SCHEMA`, except for the lease's own. `report`
    gets the verdicts in the order of the leases, and `fail` an error of the tables.
    """

    def __init__(
        self,
        group: GroupLedger,
        tables: Iterator[pa.Table],
        report: ReportBuilder,
        fail: Callable[[BaseException], None],
    ) -> None:
        committer: Any = _Answers(self._answer, group.committer.read_settings)
        answers = {group.name: committer}
        super().__init__(group.queue, group.name, group.start, create=False, committers=answers)
        self._tables, self._report, self._fail = tables, report, fail
        self._pages: deque[_Page] = deque()  # that the report lacks
        self._leases: dict[str, ShadowLease] = {}  # of these pages
        self._answering = threading.Lock()
        self.hang = ""  # why no handler can be called any more

    def lease(self, lease_id: str) -> ShadowLease:
        return self._leases[lease_id]

    def has_more(self) -> bool:
        """Return whether messages are left for another lease."""
        with self._answering:
            return self._page_with_more() is not None

    def current(self) -> Ledger:
        """Return a ledger in which the leases hold their messages."""
        with self._answering:
            leases = list(self._leases.values())
        return Ledger(LedgerHeader(), [r for lease in leases for r in lease.grant.ranges])

    def finish(self) -> None:
        """Report the remaining messages."""
        with self._answering:
            while self._pages:
                self._report_page()

    def _answer(self, command: Command[Any]) -> Any:
        with self._answering:
            match command:
                case Acquire(max_messages=most):
                    return self._grant(most)
                case Settle(parts):
                    return [self._settle(part) for part in parts]
                case Extend(targets, timeout):
                    outcomes = [self._select(*target) for target in targets]
                    return Extended(outcomes, self.now() + (timeout or _HELD))
        raise TypeError(f"a shadow replay runs no {type(command).__name__}")

    def _page_with_more(self) -> _Page | None:
        """Return a page whose messages are not all leased. Read the next one if there is none."""
        if self._pages and self._pages[-1].leased < self._pages[-1].rows.num_rows:
            return self._pages[-1]
        if (rows := next(self._tables, None)) is None:
            return None
        self._pages.append(_Page(rows, _messages_of(rows)))
        return self._pages[-1]

    def _grant(self, most: int) -> Grant:
        while self._pages and self._pages[0].is_over():
            self._report_page()
        try:
            page = self._page_with_more()
        except BaseException as error:
            self._fail(error)
            return Grant()
        now = self.now()
        if page is None:
            return Grant(wait_until=now + _PAUSE)
        lease_id, until = f"shadow-{uuid.uuid4().hex}", now + _HELD
        rows, messages = page.lease(most)
        ranges = tuple(
            Range(first, last, LEASED, last - first + 1, lease_id, WORKER, now, until)
            for first, last in from_sequences(message.sequence for message in messages)
        )
        grant = Grant(ranges, lease_id=lease_id, expires_at=until)
        self._leases[lease_id] = ShadowLease(self, grant, page, rows, messages)
        page.lease_ids.append(lease_id)
        return grant

    def _report_page(self) -> None:
        page = self._pages.popleft()
        for lease_id in page.lease_ids:
            del self._leases[lease_id]
        self._report.add(page.rows, page.verdicts, page.seconds)

    def _settle(self, part: SettlePart) -> SettleOutcome:
        outcome = self._select(part.lease_id, part.intervals, unsettled=True)
        if (lease := self._leases.get(part.lease_id)) is not None:
            verdict = part.verb, part.error
            lease.page.verdicts.update(dict.fromkeys(_sequences(outcome.ranges), verdict))
        return outcome

    def _select(
        self, lease_id: str, named: Sequence[Interval] | None, *, unsettled: bool = False
    ) -> SettleOutcome:
        """Return the messages of a lease, or those that are named, perhaps without settled ones."""
        if (lease := self._leases.get(lease_id)) is None:
            return SettleOutcome()
        held = lease.held.granted
        selectable = lease.held.unsettled() if unsettled else held
        named = selectable if named is None else named
        selected = intersect(named, selectable)
        return SettleOutcome(
            _count(selected),
            _count(intersect(named, held)) - _count(selected),
            [(first, last, "which this lease never held") for first, last in subtract(named, held)],
            selected,
        )


def _count(intervals: Iterable[Interval]) -> int:
    return sum(last - first + 1 for first, last in intervals)


def _sequences(intervals: Iterable[Interval]) -> Iterator[int]:
    return chain.from_iterable(range(first, last + 1) for first, last in intervals)


@dataclass(slots=True)
class _Page:
    """Messages that were read together, and what became of them by sequence."""

    rows: pa.Table
    messages: list[ReceivedMessage]
    leased: int = 0
    lease_ids: list[str] = field(default_factory=list)
    verdicts: dict[int, tuple[str, str | None]] = field(default_factory=dict)  # verb and error
    seconds: dict[int, float] = field(default_factory=dict)  # of the calls that have ended

    def lease(self, most: int) -> tuple[pa.Table, list[ReceivedMessage]]:
        first, self.leased = self.leased, min(self.leased + most, self.rows.num_rows)
        return self.rows.slice(first, most), self.messages[first : self.leased]

    def is_over(self) -> bool:
        return len(self.seconds) == len(self.verdicts) == self.rows.num_rows


class _Answers:
    """Stands in for the committer of a group."""

    def __init__(
        self, answer: Callable[[Command[Any]], Any], settings: tuple[Any, GroupSettings]
    ) -> None:
        self._answer, self.read_settings = answer, settings

    def run(self, commands: Sequence[Command[Any]], checks: object = None) -> list[Any]:
        return [self._answer(command) for command in commands]


class ShadowLease(WorkerLease):
    """The messages of one call of a handler, with what became of them."""

    def __init__(
        self, group: ShadowGroup, grant: Grant, page: _Page, rows: pa.Table,
        messages: list[ReceivedMessage],
    ) -> None:  # fmt: skip
        super().__init__(group, WORKER, grant)
        self.grant, self.page, self.messages = grant, page, messages
        self._rows = rows

    def table(self) -> pa.Table:
        """Return the messages as :meth:`Lease.table`."""
        own = {"lease_id": self.lease_id, "lease_expires_at": self.expires_at}
        kept = pa.array([message.sequence for message in self.messages], pa.int64())
        rows = self._rows.filter(pc.is_in(self._rows["sequence"], value_set=kept))
        columns = [
            pa.repeat(pa.scalar(own[field.name], field.type), rows.num_rows)
            if field.name in own
            else rows[field.name].cast(field.type)
            for field in DELIVERY_SCHEMA
        ]
        return pa.table(columns, schema=DELIVERY_SCHEMA)

    def append(self, rows: Any, *, schema_mode: Literal["merge"] | None = None) -> bool:
        """Write nothing. Return True, as if the rows were new."""
        check_schema_mode(schema_mode)
        return True

    def _settle(
        self, verb: str, sequences: MessageSelector | None, *more: Any, **named: Any
    ) -> SettleResult:
        if isinstance(sequences, range):  # it names what the lease has, and `where` leaves gaps
            sequences = list(_sequences(intersect(from_sequences(sequences), self.held.granted)))
        return super()._settle(verb, sequences, *more, **named)

    def reported(self) -> AbstractContextManager[Callable[..., Any]]:
        """Return a caller that reports nothing, because telemetry counts live work."""
        return nullcontext(lambda handler, lease: handler(lease))

    def suspected_outage(self, error: Exception | None) -> None:
        """Suspect nothing: whatever a handler fails with is the outcome of its message."""


class ShadowCommits(FeedCommits):
    """Notes the calls of a shadow replay. It counts and logs nothing, as live workers do."""

    def __init__(self, group: ShadowGroup, *given: Any) -> None:
        super().__init__(group, *given)
        self._group = group
        self._progress = progress()  # of the thread that starts the replay
        self._timer: threading.Timer | None = None

    def lease_of(self, grant: Grant) -> ShadowLease:
        return self._group.lease(grant.lease_id)

    def has_ended(self, until: str) -> bool:
        return not self._group.has_more()

    def is_ready(self) -> bool:
        return self._group.has_more()

    def note_ends(self, done: Sequence[Done]) -> None:
        for task, _ in done:
            lease: Any = task.lease
            if task.started:  # a task that was given back at the end was not called
                own = None if task.message is None else [task.message.sequence]
                sequences = own or list(_sequences(lease.held.granted))
                lease.page.seconds.update(dict.fromkeys(sequences, task.seconds))
                self._progress.finish(len(sequences))

    def note_failure(self, task: Task, verdict: Verdict, failure: Exception) -> None:
        """Leave the failure to the report."""

    def note_hang(self, pool: Pool, limit: str) -> None:
        """End the replay soon, unless it was a coroutine, which needs a moment to be cancelled."""
        self.flush_log()
        self._timer = threading.Timer(PATIENCE_SECONDS, self._end_if_hung, [pool, limit])
        self._timer.start()

    def _end_if_hung(self, pool: Pool, limit: str) -> None:
        if not pool.concurrency:
            text = "all handlers have exceeded their time limit of {} and still run"
            self._group.hang = text.format(limit)
            self._state.finish()

    def flush_log(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _note(self, *_: object) -> None:
        """Count and log nothing."""


def _messages_of(table: pa.Table) -> list[ReceivedMessage]:
    # A message that was skipped was never delivered. This is its first delivery.
    at = table.schema.get_field_index("delivery_count")
    counts = pc.max_element_wise(table["delivery_count"], pa.scalar(1, pa.int32()))
    details = [
        table["failure_count"].to_pylist(),
        _instants(table["first_leased_at"]),
        table["priority"].to_pylist(),
        _instants(table["deliver_at"]),
        _instants(table["expires_at"]),
    ]
    return to_received(table.set_column(at, table.schema.field(at), counts), details)


def _instants(column: pa.ChunkedArray) -> list[datetime | None]:
    """Return a column of instants. Most rows share few, and each is converted once."""
    values = column.cast(pa.int64()).to_pylist()
    known = {value: optional_datetime(value) for value in set(values)}
    return [known[value] for value in values]
