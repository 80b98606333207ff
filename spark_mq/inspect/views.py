"""Define the views of a queue and of a group, and find queues. No view leases or commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_mq.delta.object_store import ObjectStore, join
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.inspect.activity import (
    ChangeRecord,
    MessageRecord,
    list_changes,
    notable_messages,
    throughput,
    throughput_known_since,
)
from spark_mq.inspect.durations import DurationReader
from spark_mq.inspect.health import (
    Blocker,
    Health,
    HealthLimits,
    check_health,
    find_blockers,
)
from spark_mq.inspect.lanes import (
    LaneInfo,
    PriorityInfo,
    list_lanes,
    list_priorities,
)
from spark_mq.inspect.leases import (
    LastError,
    LeaseInfo,
    MessagePosition,
    WorkerInfo,
    last_errors,
    list_leases,
    list_workers,
    locate,
)
from spark_mq.inspect.letters import Failures, RemainingLetters
from spark_mq.inspect.overview import (
    NOTEBOOK_ERRORS,
    QueueOverview,
    SweepState,
    describe,
    failed_html,
    group_html,
    overview_html,
    sweep_state,
)
from spark_mq.inspect.peek import (
    PeekedMessage,
    Wanted,
    find_sequences,
    named_sequences,
    peek_group,
    peek_queue,
)
from spark_mq.inspect.plots import QueuePlots
from spark_mq.inspect.sql import query as run_query
from spark_mq.inspect.stats import StatsReader
from spark_mq.ledger.owner_commands import seek_position, unsettled_ranges
from spark_mq.ledger.ranges import LEASED
from spark_mq.ledger.stats import GroupStats
from spark_mq.maintenance.condition import Where
from spark_mq.maintenance.redrive import RedriveResult, redrive
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.operations.nesting import find_folders
from spark_mq.operations.schedules import ScheduleInfo, list_schedules
from spark_mq.operations.trace import Trace
from spark_mq.util.clock import Duration, to_datetime
from spark_mq.util.records import ArrowRows, Record, Records
from spark_mq.util.validation import (
    validate_count,
    validate_name,
    validate_position,
    validate_text,
)


def find_queues(
    root: str, storage_options: Mapping[str, str] | None = None, *, max_depth: int = 3
) -> list[str]:
    """Return the paths of queues under a path. See :meth:`spark_mq.Queue.find_all`."""
    validate_count("max_depth", max_depth, least=0, most=100)
    store = ObjectStore(root, storage_options)
    with wrap_store_errors(root, "listing"):
        names = find_folders(store, max_depth + 1, denied=True)
        paths = [join(root, name) if name else root for name in names]
    return sorted(paths)


class QueueViews:
    """Looks at a queue. They lease nothing and commit nothing."""

    _context: QueueContext
    _reader: StatsReader | None = None
    _durations: DurationReader | None = None

    def _stats_reader(self) -> StatsReader:
        if self._reader is None:
            self._reader = StatsReader(self._context)
        return self._reader

    def _group_stats(self) -> dict[str, GroupStats]:
        """Return the stats of all groups. Raises the error of a damaged one."""
        reader = self._stats_reader()
        with reader.lock:
            stats, damaged = reader.read(), list(reader.damaged)
        for name in damaged:
            self._context.group(name).stats()  # raises the error
        return stats

    def _repr_html_(self) -> str:
        try:
            return overview_html(self.describe())
        except NOTEBOOK_ERRORS as error:
            return failed_html(repr(self), error)

    @property
    def plot(self) -> QueuePlots:
        """Return the plots of the queue. They need the extra ``plot``."""
        return QueuePlots(self._context)

    def describe(self, *, lanes: bool = False, durations: bool = False) -> QueueOverview:
        """Return sizes, groups and sweeps of the queue.

        A second call reads only the ledgers that have changed since the first. A group whose ledger
        is damaged is in ``damaged``, with the reason.

        Parameters
        ----------
        lanes
            Also count by priority and lane, for the 20 busiest groups that use them. That may take
            a tenth of a second for each.
        durations
            Also count how long messages wait for a lease, and leases for their settle, since the
            first call that asked. Each call reads the commits that followed.
        """
        if durations and self._durations is None:
            self._durations = DurationReader(self._context)
        reader = self._durations if durations else None
        return describe(self._context, self._stats_reader(), lanes=lanes, durations=reader)

    def health(
        self,
        *,
        max_unswept: Duration | None = "1h",
        max_age: Duration | None = None,
        max_dead: int | None = None,
    ) -> Health:
        """Return whether the queue is healthy, with its problems.

        A group that is stopped by a pause, its breaker, a blocked message or a full ledger is a
        problem, and so is an unreadable ledger. A limit such as ``max_in_flight`` is not.

        Parameters
        ----------
        max_unswept
            The longest time that work may wait for a sweep. None for any.
        max_age
            The greatest age of an unsettled message. Default: any age.
        max_dead
            The most dead messages, including those in the dead-letter queue. Default: any number.
        """
        limits = HealthLimits(max_unswept, max_age, max_dead)
        return check_health(self.describe(), to_datetime(self._context.now()), limits)

    def peek(
        self,
        n: int = 10,
        *,
        key: str | None = None,
        message_id: str | None = None,
        after: int | None = None,
    ) -> Records[PeekedMessage]:
        """Return at most `n` messages of the queue, without a lease.

        With `key` or `message_id` it returns only messages that have it, and reads these columns of
        all messages. With `after` it returns only those after this sequence.
        """
        return Records(peek_queue(self._context, n, Wanted(key, message_id), after))

    def find(
        self, *, key: str | None = None, message_id: str | None = None, n: int = 10
    ) -> list[int]:
        """Return the sequences of the newest messages with a key or id, the newest first.

        It returns at most `n`, and reads these columns of all messages.
        """
        validate_count("n", n)
        if key is None and message_id is None:
            return []
        return find_sequences(self._context, n, Wanted(key, message_id))

    def locate(
        self, sequence: int | None = None, *, message_id: str | None = None, n: int = 10
    ) -> Records[MessagePosition]:
        """Return a message's state in each group, with its lease or outcome.

        The message is that with the sequence, or the newest `n` with the id, for which it reads the
        ids of retained messages. The result is empty if the queue has no groups. Raises
        InvalidOption if no retained message has the id, or unless exactly one of the two is given.
        """
        validate_count("n", n)
        sequences = named_sequences(self._context, sequence, {"message_id": message_id}, n)
        return Records(
            [position for number in sequences for position in locate(self._context, number)]
        )

    def _locate_traced(self, trace: Trace) -> list[MessagePosition]:
        """Return the state of a traced message in each group. It reads no history again."""
        return locate(self._context, trace.sequence, trace.outcomes)

    def sql(self, query: str) -> ArrowRows:
        """Return the result of a SELECT over the state of the queue, without a commit.

        DuckDB runs it (extra ``sql``). The views are ``messages`` and ``ranges``, which have their
        state in each group, ``letters`` and ``history``: see ``docs/reference/tables.md``.

        Examples
        --------
        >>> from spark_mq.testing import memory_queue
        >>> queue = memory_queue()
        >>> receipt, group = queue.publish(["a", "b"]), queue.group("g").ensure()
        >>> queue.sql("SELECT state, count(*) AS n FROM messages GROUP BY state").to_pylist()
        [{'state': 'ready', 'n': 2}]
        """
        return ArrowRows(run_query(self._context, validate_text("sql", query)))

    def schedules(self) -> Records[ScheduleInfo]:
        """Return the schedules by name, with their next and last instants."""
        return Records(list_schedules(self._context))

    def list_dead_letters(
        self, *, where: Where | None = None, limit: int | None = None
    ) -> ArrowRows:
        """Return the dead letters that are neither redriven nor discarded, without a commit.

        `where` is as for :meth:`redrive`. `limit` is the most letters to return.
        """
        return ArrowRows(redrive(self._context, where, limit, True, None, to_all_groups=True).table)

    def _count_to_redrive(
        self, where: Where | None, limit: int | None, **place: Any
    ) -> RedriveResult:
        """Count the letters of a redrive, and by group, without their payloads."""
        return redrive(self._context, where, limit, True, None, count_only=True, **place)

    def newest_dead_letters(self, n: int = 50, *, before: int | None = None) -> ArrowRows:
        """Return dead letters that are neither redriven nor discarded, the newest first.

        It reads 10,000 letters at most, because a dead-letter queue may have those of several
        queues. `n` is the most letters to return, and `before` a sequence of that queue.
        """
        return ArrowRows(self._remaining_letters().newest(validate_count("n", n), before))

    def failures(self, n: int | None = 100_000) -> Failures:
        """Group dead letters by group, reason and shape of the error.

        It leaves out letters that are redriven or discarded. Errors have one shape if they differ
        only in numbers, dates, ids, paths and quoted parts. `n` is the most letters to look at, the
        newest, or None for all.
        """
        most = None if n is None else validate_count("n", n)
        return self._remaining_letters().failures(most)

    def _remaining_letters(self) -> RemainingLetters:
        return RemainingLetters(self._context)

    def changes(
        self, n: int = 100, *, since: Duration = "1d", group: str | None = None
    ) -> Records[ChangeRecord]:
        """Return the changes that people made to the queue, the newest first.

        `n` is the most changes to return, and `since` how far to look back. With a group it returns
        only its changes, otherwise those of all groups and of the queue itself.
        """
        if group is not None:
            validate_name("group", group)
        return Records(list_changes(self._context, validate_count("n", n), since, group))

    def throughput(
        self, *, since: Duration = "1h", every: Duration = "1m", group: str | None = None
    ) -> ArrowRows:
        """Return counts and rates of published, leased, failed and settled messages over time.

        The columns are those of ``inspect.THROUGHPUT_SCHEMA``, and an interval without events has
        no row. `since` is how far to look back: ``history/`` goes back 30 days by default. `every`
        is the length of an interval.
        """
        if group is not None:
            validate_name("group", group)
        return ArrowRows(throughput(self._context, since=since, every=every, group=group))

    def _throughput_known_since(self) -> tuple[datetime, datetime]:
        """Return since when publishes are known, and what the groups did."""
        return throughput_known_since(self._context)

    def blockers(self) -> Records[Blocker]:
        """Return the reasons why groups or the trim are blocked.

        A cap or a blocked message stops a group. The first unsettled message of the slowest group
        holds back the trim of old messages.
        """
        return Records(find_blockers(self._context, self.describe().groups))

    def sweep_state(self) -> SweepState:
        """Return the last sweep's time, and the work for the next one."""
        return sweep_state(self._context)


