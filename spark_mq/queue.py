"""Create and open queues, publish to them, and look after them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias, Unpack

import pyarrow as pa

from spark_mq.delta.memory_files import is_in_memory
from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import InvalidOption
from spark_mq.group import ConsumerGroup
from spark_mq.inspect.overview import QueueStats
from spark_mq.inspect.peek import named_sequences
from spark_mq.inspect.views import QueueViews, find_queues
from spark_mq.ledger.owner_commands import Drop
from spark_mq.ledger.setting_options import CreateOptions, QueueOptions
from spark_mq.ledger.settings import QueueSettings
from spark_mq.maintenance.condition import Where
from spark_mq.maintenance.recover import RecoveryReport, recover
from spark_mq.maintenance.redrive import RedriveResult, redrive
from spark_mq.maintenance.remaining_letters import DiscardResult, discard_letters
from spark_mq.maintenance.retention import PurgeResult, drop_queue, find_held_back, purge
from spark_mq.maintenance.sweep import SweepReport, run_sweep
from spark_mq.maintenance.transform import RepairFunction
from spark_mq.message import Format, Message
from spark_mq.operations.batches import BatchInfo, close_batch, list_batches
from spark_mq.operations.context import QueueContext
from spark_mq.operations.create import (
    configure_queue,
    create_queue_tables,
    is_own_place,
    open_context,
    place_of,
    rehome,
    settings_at,
)
from spark_mq.operations.publish import publish_messages
from spark_mq.operations.schedules import (
    ScheduleInfo,
    pause_schedule,
    remove_schedule,
    resume_schedule,
    set_schedule,
)
from spark_mq.operations.trace import Trace, finished, trace
from spark_mq.publisher import BufferedPublisher
from spark_mq.storage.publishes import PublishReceipt, producer_txn
from spark_mq.util.clock import Clock, Duration
from spark_mq.util.records import ArrowRows, Records
from spark_mq.util.user import acting_by_default
from spark_mq.util.validation import validate_group, validate_name, validate_options
from spark_mq.worker.replay_report import ReplayReport
from spark_mq.worker.run import WorkOptions
from spark_mq.worker.shadow_replay import shadow_replay

Path: TypeAlias = str | os.PathLike[str]
Messages: TypeAlias = bytes | str | Message | Iterable[bytes | str | Message] | pa.Table


class Queue(QueueViews):
    """Publish to a queue on a file system or an object store.

    Create one with :meth:`create`, or open one with :meth:`open`. It can be pickled and shared by
    threads.
    """

    def __init__(self, context: QueueContext) -> None:
        if not isinstance(context, QueueContext):
            raise TypeError("use Queue.open(path) or Queue.create(path)")
        self._context = context
        self._dead_letters: Queue | None = None

    def __repr__(self) -> str:
        return f"Queue({self.path!r})"

    def __reduce__(self) -> Any:
        return Queue, (self._context,)

    # -- create and open

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        exist_ok: bool = False,
        **settings: Unpack[CreateOptions],
    ) -> Queue:
        """Create a queue with its dead-letter queue.

        If a create crashed, the next one completes it, and so does an open. Of several processes
        that create a queue at the same time, one gets it and the others get ``QueueExists``.

        Parameters
        ----------
        path
            A path or a URI. ``~`` is the home, and a ``file:`` URI may be percent-encoded. An
            environment variable such as ``$HOME`` is refused.
        storage_options
            Options of the object store.
        clock
            For tests: returns the time as an aware datetime.
        exist_ok
            Open the queue if it exists and has the given settings.
        **settings
            :class:`~spark_mq.QueueSettings`, and defaults for groups:
            :class:`~spark_mq.GroupSettings`.

        Raises
        ------
        QueueExists
            There is a queue, and ``exist_ok`` is False or it has other settings, which the error
            lists.
        NotAQueue
            Something else is at the path, or it lies within another queue or around one.
        """
        given = tuple(settings)
        root, options = absolute_path(path), validate_options(storage_options)
        wanted = settings_at(root, settings, options)
        created = create_queue_tables(root, wanted, options, exist_ok=exist_ok, given=given)
        context = open_context(root, options, clock)
        context.ledgers.was_changed = created
        if is_own_place(context.settings):
            context.dead_letters()
        return cls(context)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> Queue:
        """Open a queue. The parameters are those of :meth:`create`.

        Raises QueueNotFound if there is none at the path, NotAQueue if something else is there or
        ``leases/`` is missing, and UnsupportedTable if a table has a feature that spark_mq does not
        support.
        """
        return cls(open_context(absolute_path(path), validate_options(storage_options), clock))

    @staticmethod
    def find_all(
        path: Path, *, storage_options: Mapping[str, str] | None = None, max_depth: int = 3
    ) -> list[str]:
        """Return the paths of the queues under a path, in order.

        It leaves out dead-letter queues inside a queue. A folder that it may not read is listed as
        a queue, so that a check names it. Up to `max_depth` folders, from 0 to 100, may be between
        the path and a queue.
        """
        options = validate_options(storage_options)
        return find_queues(absolute_path(path), options, max_depth=max_depth)

    @staticmethod
    def drop_at(path: Path, name: str, *, storage_options: Mapping[str, str] | None = None) -> int:
        """Delete the queue at a path, even if it cannot be opened, or if a drop of it was killed.

        The parameters and results are those of :meth:`create` and :meth:`drop`. Raises
        QueueNotFound if there is no queue at the path, and NotAQueue if something else is there.
        """
        return drop_queue(absolute_path(path), name, validate_options(storage_options))

    @property
    def path(self) -> str:
        """Return the absolute path or URI of the queue."""
        return self._context.path

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self._context.name

    @property
    def settings(self) -> QueueSettings:
        """Return the settings of the queue."""
        return self._context.settings

    @acting_by_default
    def configure(self, **settings: Unpack[QueueOptions]) -> QueueSettings:
        """Change settings of the queue in one commit. Return all settings.

        Leases, sweeps and views of other processes obey at once, and publishes from the next one
        on. Other Delta writers that commit meanwhile may have to try again.

        The settings are the durations of :class:`~spark_mq.QueueSettings`. Others are fixed when
        the queue is created, or belong to a group, so they raise InvalidOption.
        """
        return configure_queue(self._context, settings)

    # -- publish

    def publish(
        self,
        messages: Messages,
        *,
        producer_id: str | None = None,
        producer_sequence: int | None = None,
        on_duplicate: str = "raise",
        deliver_at: datetime | Duration | None = None,
        batch_id: str | None = None,
    ) -> PublishReceipt:
        """Publish messages as one commit: all or nothing.

        Parameters
        ----------
        messages
            bytes, str, :class:`Message`, a list of these, or a ``pyarrow.Table``. An empty list or
            table publishes nothing and uses up no number: ``receipt.published`` is 0.
        producer_id, producer_sequence
            Make the publish idempotent, across restarts and under races. A producer's numbers must
            increase with each call, but may have gaps.
        on_duplicate
            If this number has landed before: "raise", or "skip" to return a receipt with
            ``duplicate=True``.
        deliver_at
            When messages without their own deliver_at may be leased first. Default: after the
            queue's ``delivery_delay``.
        batch_id
            The message batch, which its first publish begins. See :meth:`close_batch`.

        Returns
        -------
        PublishReceipt
            The version of ``messages/``, the sequences, and which messages were duplicates.

        Raises
        ------
        BatchClosed
            The batch is closed. Nothing was published.
        DuplicatePublish
            The producer has published this number or a higher one.
        InvalidSchema
            A table has columns or values that cannot be published.
        """
        return publish_messages(
            self._context,
            messages,
            producer_id=producer_id,
            producer_sequence=producer_sequence,
            on_duplicate=on_duplicate,
            deliver_at=deliver_at,
            batch_id=batch_id,
        )

    def publisher(
        self,
        *,
        max_messages: int = 1000,
        max_bytes: int | str = "4m",
        linger: Duration = "100ms",
        retry_timeout: Duration = "30s",
        producer_id: str | None = None,
        batch_id: str | None = None,
    ) -> BufferedPublisher:
        """Return a publisher of single messages, many to a commit. Close it after use.

        Parameters
        ----------
        max_messages, max_bytes
            Messages and bytes in a commit, which begins when one of them is reached.
        linger
            How long the first message waits for others.
        retry_timeout
            How long a failed commit is retried, unless the store refuses the first one, which
            waiting cannot mend.
        producer_id
            Number the messages under this name, from 1. A new publisher continues after
            ``publisher.last_number`` when this one has crashed.
        batch_id
            The message batch of all messages, see :meth:`close_batch`.
        """
        return BufferedPublisher(
            self._context,
            max_messages=max_messages,
            max_bytes=max_bytes,
            linger=linger,
            retry_timeout=retry_timeout,
            producer_id=producer_id,
            batch_id=batch_id,
        )

    def last_producer_sequence(self, producer_id: str) -> int | None:
        """Return the last number that a producer has published, or None."""
        return self._context.messages.last_number(producer_txn(producer_id))

    # -- groups

    def group(
        self,
        name: str = "default",
        *,
        start: str | int | datetime = "earliest",
        create: bool = True,
    ) -> ConsumerGroup:
        """Return a consumer group. Its first lease creates it.

        Parameters
        ----------
        start
            Where a new group starts, as for :meth:`ConsumerGroup.seek`.
        create
            Whether the first lease creates the group. With False the group must exist, now and at
            each later call, or GroupNotFound is raised, which finds a misspelt name.
        """
        group = ConsumerGroup(self._context, name, start, create)
        return group if create else group.ensure()

    def groups(self) -> list[str]:
        """Return the names of the groups that exist."""
        return self._context.ledgers.groups()

    @acting_by_default
    def drop_group(self, name: str) -> None:
        """Drop a group with its ledger and its leases. Raises GroupNotFound."""
        self._context.group(validate_name("group", name)).run(Drop())

    # -- message batches

    @acting_by_default
    def close_batch(
        self, batch_id: str, *, to: Queue | Path, groups: Iterable[str] | None = None
    ) -> BatchInfo:
        """Close a message batch. Once it is settled, a sweep publishes one completion message.

        Nothing more can be published to the batch. The completion message is JSON with the number
        of messages and, for each group, how many ended in each outcome. It is published once, even
        by several sweeps at once and after crashes. A second close in the same way changes nothing.

        Parameters
        ----------
        batch_id
            The batch. One without messages is complete at once.
        to
            The queue of the completion message, or its path. The storage options of this queue must
            open it, also in sweeps.
        groups
            The groups that must settle the batch, which must exist. Default: all groups that exist
            now.

        Raises
        ------
        BatchClosed
            The batch was closed with another `to`, or with other `groups`.
        GroupNotFound, QueueNotFound
            A group does not exist, or there is no queue at `to`.
        InvalidOption
            `to` is a dead-letter queue, or there is no group.
        """
        return close_batch(self._context, batch_id, place_of(to), groups)

    def batches(self) -> Records[BatchInfo]:
        """Return the message batches by name, with how much of them is settled.

        A complete batch stays in the list until its messages are trimmed and the queue's
        ``history_retention`` is over.
        """
        return Records(list_batches(self._context))

    # -- schedules

    @acting_by_default
    def schedule(
        self,
        name: str,
        *,
        message: bytes | str | Message,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str | None = None,
        catch_up: str = "latest",
        jitter: Duration = 0,
        starts_at: datetime | str | None = None,
    ) -> ScheduleInfo:
        """Publish a message periodically. A call with the same name changes the schedule.

        Each sweep publishes what is due, each instant once, so a message is as late as the next
        sweep. Its headers ``spark_mq.schedule`` and ``spark_mq.scheduled_at`` have the name and the
        instant, and its id has both.

        A call with the same definition changes nothing. Instants before a change of the rule, the
        zone or ``catch_up`` are not published. A paused schedule stays paused.

        Parameters
        ----------
        message
            bytes, str or :class:`Message`, without an id or a dedup_id. Its times are durations
            from the instant.
        cron, every
            One of them: a cron expression of five fields, such as ``0 2 * * *``, or a period of at
            least a second, which counts from `starts_at`, or else from midnight of 1970-01-01 UTC.
        timezone
            The zone of `cron`, such as "Europe/Berlin". Default: UTC. A time that the clocks skip
            is published right after the gap, and one that comes twice the first time, unless minute
            or hour begin with a star.
        catch_up
            What to publish if several instants are due. "latest": the last one. "all": each of
            them, up to 1,000 in one sweep. "none": those that are at most 15 minutes late.
        jitter
            Delay each message by up to this duration, which is at most the period and a day.
        starts_at
            No instant is earlier: an aware datetime, or text such as "2026-01-31T12:00:00Z".
            Default: now.
        """
        return set_schedule(
            self._context,
            name,
            message,
            cron=cron,
            every=every,
            timezone=timezone,
            catch_up=catch_up,
            jitter=jitter,
            starts_at=starts_at,
        )

    @acting_by_default
    def pause_schedule(self, name: str, reason: str | None = None) -> ScheduleInfo:
        """Publish no message of a schedule until it is resumed. Raises ScheduleNotFound.

        Instants within the pause, or that wait for a sweep, are skipped. `reason` is for people.
        """
        return pause_schedule(self._context, name, reason)

    @acting_by_default
    def resume_schedule(self, name: str) -> ScheduleInfo:
        """Publish messages of a paused schedule again, from now on. Raises ScheduleNotFound."""
        return resume_schedule(self._context, name)

    @acting_by_default
    def remove_schedule(self, name: str) -> None:
        """Remove a schedule. Messages that it has published stay. Raises ScheduleNotFound."""
        remove_schedule(self._context, name)

    # -- look after it

    def drop(self, name: str) -> int:
        """Delete the queue with its own dead-letter queue. Return the number of deleted files.

        Stop its workers, publishers and sweeps first, because every handle fails from then on. A
        dead-letter queue at another path stays. If a drop is killed, repeat it by :meth:`drop_at`.

        `name` is the name of the queue, to confirm the deletion. Raises InvalidOption for another
        name, and if the queue is in memory.
        """
        if is_in_memory(self.path):
            raise InvalidOption(
                f"{self.path} cannot be dropped: a queue in memory ends with its "
                "last handle. To empty it, use purge",
                option="name",
                value=name,
            )
        return drop_queue(self.path, name, self._context.storage_options)

    @property
    def dead_letters(self) -> Queue:
        """Return the dead-letter queue. Create it if it is missing."""
        if self._dead_letters is None:
            self._dead_letters = Queue(self._context.dead_letters())
        return self._dead_letters

    def horizon(self) -> int:
        """Return the trim horizon: messages up to it may be gone. -1 before the first trim."""
        return self._context.horizon()

    @acting_by_default
    def purge(self, name: str) -> PurgeResult:
        """Drop every message published up to now, for all groups. They count as skipped.

        Live leases are fenced. `name` is the name of the queue, to confirm the purge. Raises
        InvalidOption for another name.
        """
        return purge(self._context, name)

    def sweep(self) -> SweepReport:
        """Run the chores that keep the queue small, once. Delivery does not depend on them.

        A sweep publishes what is due of schedules, expires leases, moves dead messages to the
        dead-letter queue, trims messages that every group has settled, and cleans the tables. Run
        it every minute, or every five minutes if workers lease rarely (``jobs/sweep.py`` is a job
        for it), or let workers do it by ``sweep="1m"`` of :meth:`ConsumerGroup.work`. It is safe to
        kill, to repeat, and to run twice at once. A chore that fails does not stop the others, and
        the first error is raised at the end.
        """
        return run_sweep(self._context)

    @acting_by_default
    def redrive(
        self,
        *,
        where: Where | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        to: Queue | Path | None = None,
        stop: threading.Event | None = None,
        transform: str | RepairFunction | None = None,
        format: Format | None = None, to_all_groups: bool = False,
    ) -> RedriveResult:  # fmt: skip
        """Publish dead letters of this queue again, each once, for the group in which it died.

        The group gets them as new messages, which keep their id, key, priority, value and own
        headers, and the other groups skip them. The header ``spark_mq.group`` names the group. A
        letter whose group no longer exists stays a letter, and the result and a warning say so.

        Parameters
        ----------
        where
            SQL over the columns of ``redrive.COLUMNS``, such as ``"reason = 'rejected' AND error
            LIKE '%timeout%'"``, which runs in DuckDB (extra ``sql``). Or a function that gets a
            mapping of these columns. Default: all.
        limit, rate
            The most messages, in all and a second.
        dry_run
            Only return which. They are all in memory, so set a limit for large backlogs.
        to
            Another queue to publish them to, or its path. The storage options of this queue must
            reach it, and all of its groups get them. Default: this queue.
        stop
            Ends the redrive once it is set, after a round of at most 10,000 letters.
        transform
            Repairs each message first: SQL for its new value, such as ``"replace(value, 'EURO',
            'EUR')"``, or a function that gets a :class:`ReceivedMessage` and returns the new value
            as bytes or str, the message changed by ``dataclasses.replace``, or None to leave the
            letter. The header ``spark_mq.repaired`` marks the message. A letter for which the
            transform fails stays a letter, and the result says why.
        format
            What must be able to decode the new values, or else the transform has failed.
        to_all_groups
            Publish them for all groups, so that those which have settled the message get it again.

        Raises
        ------
        InvalidOption
            The condition or the transform cannot be run, or `to` is a dead-letter queue.
        QueueNotFound
            There is no queue at `to`.
        """
        return redrive(
            self._context, where, limit, dry_run, rate, to=to, stop=stop, transform=transform,
            format=format, to_all_groups=to_all_groups,
        )  # fmt: skip

    @acting_by_default
    def discard_dead_letters(
        self, *, where: Where, before: int | None = None, dry_run: bool = False
    ) -> DiscardResult:
        """Settle dead letters of this queue for good. No redrive finds them again.

        Their files stay until a purge or a retention of the dead-letter queue deletes them. After a
        crash the same call discards the rest. Letters that a redrive holds stay.

        Parameters
        ----------
        where
            SQL or a function, as for :meth:`redrive`. ``"true"`` selects all letters.
        before
            Only letters before this sequence of the dead-letter queue, so that what you confirm
            after a dry run discards no newer ones.
        dry_run
            Only count them.
        """
        return discard_letters(self._context, where, before, dry_run)

    def replay(
        self,
        handler: Callable[[Any], Any],
        group: str = "default",
        *,
        since: datetime | Duration | None = None,
        until: datetime | Duration | None = None,
        where: Where | None = None,
        limit: int | None = None,
        mode: str = "message",
        format: Format | None = None,
        threads: int = 1,
        concurrency: int | None = None,
        max_messages: int | None = None,
        timeout: Duration | None = None,
        on_error: str = "nack",
        stop: threading.Event | None = None,
    ) -> ReplayReport:
        """Run a handler over messages that a group has settled, and compare the outcomes.

        This *shadow replay* leases and commits nothing, so live workers do not notice it. But what
        the handler itself does, such as calling a service, does happen.

        The handler gets each message once, in order of sequence, as :meth:`ConsumerGroup.work`
        would call it, and its result is judged by the same rules. Settles by a lease are only
        noted, and ``lease.append`` writes nothing. ``delivery_count`` is that of the last delivery.

        Parameters
        ----------
        handler, mode, format, threads, concurrency, max_messages, timeout
            As for :meth:`ConsumerGroup.work`.
        since, until
            Only messages that the group settled from then on, and before then: an aware datetime,
            or a time before now as seconds, a timedelta, or text such as "7d". Default: all that
            are retained.
        where
            SQL over the columns of ``shadow_replay.SETTLED_SCHEMA``, such as ``"outcome =
            'dead_lettered' AND key = 'k'"``, as for :meth:`redrive`.
        limit
            The most messages: those with the highest sequences.
        on_error
            What an exception means: "nack": failed. "reject": rejected. "ack": acked.
        stop
            Ends the replay after the running calls once it is set.

        Raises
        ------
        GroupNotFound
            There is no such group.
        InvalidHandlerResult
            The handler returned something that it must not return.
        StorageError
            A payload file is out of reach. One that is damaged or missing is counted instead.
        """
        options = WorkOptions(
            mode=mode,
            format=format,
            threads=threads,
            concurrency=concurrency,
            max_messages=max_messages,
            timeout=timeout,
            on_error=on_error,
            stop=stop,
        )
        ledger = self._context.group(validate_group("group", group), create=False)
        return shadow_replay(
            ledger, handler, options, since=since, until=until, where=where, limit=limit
        )

    def rehome(self, *, copy: bool, dead_letter_path: Path | None = None) -> Queue:
        """Accept the place of a queue that was moved or copied. Return it, opened again.

        Until then, it refuses to write dead letters to a path outside it. Publishers in flight may
        have to try again.

        Parameters
        ----------
        copy
            True makes it a queue of its own, with a new id. False keeps its id and its dead-letter
            queue, because it was moved and the old place is gone.
        dead_letter_path
            Where the dead letters of a copy go. Default: ``dead_letters/`` inside it.
        """
        place = None
        if dead_letter_path is not None:
            place = absolute_path(dead_letter_path, "dead_letter_path")
            if not copy:
                raise InvalidOption(
                    "dead_letter_path goes with copy=True: a queue that was moved keeps its own",
                    option="dead_letter_path",
                    value=dead_letter_path,
                )
        return Queue(rehome(self._context, copy=copy, place=place))

    def recover(self, *, dry_run: bool = False) -> RecoveryReport:
        """Make the tables agree again after some of them were restored alone.

        No existing message is lost, but some are delivered again. Stop all workers, publishers and
        sweeps first, and open their queues again afterwards. ``needed`` of the report is False if
        the tables agree already. With `dry_run` it only counts what would change.
        """
        return recover(self._context, dry_run)

    def trace(
        self,
        sequence: int | None = None,
        *,
        message_id: str | None = None,
        key: str | None = None,
    ) -> Trace:
        """Return a message's whole life over all groups and redrives. Print it to read it.

        It goes back as far as ``history/``. Give one of the three: a sequence, or an id or a key,
        whose newest message it is. :meth:`find` returns the others. Raises InvalidOption if there
        is no such message.
        """
        names = {"message_id": message_id, "key": key}
        (named,) = named_sequences(self._context, sequence, names)
        return trace(self._context, named)

    def finished(
        self,
        group: str = "default",
        *,
        first: int | None = None,
        last: int | None = None,
        outcome: str | None = None,
        payload: bool = False,
    ) -> ArrowRows:
        """Return the finished messages of a group, one row each, in order of sequence.

        They go back as far as ``history/``. A message that a seek made unread again counts by its
        last end. The columns are those of ``trace.FINISHED_SCHEMA``. Raises GroupNotFound if there
        never was such a group.

        Parameters
        ----------
        first, last
            Only these sequences.
        outcome
            Only acked, dead_lettered, dropped, expired, skipped or lost.
        payload
            Add message_id, key, value and headers. They are null if the message was trimmed.
        """
        rows = finished(
            self._context, group, first=first, last=last, outcome=outcome, payload=payload
        )
        return ArrowRows(rows)

    def stats(self) -> dict[str, Any]:
        """Return counts of the queue as a dict.

        ``published``: messages since the queue was created. ``latest_sequence``: that of the last
        one, or -1. ``version``: that of ``messages/``. ``horizon``: the trim horizon. ``groups``:
        the stats of each group by name. ``trim_blocked_by``: the groups whose first unsettled
        message keeps messages that are old enough to go.
        """
        index, groups = self._context.messages.index(), self._group_stats()
        starts = {name: group.start_sequence for name, group in groups.items()}
        held = find_held_back(self._context, index, starts)
        return QueueStats(
            published=index.total,
            latest_sequence=index.last_sequence,
            version=index.version,
            horizon=self._context.horizon(),
            groups=groups,
            trim_blocked_by=[] if held is None else list(held.groups),
        )
