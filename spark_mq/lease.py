"""Hold the messages of a lease, and settle or extend it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from spark_mq.errors import CorruptLog, LeaseLost, StorageError
from spark_mq.ledger.acquire import Grant
from spark_mq.ledger.intervals import subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE
from spark_mq.message import MessageSelector, ReceivedMessage, to_received
from spark_mq.operations.acquire import find_damage, reject_damaged
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.keep_alive import KeepAlive
from spark_mq.operations.outages import OUTAGES
from spark_mq.operations.settle import HeldLease, SettleResult, extend, settle
from spark_mq.operations.sinks import AppendGuard, check_schema_mode, sink_of_lease
from spark_mq.parquet.reader import MessageReader, to_delivery_table
from spark_mq.parquet.schema import DELIVERED_COLUMNS, DELIVERY_SCHEMA
from spark_mq.util.clock import SECOND, Duration, optional_datetime, to_datetime
from spark_mq.util.records import Records, object_html, rows_html
from spark_mq.util.show import show_count, show_time
from spark_mq.util.validation import validate_duration, validate_error


class Lease:
    """Messages that one worker holds until they are settled or expire.

    :meth:`ConsumerGroup.lease` returns it. Threads may share it. The ``lease_id`` is the right to
    settle. A settle without sequences covers all messages that this object has not settled yet.
    """

    def __init__(self, ledger: GroupLedger, worker_id: str, acquired: Grant) -> None:
        self.lease_id = acquired.lease_id
        self.worker_id = worker_id
        self._ledger = ledger
        self._ranges = acquired.ranges
        first = acquired.ranges[0]
        self._timeout = (first.expires_at or 0) - (first.leased_at or 0)
        granted = ((r.first, r.last) for r in acquired.ranges)
        self._held = HeldLease(acquired.lease_id, granted, acquired.expires_at)
        self._lock = threading.Lock()
        self._delivered = False
        self._outage: StorageError | None = None  # why nothing was delivered
        self._store_failed = False
        self._guard = AppendGuard(acquired.lease_id)
        self._may_append = first.sink_writes is not None
        self._sink_key = acquired.sink_key

    def __repr__(self) -> str:
        expires_at = show_time(self.expires_at)
        return (
            f"Lease({self.lease_id!r}, {show_count(len(self), 'message')}, expires_at={expires_at})"
        )

    if not TYPE_CHECKING:  # else a type checker would allow each name

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and hasattr(ReceivedMessage, name):
                raise AttributeError(
                    f"a Lease has no {name!r}, but its messages have: the handler gets a lease of "
                    'messages. Give mode="message" (--mode message) if it takes one message',
                    name=name,
                    obj=self,
                )
            # A property that fails comes here as well, and raises its own error again.
            return object.__getattribute__(self, name)

    def _repr_html_(self) -> str:
        facts = {
            "lease_id": self.lease_id,
            "worker_id": self.worker_id,
            "expires_at": self.expires_at,
            "messages": len(self),
            "unsettled": [f"{first} to {last}" for first, last in self._held.unsettled()],
        }
        shown = object_html(facts, "Lease")
        # Not read for this, because a read may release the lease.
        messages = self.__dict__.get("messages")
        return shown if messages is None else shown + rows_html(messages)

    def __len__(self) -> int:
        return sum(r.message_count for r in self._ranges)

    @property
    def expires_at(self) -> datetime:
        """Return when the lease ends unless it is extended (aware, UTC)."""
        return to_datetime(self._held.expires_at)

    @cached_property
    def messages(self) -> list[ReceivedMessage]:
        """Return the messages in order of sequence, read once. Raises as :meth:`table`."""
        try:
            return self._received()
        except UnicodeDecodeError:
            self._reject_damaged()
            return self._received()

    def _received(self) -> list[ReceivedMessage]:
        table = self.table()  # which may give up damaged messages
        index = self._ledger.messages.index(max((r.last for r in self._ranges), default=-1))
        details = _details(sorted(self._ranges, key=attrgetter("first")), index)
        return Records(to_received(table, details))

    def table(self) -> pa.Table:
        """Return the messages as an Arrow table, in order of sequence. Each call reads them.

        Settled ones stay in it. The columns are sequence, message_id, key, value, headers (as
        pairs), published_at, delivery_count, lease_id and lease_expires_at.

        Messages that turn out to be damaged only now become dead and leave this lease. If a payload
        file is out of reach, this raises StorageError, and so do later calls if this object has
        delivered nothing yet: then the lease is released, uncounted.
        """
        if self._outage is not None:
            raise self._outage
        try:
            try:
                table = self._read()
            except CorruptLog:
                self._reject_damaged()
                table = self._read()
        except StorageError as error:
            raise self._give_up(error) from error
        self._delivered = True
        return table

    def _give_up(self, error: StorageError) -> StorageError:
        """Release a lease that cannot be read now, unless it has delivered messages."""
        self._ledger.payloads.forget(self._ledger.messages.known(), self._ranges)
        if self._delivered or not self._held.unsettled():
            return error
        end = "It is released, and no delivery counts: lease again"
        try:
            self.release()
        except (*OUTAGES, LeaseLost) as failed:
            end = f"It could not be released either: {failed}"
        self._outage = StorageError(
            f"the messages of lease {self.lease_id} could not be read: {error}. {end}",
            **error.data,
        )
        return self._outage

    def _reject_damaged(self) -> None:
        damage = find_damage(self._ledger, self._ranges)
        good = reject_damaged(self._ledger, self._ranges, self.lease_id, damage)
        before = [(r.first, r.last) for r in self._ranges]
        bad = subtract(before, [(r.first, r.last) for r in good])
        with self._lock:
            self._ranges = good
        self._held.mark_settled(bad)

    def _read(self) -> pa.Table:
        if not self._ranges:
            return DELIVERY_SCHEMA.empty_table()
        messages = self._ledger.messages
        index = messages.index(max(r.last for r in self._ranges))
        ranges = sorted(self._ranges, key=attrgetter("first"))
        pieces = [(piece, r) for r in ranges for piece in index.slices(r.first, r.last)]
        reader = MessageReader(messages.files, DELIVERED_COLUMNS, share=True)
        payload = reader.read(*(piece for piece, _ in pieces))
        held = {"lease_id": self.lease_id, "lease_expires_at": self._held.expires_at}
        return to_delivery_table(payload, pieces, DELIVERY_SCHEMA, held)

    # -- settle: each call is one commit at most, and the calls of several threads share one

    def ack(self, sequences: MessageSelector | None = None) -> SettleResult:
        """Settle messages as done.

        Parameters
        ----------
        sequences
            The messages: one of :attr:`messages`, a list of them or of their sequences, an array of
            sequences, or a ``range`` for all messages in between. Default: all that this object has
            not settled yet.

        Raises
        ------
        LeaseLost
            Some messages are no longer held. The rest is settled.
        """
        return self._settle(ACK, sequences)

    def nack(
        self,
        sequences: MessageSelector | None = None,
        *,
        delay: Duration | None = None,
        error: str | None = None,
    ) -> SettleResult:
        """Give messages back as failed, to be tried again.

        The other parameters and errors are those of :meth:`ack`. Without named messages nobody
        knows which failed. `delay` is when they are due again, in seconds or as text such as "30s",
        by default as the group's retry policy says. `error` is the reason, for people.
        """
        return self._settle(NACK, sequences, delay, error)

    def reject(
        self,
        sequences: MessageSelector | None = None,
        *,
        error: str | None = None,
    ) -> SettleResult:
        """Make messages dead that can never be processed. See :meth:`nack` for the parameters."""
        return self._settle(REJECT, sequences, error=error)

    def release(
        self,
        sequences: MessageSelector | None = None,
        *,
        delay: Duration | None = None,
    ) -> SettleResult:
        """Give messages back, uncounted, as if they had not been leased.

        The parameters and errors are those of :meth:`nack`. Without a delay they are due at once.
        """
        return self._settle(RELEASE, sequences, delay)

    def _settle(
        self,
        verb: str,
        sequences: MessageSelector | None,
        delay: Duration | None = None,
        error: str | None = None,
    ) -> SettleResult:
        pause = None if delay is None else validate_duration("delay", delay, zero=True)
        text = validate_error(error)
        guarded = sequences is not None and self._may_append
        try:
            with self._naming(verb) if guarded else contextlib.nullcontext():
                return settle(
                    self._ledger, self._held, verb, sequences=sequences, delay=pause, error=text
                )
        except OUTAGES:
            self._store_failed = True
            raise

    def _naming(self, verb: str) -> contextlib.AbstractContextManager[None]:
        return self._guard.naming(verb, ordered=self._ledger.last_settings.order == "key")

    # -- the group's sink

    def append(self, rows: Any, *, schema_mode: Literal["merge"] | None = None) -> bool:
        """Append the rows of this lease to the group's sink, once, after any crash.

        The sink is a Delta table or a queue, set by ``group.configure(sink=...)``. If an earlier
        holder of the messages has appended its rows, nothing is written. Ack after the append, or
        let :meth:`ConsumerGroup.work` do it.

        Nack, reject or release the messages you won't write *before* you append the rest, because
        the sink counts as having all others. Afterwards only the whole lease can be given back.

        Parameters
        ----------
        rows
            For a table what delta-rs can write: an Arrow table, a record batch or a reader of them,
            or a DataFrame of Polars or pandas. For a queue the messages, as for
            :meth:`Queue.publish`.
        schema_mode
            "merge" adds new columns to a table. Default: rows must fit its schema.

        Returns
        -------
        bool
            Whether this call wrote the rows. False if an earlier delivery had written them.

        Raises
        ------
        InvalidOption
            The group has no sink or got it after this lease, the rows do not fit, or this lease has
            appended before.
        LeaseLost
            Another worker has the messages, or a settle of single messages failed or lost some.
        StorageError
            The sink is out of reach. Try again, or nack the lease.
        """
        check_schema_mode(schema_mode)
        return self._guard.append(
            lambda: sink_of_lease(self._ledger, self.lease_id, self._ranges, self._sink_key),
            lambda sink, own: sink.append(rows, own, schema_mode),
            type(rows).__name__,
        )

    def extend(
        self, timeout: Duration | None = None, sequences: MessageSelector | None = None
    ) -> SettleResult:
        """Move the deadline to now + `timeout`, never earlier. Raises as :meth:`ack`.

        The default `timeout` is the group's visibility timeout. ``expires_at`` of this object is
        the deadline of the whole lease, so it does not show an extension of named messages.
        """
        given = None if timeout is None else validate_duration("timeout", timeout)
        result, deadline = extend(self._ledger, self.lease_id, given, sequences=sequences)
        if sequences is None:
            self._held.move_deadline(deadline)
        return result

    @contextlib.contextmanager
    def keep_alive(self, max_lease_duration: Duration = "30m") -> Iterator[Lease]:
        """Extend the lease in the background while the block runs.

        The extensions stop after `max_lease_duration`. Once the deadline has passed then, settles
        by this object raise :class:`LeaseLost`.
        """
        limit = validate_duration("max_lease_duration", max_lease_duration)
        keep_alive = KeepAlive(lambda _, wanted: self.extend(wanted / SECOND))
        keep_alive.add(self.lease_id, self._start_limit(limit), limit)
        try:
            yield self
        finally:
            keep_alive.stop()

    def _start_limit(self, limit: int) -> int:
        """Limit the extensions to `limit` microseconds from now. Return how long each may be."""
        self._held.ends_at = self._ledger.now() + limit
        return min(limit, self._timeout)


def _details(ranges: Sequence[Range], index: MessageIndex) -> list[list[Any]]:
    """Return failure_count, first_leased_at, priority, deliver_at and expires_at as columns."""
    failures, since, priorities = list[int](), list[datetime | None](), list[int]()
    due, ends = list[datetime | None](), list[datetime | None]()
    for r in ranges:
        failures += [r.failure_count] * r.message_count
        since += [optional_datetime(r.first_leased_at)] * r.message_count
        if index.files.with_slots:
            for slot, first, last in index.slot_runs(r.first, r.last):
                priorities += [index.layout.priority(slot)] * (last - first + 1)
        if not index.has_times(r.first, r.last):
            due += [None] * r.message_count
            ends += [None] * r.message_count
            continue
        for piece in index.slices(r.first, r.last):
            times = index.file_at(piece.first).times
            runs = (
                ((0, piece.rows - 1, None, None),)
                if times is None
                else times.between(piece.offset, piece.offset + piece.rows - 1)
            )
            for first, last, deliver_at, expires_at in runs:
                due += [optional_datetime(deliver_at)] * (last - first + 1)
                ends += [optional_datetime(expires_at)] * (last - first + 1)
    return [failures, since, priorities or [0] * len(failures), due, ends]