@dataclass(frozen=True, slots=True)
class SeekPreview(Record):
    """The effects that a seek would have on a group.

    Attributes
    ----------
    group
        The name of the group.
    start_sequence
        All messages up to this sequence are settled now.
    position
        The first sequence that the seek makes unread. It lies after the trim horizon, and at most
        one after the latest sequence.
    skipped
        Unsettled messages before the position, which no worker gets.
    delivered_again
        Messages from the position on that were settled or leased before.
    fenced_leases
        Live leases, whose workers can settle nothing after the seek.
    """

    group: str
    start_sequence: int
    position: int
    skipped: int
    delivered_again: int
    fenced_leases: int


class GroupViews:
    """Views of a group, which lease nothing and commit nothing.

    They raise GroupNotFound if there is no such group.
    """

    name: str
    _context: QueueContext
    _ledger: GroupLedger

    def _existing(self) -> GroupLedger:
        self._ledger.require_group()
        return self._ledger

    def _repr_html_(self) -> str:
        try:
            return group_html(self._ledger)
        except NOTEBOOK_ERRORS as error:
            return failed_html(repr(self), error)

    def leases(self) -> Records[LeaseInfo]:
        """Return the leases of the group, the oldest first."""
        return Records(list_leases(self._existing()))

    def priorities(self) -> Records[PriorityInfo]:
        """Return the priorities that have unsettled messages, the highest first."""
        return Records(list_priorities(self._existing()))

    def lanes(self, top: int | None = 10, *, by: str = "messages") -> Records[LaneInfo]:
        """Return the lanes with the most unsettled messages, each with why it is held back.

        The list is empty if the queue has no lanes. In a very large backlog, it counts the first
        million runs of messages in one lane. With ``by="age"``, the lanes with the oldest first
        messages come first. ``top=None`` returns all lanes.
        """
        return Records(list_lanes(self._existing(), top, by))

    def workers(self) -> Records[WorkerInfo]:
        """Return the workers that hold leases or run, the busiest first.

        An idle worker is listed if it writes a ``heartbeat``, see
        :meth:`spark_mq.ConsumerGroup.work`. In an object store this costs a listing more than
        :meth:`leases`, and a request for each heartbeat.
        """
        return Records(list_workers(self._existing()))

    def last_errors(self, n: int = 10) -> Records[LastError]:
        """Return the errors of unsettled messages, the latest first, at most `n`."""
        return Records(last_errors(self._existing(), validate_count("n", n)))

    def peek(
        self,
        n: int = 10,
        *,
        state: str | None = None,
        key: str | None = None,
        message_id: str | None = None,
        after: int | None = None,
    ) -> Records[PeekedMessage]:
        """Return messages with their state in the group, without a lease.

        `state` is "ready" (which contains "unread"), "unread", "delayed", "leased", "dead",
        "blocked", "transferring" or "settled". The other parameters are those of
        :meth:`spark_mq.Queue.peek`. In a group with a ``filter``, messages that no lease has
        examined are ready or unread, even if they do not match.
        """
        group, wanted = self._existing(), Wanted(key, message_id)
        return Records(peek_group(self._context, group, n, wanted, state=state, after=after))

    def preview_seek(self, to: str | int | datetime) -> SeekPreview:
        """Return the effects that :meth:`seek` would have, without running it."""
        group, target = self._existing(), validate_position("to", to)
        ledger, index = group.current(), group.messages.index()
        position = seek_position(index, target, group.queue.horizon())
        position = index.first_at_or_after(position) or position
        ahead = unsettled_ranges(ledger, index, position - 1)
        leased = ledger.ranges_at(ledger.find((LEASED,)))
        return SeekPreview(
            group.name,
            ledger.head.start_sequence,
            position,
            sum(r.message_count for r in ahead),
            max(0, index.count(position, ledger.end_sequence)),
            len({r.lease_id for r in leased}),
        )

    def slowest(self, n: int = 10, *, since: Duration = "1d") -> Records[MessageRecord]:
        """Return the `n` records with the longest time from first delivery to end.

        With `since`, only messages that ended within this time, or have not ended. A dead letter
        ends when a sweep routes it.
        """
        return Records(notable_messages(self._context, self.name, n, by="slowest", since=since))

    def most_failing(self, n: int = 10, *, since: Duration = "1d") -> Records[MessageRecord]:
        """Return the messages that failed most often. See :meth:`slowest` for the parameters."""
        return Records(notable_messages(self._context, self.name, n, by="failing", since=since))
