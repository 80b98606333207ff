"""Lease messages of a queue for a group, and settle them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, SupportsIndex, Unpack

from spark_mq.inspect.views import GroupViews
from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Acquire
from spark_mq.ledger.intervals import from_sequences
from spark_mq.ledger.interventions import DEAD_LETTER, DISCARD, RETRY_NOW
from spark_mq.ledger.owner_commands import Expire, Pause, Resume, Seek, Unblock
from spark_mq.ledger.setting_options import GroupOptions
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE
from spark_mq.ledger.stats import GroupStats
from spark_mq.message import Format, MessageSelector, check_time
from spark_mq.operations.acquire import (
    default_poll,
    named_messages,
    raise_if_blocked,
    wait_for_lease,
)
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.operations.settle import SettleResult, change_messages, extend, settle
from spark_mq.operations.sinks import check_no_sink, configure_command
from spark_mq.util.clock import SECOND, Duration
from spark_mq.util.loading import INTEGRATIONS, load_library
from spark_mq.util.user import acting_by_default, identify_worker, worker_name
from spark_mq.util.validation import (
    invalid,
    validate_choice,
    validate_count,
    validate_duration,
    validate_error,
    validate_group,
    validate_position,
    validate_size,
)
from spark_mq.worker.run import WorkOptions, run_worker
from spark_mq.worker.state import WorkSummary

LeaseSelector = str | Lease | Iterable[str | Lease] | Mapping[str, MessageSelector | None]
"""Leases by id or as objects, or a mapping of these to some sequences, or to None for all."""


class ConsumerGroup(GroupViews):
    """Lease and settle as one group of a queue.

    :meth:`spark_mq.Queue.group` returns it, and its first lease creates it. It can be pickled and
    shared by threads.
    """

    def __init__(
        self,
        context: QueueContext,
        name: str = "default",
        start: str | int | datetime = "earliest",
        create: bool = True,
    ) -> None:
        self.name = validate_group("group", name)
        self._context = context
        self._start = validate_position("start", start)
        self._ledger: GroupLedger = context.group(self.name, self._start, create=create)

    def __repr__(self) -> str:
        return f"ConsumerGroup({self._context.path!r}, {self.name!r})"

    def __reduce__(self) -> Any:
        return type(self), (self._context, self.name, self._start, self._ledger.create)

    # -- the group itself

    @acting_by_default
    def ensure(self) -> ConsumerGroup:
        """Create the group at its start position if it does not exist.

        Raises GroupNotFound instead if the handle was made with ``create=False``.
        """
        self._ledger.create_if_missing()
        return self

    def exists(self) -> bool:
        """Return whether the group has been created."""
        return self._ledger.exists()

    @acting_by_default
    def seek(self, to: str | int | datetime) -> None:
        """Move the group: earlier messages are skipped, and all from there on are unread.

        Live leases are fenced. `to` is "earliest", which is after the trim horizon, "latest", a
        sequence, or an instant: an aware datetime, or text with a zone such as
        "2026-01-31T12:00:00Z".
        """
        target = validate_position("to", to)
        self._ledger.create_if_missing()
        self._ledger.run(Seek(target))

    @acting_by_default
    def configure(self, **settings: Unpack[GroupOptions]) -> GroupSettings:
        """Change settings of the group in one commit. Return all settings.

        Give those of :class:`~spark_mq.GroupSettings` that change. Every worker obeys them from its
        next operation on, but live leases keep their deadline.
        """
        command = configure_command(self._ledger, settings)  # before the group is created
        self._ledger.create_if_missing()
        return self._ledger.run(command)

    @property
    def settings(self) -> GroupSettings:
        """Return the settings. A missing group has the queue's defaults."""
        return self._ledger.settings()

    @acting_by_default
    def unblock(self, to: str, sequences: MessageSelector | None = None) -> int:
        """Decide about messages that block the group, or all of them. Return their number.

        A group blocks with ``on_max_deliveries="block"``. `to` is "retry" (delivered again, with
        counts from zero), "dead_letter" or "drop".
        """
        how = validate_choice("to", to, Unblock.WAYS)
        intervals = None if sequences is None else from_sequences(sequences)
        self._ledger.require_group()
        return self._ledger.run(Unblock(how, intervals))

    def discard(
        self,
        sequences: SupportsIndex | MessageSelector | None = None,
        *,
        message_id: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        force: bool = False,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        """Settle messages without a lease, as "dropped". No worker of the group gets them again.

        Returns the number of messages, without those that were settled already.

        Parameters
        ----------
        sequences, message_id, key
            Give one of them: one or several. A key names all messages with it that the group has
            not settled.
        force
            Take messages from their leases, too, which then cannot settle them.
        reason
            Why, for people.
        by
            Who does it, for the history. Default: the user and the host of this process.

        Raises
        ------
        MessagesHeld
            A lease holds some of them, or a sweep copies them. Nothing was changed.
        InvalidOption
            Not exactly one name is given, or no message has it.
        """
        named = {"sequences": sequences, "message_id": message_id, "key": key}
        return change_messages(self._ledger, DISCARD, named, force=force, reason=reason, by=by)

    def retry_now(
        self,
        sequences: SupportsIndex | MessageSelector | None = None,
        *,
        message_id: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        force: bool = False,
        by: str | None = None,
    ) -> int:
        """Make delayed, dead or blocked messages due now, without a lease.

        Delayed ones keep their counts. Dead and blocked ones begin again at zero, and so do those
        that `force` takes from the lease of their last attempt. Returns the number of messages,
        without those that were due or settled already. The parameters and errors are those of
        :meth:`discard`, and InvalidOption if a message is past its ``expires_at``.
        """
        named = {"sequences": sequences, "message_id": message_id, "key": key}
        return change_messages(self._ledger, RETRY_NOW, named, force=force, by=by)

    def dead_letter(
        self,
        sequences: SupportsIndex | MessageSelector | None = None,
        *,
        message_id: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        force: bool = False,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        """Make messages dead without a lease. The sweep routes them to the dead-letter queue.

        The parameters, results and errors are those of :meth:`discard`. `reason` becomes the dead
        letter's error.
        """
        named = {"sequences": sequences, "message_id": message_id, "key": key}
        return change_messages(self._ledger, DEAD_LETTER, named, force=force, reason=reason, by=by)

    @acting_by_default
    def pause(self, reason: str | None = None, *, until: datetime | Duration | None = None) -> None:
        """Stop new leases of the group, in every process, until :meth:`resume` or a time.

        Workers wait meanwhile, but they can settle and extend live leases.

        Parameters
        ----------
        reason
            Why, for people. Stats, progress and logs show it.
        until
            When leases are allowed again: an aware datetime, or a duration from now such as "30m".
            Default: at a resume.
        """
        why = validate_error(reason, "reason")
        now = self._ledger.now()
        end = None if until is None else check_time("until", until, now, later=True)
        self._ledger.create_if_missing()
        self._ledger.run(Pause(why, end))

    @acting_by_default
    def resume(self) -> None:
        """End a pause, and close the breaker. Raises GroupNotFound."""
        self._ledger.require_group()
        self._ledger.run(Resume())

    @property
    def blocked_because(self) -> str:
        """Return why the group leases nothing to this process now, or an empty string."""
        return self.stats().blocked_because

    def stats(self) -> GroupStats:
        """Count the messages of the group by state, without a commit.

        Raises GroupNotFound before the first lease, or :meth:`ensure`, has created the group.
        """
        return self._ledger.stats(required=True)

    def expire(self) -> int:
        """Expire leases and messages now instead of with the next operation. Raises GroupNotFound.

        Returns the number of messages that the leases held.
        """
        self._ledger.require_group()
        return self._ledger.run(Expire())

    # -- lease

    def lease(
        self,
        worker_id: str | None = None,
        *,
        max_messages: int | None = None,
        max_bytes: int | str | None = None,
        sequences: MessageSelector | None = None,
        wait: Duration = 0,
        poll_interval: Duration | None = None,
        visibility_timeout: Duration | None = None,
        auto_ack: bool = False,
        fail_on_data_loss: bool = True,
    ) -> Lease | None:
        """Lease messages, and hide them from the rest of the group until they settle or expire.

        Parameters
        ----------
        worker_id
            A label for people. Default: host and process.
        max_messages
            The most messages to lease. Default: 1, or as many as `sequences` names.
        max_bytes
            Lease only as many messages as fit, but at least one: bytes, or text such as "64m". A
            message counts as the mean compressed size in its data file.
        sequences
            Lease only these messages: a list, or a ``range`` for all in between, with at most 1,000
            separate runs. It leaves out those that are not due, which :meth:`retry_now` makes due.
        wait
            How long to wait for messages.
        poll_interval
            How soon a waiting call notices other processes. Default: 500 ms on a disk, where it
            notices new messages within a thirtieth of that, and 2 s in an object store, where a
            look costs two requests.
        visibility_timeout
            How long the lease lasts. Default: the group's setting. Its messages are due again after
            the group's ``clock_skew`` more.
        auto_ack
            Ack at once, so that each message is delivered at most once.
        fail_on_data_loss
            Raise if the queue's hard limit dropped unsettled messages. Otherwise they count as
            lost.

        Returns
        -------
        Lease or None
            Never empty. None if nothing is due, other workers use up ``max_in_flight``, the group
            is paused, or its breaker is open. ``blocked_because`` gives the reason.

        Raises
        ------
        GroupBlocked
            A full ledger, or a message that blocks the group, lets nothing be leased.
        StorageError
            The store fails, or no payload file of a due message can be reached. No delivery counts.
            With `wait`, this is raised only after the wait.
        DataLossError
            The queue's hard limit dropped unsettled messages.
        """
        worker = worker_name(worker_id)
        named, most = (None, 1) if sequences is None else named_messages(sequences)
        if max_messages is not None:
            most = validate_count("max_messages", max_messages, text=False)
        wait_seconds = validate_duration("wait", wait, zero=True) / SECOND
        poll = default_poll(self._ledger)
        if poll_interval is not None:
            poll = validate_duration("poll_interval", poll_interval) / SECOND
        timeout = None
        if visibility_timeout is not None:
            timeout = validate_duration("visibility_timeout", visibility_timeout)
        size = None if max_bytes is None else validate_size("max_bytes", max_bytes)
        if named == []:
            return None
        command = Acquire(
            identify_worker(worker), most, timeout, fail_on_data_loss, size, intervals=named
        )
        deadline = time.monotonic() + wait_seconds

        def time_left() -> float:
            return deadline - time.monotonic() if wait_seconds else 0.0

        grant = wait_for_lease(self._ledger, command, time_left, poll)
        if not grant.ranges:
            raise_if_blocked(self.name, grant)
            return None
        lease = Lease(self._ledger, worker, grant)
        if auto_ack:
            lease.ack()
        return lease

    def work(
        self,
        handler: Callable[[Any], Any],
        *,
        mode: str = "message",
        format: Format | None = None,
        more_groups: Iterable[ConsumerGroup] | Mapping[ConsumerGroup, Callable[[Any], Any]] = (),
        worker_id: str | None = None,
        threads: int = 1,
        concurrency: int | None = None,
        max_messages: int | None = None,
        visibility_timeout: Duration | None = None,
        max_lease_duration: Duration = "30m",
        timeout: Duration | None = None,
        on_error: str = "nack",
        ack: str = "on_success",
        shutdown_timeout: Duration = "30s",
        stop: threading.Event | None = None,
        poll_interval: Duration | None = None,
        settle_linger: Duration | None = None,
        until: str | None = None,
        heartbeat: Duration | None = None,
        sweep: Duration | None = None,
        fail_on_data_loss: bool = True,
    ) -> WorkSummary:
        """Call a handler for each message, or each lease, and settle.

        A lease is extended while it is worked on. The loop ends when `stop` is set, on SIGTERM (in
        the main thread), or as `until` says. It then leases nothing more, releases what no handler
        got, and waits for running handlers. It waits out a failing store and a group that blocks.

        Parameters
        ----------
        handler
            Gets a :class:`ReceivedMessage`, and may be ``async``. :class:`Retry`, :class:`Reject`
            and :class:`Snooze`, returned or raised, decide about the message. Any other return acks
            it, and any other exception is a failure.

            With ``mode="batch"``: gets a :class:`Lease`. It may return verdicts on single messages,
            as an Arrow table or a list of dicts with ``sequence``, ``outcome`` ("ack", "nack" or
            "reject"; a row without one is a failure), ``delay`` (seconds, or "30s") and ``error``.
            All others that it did not settle itself are acked.
        mode
            "message" or "batch". With "message", many messages are leased and settled together, but
            no more than the handlers need for about a second, and each has its own verdict. In a
            group with ``order="key"`` the messages of a lane are handled one after the other. If
            the worker dies, the delivery counts for each message that it held, and they are
            isolated, because nobody knows which of them killed it.
        format
            Decodes each payload into ``message.data`` before the handler is called: one of
            ``spark_mq.integrations.formats``, or an object of your own with ``encode`` and
            ``decode``. A payload that is not of the format makes its message a dead letter. Any
            other error of the format counts as one of the handler.
        more_groups
            More groups, also of other queues, for the same handler, or each with its own:
            ``{group: handler}``. Not with ``mode="batch"``.
        worker_id
            A label for people. Default: host and process.
        threads
            How many threads call the handler.
        concurrency
            How many calls of an async handler run at a time. Default: 100.
        max_messages
            The most messages of a group that the worker holds. Default: 1,000. With
            ``mode="batch"``: the most messages in a lease. Default: 1.
        visibility_timeout
            How long a lease lasts without an extension. Default: the group's setting.
        max_lease_duration
            When a lease ends, at the latest, as after a `timeout`.
        timeout
            How long one call of the handler may take. After that its messages fail with
            HandlerTimeout, and what it decides later is refused. A coroutine is cancelled, but a
            thread is lost to the worker until the handler returns.
        on_error
            What an exception or a returned failure does. "nack": retry after the group's backoff.
            "reject": to the dead letters. "ack": drop the messages, so that the error is only
            logged and counts for the breaker. "raise": end the loop, and let the lease expire. If
            the queue's own store fails, the messages are released, uncounted.
        ack
            When a lease is acked. "on_success": when the handler has returned, so at least once.
            "on_receive": before it is called, so at most once, and a worker that dies loses
            messages. "manual" (only with ``mode="batch"``): only the handler settles messages, and
            the others expire. `on_error` still settles the messages of a handler that fails.
        shutdown_timeout
            How long running handlers have at the end. A second Ctrl-C ends the wait, and releases
            what they hold.
        stop
            Ends the loop once it is set. Several workers may share it.
        poll_interval
            How soon the loop notices other processes, as for :meth:`lease`. All groups of a queue
            share it.
        settle_linger
            How long a finished message may wait for others, to be settled together. Default:
            100 ms. Not with ``mode="batch"``.
        until
            "empty": end once nothing can be leased, so also if the group is paused or blocked, but
            wait for a rate limit. "settled": end once no message is left, so wait for delayed ones,
            retries, and leases of others, too. Dead messages count as settled, and blocked ones do
            not. Default: do not end.
        heartbeat
            How often the worker writes a small file that shows it in :meth:`workers` while it is
            idle, too: "30s" to "1h", or "off". Default: 30 seconds, and "off" in an object store,
            where each write costs a request.
        sweep
            Sweep the queues of the groups so often: "1s" to "1h". Of all workers that do so, one at
            a time sweeps, in a thread that no handler waits for. Default: another process sweeps
            (:meth:`Queue.sweep`).
        fail_on_data_loss
            Raise if the queue's hard limit dropped unsettled messages.

        Raises
        ------
        InvalidHandlerResult
            The handler returned something that it must not return.
        DataLossError
            The queue's hard limit dropped unsettled messages.
        KeyboardInterrupt
            Ctrl-C ended the loop, whose summary is the argument. A handler that outlasted the
            timeout leaves its lease to expire. All else is settled or released.
        """
        options = WorkOptions(
            mode=mode,
            worker_id=worker_id,
            threads=threads,
            concurrency=concurrency,
            max_messages=max_messages,
            visibility_timeout=visibility_timeout,
            max_lease_duration=max_lease_duration,
            timeout=timeout,
            on_error=on_error,
            ack=ack,
            shutdown_timeout=shutdown_timeout,
            stop=stop,
            poll_interval=poll_interval,
            settle_linger=settle_linger,
            until=until,
            heartbeat=heartbeat,
            sweep=sweep,
            fail_on_data_loss=fail_on_data_loss,
            format=format,
        )
        return run_worker(_served(self, handler, more_groups), options)

    # -- settle: each call is one commit at most, and those of several threads share one

    def ack(self, leases: LeaseSelector, sequences: MessageSelector | None = None) -> SettleResult:
        """Settle messages as done.

        Parameters
        ----------
        leases
            A lease id, a Lease, several of these, or {lease id: sequences, or None for all}.
        sequences
            Messages of one lease: a message, a list of messages or of sequences, an array of
            sequences, or a ``range`` for all messages in between. Default: all that it holds.

        Returns
        -------
        SettleResult
            How many messages this call settled. A repeat settles none.

        Raises
        ------
        LeaseLost
            Some messages are no longer held, or there was no such lease within the last day. The
            rest is settled.
        """
        return self._settle(ACK, leases, sequences)

    def nack(
        self,
        leases: LeaseSelector,
        sequences: MessageSelector | None = None,
        *,
        delay: Duration | None = None,
        error: str | None = None,
    ) -> SettleResult:
        """Give messages back as failed. They are due again later, or dead past a limit.

        The other parameters, results and errors are those of :meth:`ack`. Without named messages
        nobody knows which of them failed. `delay` is when they are due again, by default as the
        group's retry policy says, and `error` is the reason, for people.
        """
        return self._settle(NACK, leases, sequences, delay=delay, error=error)

    def reject(
        self,
        leases: LeaseSelector,
        sequences: MessageSelector | None = None,
        *,
        error: str | None = None,
    ) -> SettleResult:
        """Make messages dead that can never be processed. See :meth:`nack` for the parameters."""
        return self._settle(REJECT, leases, sequences, error=error)

    def release(
        self,
        leases: LeaseSelector,
        sequences: MessageSelector | None = None,
        *,
        delay: Duration | None = None,
    ) -> SettleResult:
        """Give messages back, uncounted, as if they had never been leased.

        The parameters, results and errors are those of :meth:`nack`. The default delay is none.
        """
        return self._settle(RELEASE, leases, sequences, delay=delay)

    def _settle(
        self,
        verb: str,
        leases: LeaseSelector,
        sequences: MessageSelector | None,
        *,
        delay: Duration | None = None,
        error: str | None = None,
    ) -> SettleResult:
        named = sequences is not None
        if isinstance(leases, Mapping):
            named = named or any(selected is not None for selected in leases.values())
        if named and verb != ACK:
            check_no_sink(self._ledger)
        return settle(
            self._ledger,
            leases,
            verb,
            sequences=sequences,
            delay=None if delay is None else validate_duration("delay", delay, zero=True),
            error=validate_error(error),
        )

    def extend(
        self,
        leases: LeaseSelector,
        timeout: Duration | None = None,
        sequences: MessageSelector | None = None,
    ) -> SettleResult:
        """Move the deadline of leases to now + `timeout`, never earlier.

        The other parameters, results and errors are those of :meth:`ack`, with extended messages in
        place of settled ones. The default `timeout` is the group's visibility timeout.
        """
        given = None if timeout is None else validate_duration("timeout", timeout)
        return extend(self._ledger, leases, given, sequences=sequences)[0]

    # -- Spark. Nothing here imports pyspark

    def read_stream(self, spark: Any, *, more_groups: Iterable[Any] = (), **options: Any) -> Any:
        """Return a streaming DataFrame that leases the messages of this group. Needs pyspark.

        It is ``spark.readStream.format("spark_mq")`` with the queue, the group, its start and the
        storage options of this handle.

        Parameters
        ----------
        more_groups
            The same group in other queues, which the stream reads, too. Also give them to
            :meth:`for_each_batch`.
        **options
            Further options of the source, such as ``maxMessagesPerTrigger=10_000`` or
            ``valueSchema="id INT"``.

        Raises
        ------
        InvalidOption
            An option is unknown or invalid, or the handle names it already, or a further group has
            another name or other storage options.
        """
        reads = _spark_side("group_reads", "read_stream")
        return reads.read_stream(self, spark, more_groups, options)

    def read(self, spark: Any, **options: Any) -> Any:
        """Return a DataFrame of the messages as this group sees them. It leases nothing.

        It is ``spark.read.format("spark_mq")`` with the queue, the group and the storage options of
        this handle, and has a row for each retained message, with its state. The group must exist.
        Needs pyspark. The options are further ones of the source, such as ``outcomes=True``. Raises
        InvalidOption if one is unknown or invalid, or if the handle names it already.
        """
        return _spark_side("group_reads", "read").read(self, spark, options)

    def for_each_batch(
        self,
        process: Callable[..., Any],
        on_error: str = "nack",
        more_groups: Iterable[Any] = (),
        ack: str = "on_success",
        *,
        reader: str = "spark",
        invalid: str = "keep",
        sweep: Duration | None = None,
    ) -> Callable[[Any, int], None]:
        """Return a foreachBatch function that settles the rest of each batch.

        Needs pyspark. See :func:`spark_mq.spark.for_each_batch` for the parameters.
        """
        batches = _spark_side("for_each_batch", "for_each_batch")
        each: Callable[[Any, int], None] = batches.for_each_batch(
            self, process, on_error, more_groups, ack, reader=reader, invalid=invalid, sweep=sweep
        )
        return each


def _served(
    group: ConsumerGroup,
    handler: Callable[[Any], Any],
    more_groups: Iterable[ConsumerGroup] | Mapping[ConsumerGroup, Callable[[Any], Any]],
) -> list[tuple[GroupLedger, Callable[[Any], Any]]]:
    if isinstance(more_groups, Mapping):
        more = list(more_groups.items())
    else:
        more = [(other, handler) for other in more_groups]
    for other, _ in more:
        if not isinstance(other, ConsumerGroup):
            why = "is not a group: give groups, or {group: handler}"
            raise invalid("more_groups", other, why)
    return [(served._ledger, each) for served, each in [(group, handler), *more]]


def _spark_side(job: str, method: str) -> Any:
    return load_library(INTEGRATIONS[job], method, "spark", library="pyspark")
