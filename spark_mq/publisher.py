"""Publish single messages in batches, with one commit for each batch.

A thread of the publisher commits a batch once it is full or old enough, or for a flush. Meanwhile
the next batch grows, so a slow store makes larger commits instead of more of them.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from types import TracebackType
from typing import Any, Final

from spark_mq.errors import (
    ContentionTimeout,
    PublisherClosed,
    PublishFailed,
    SparkMQError,
    StorageError,
)
from spark_mq.message import Message, from_rows, to_publish, to_row
from spark_mq.operations.context import QueueContext
from spark_mq.operations.outages import outage_pause
from spark_mq.operations.publish import (
    Producer,
    check_dedup,
    pending_of,
    report_send,
    with_own_context,
)
from spark_mq.storage.publishes import PendingPublish, PublishReceipt
from spark_mq.util.clock import SECOND, Duration
from spark_mq.util.notifier import call_when_done, wait_in_loop
from spark_mq.util.process import ForkGuard
from spark_mq.util.show import show_count
from spark_mq.util.validation import validate_count, validate_duration, validate_name, validate_size

MAX_PENDING_BATCHES: Final = 16
"""Batches of messages, or of bytes, that may wait. A caller that publishes more waits for room."""

_LONGEST_PAUSE: Final = 2.0  # seconds between two tries to commit


@dataclass(slots=True, eq=False)
class _Batch:
    """Messages for one commit. The rows go once settled. ``since`` is in monotonic seconds."""

    since: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0
    sequences: Future[PublishReceipt] = field(default_factory=Future)
    reported: set[int] = field(default_factory=set)  # messages whose outcome a caller asked for
    number: int | None = None  # the producer's number before the first message


class PendingMessage:
    """The future sequence of a buffered message. It costs less than a real future."""

    __slots__ = ("_at", "_batch")

    def __init__(self, batch: _Batch, at: int) -> None:
        self._batch = batch
        self._at = at

    @property
    def number(self) -> int | None:
        """Return the message's number, if the publisher has a ``producer_id``."""
        before = self._batch.number
        return None if before is None else before + self._at + 1

    def done(self) -> bool:
        """Return whether the message is durable, or has failed."""
        return self._batch.sequences.done()

    def result(self, timeout: float | None = None) -> int | None:
        """Return the sequence once the message is durable, or None for a repeated dedup id.

        Raises the error of a failed message, and TimeoutError after `timeout` seconds.
        """
        error = self._batch.sequences.exception(timeout)
        self._batch.reported.add(self._at)
        if error is not None:
            raise error
        return self._batch.sequences.result().sequence_of(self._at)

    def duplicate_of(self, timeout: float | None = None) -> int | None:
        """Return the sequence that a repeated dedup id met, or None. Waits as :meth:`result`."""
        self.result(timeout)
        return self._batch.sequences.result().duplicate_of.get(self._at)

    def replaces(self, timeout: float | None = None) -> int | None:
        """Return the sequence that this message replaces, or None. Waits as :meth:`result`."""
        self.result(timeout)
        return self._batch.sequences.result().replaces.get(self._at)

    def add_done_callback(self, callback: Callable[[PendingMessage], object]) -> None:
        """Call a function with this object once the message is durable or has failed.

        It runs at once if that is so already, and otherwise in the publisher's thread. So it must
        be quick, and must not wait for the publisher. Its own errors are logged.
        """
        call_when_done(self._batch.sequences, lambda: callback(self))

    def __await__(self) -> Generator[Any, None, int | None]:
        """Wait in an event loop for :meth:`result`. A cancelled task cancels no publish."""
        yield from wait_in_loop(self._batch.sequences)
        return self.result()


class BufferedPublisher:
    """A publisher of single messages, many to a commit, for many threads. A context manager.

    :meth:`spark_mq.Queue.publisher` returns it. A commit that fails is tried again for
    ``retry_timeout``, with longer and longer pauses, while later messages wait. None lands twice.
    After that time each of its messages fails with the error, and the next batch is committed. With
    a ``producer_id`` all later messages fail, too, and the publisher stops.

    :meth:`publish` waits for room while too much is pending. If nobody closes a publisher, the
    interpreter closes it at its end.
    """

    def __init__(
        self,
        context: QueueContext,
        *,
        max_messages: int,
        max_bytes: int | str,
        linger: Duration,
        retry_timeout: Duration,
        producer_id: str | None = None,
        batch_id: str | None = None,
    ) -> None:
        self._context = context
        self._batch_id = None if batch_id is None else validate_name("batch_id", batch_id)
        self._process = ForkGuard(f"a publisher of {context.path}")
        self._max_messages = validate_count("max_messages", max_messages, text=False)
        self._max_bytes = validate_size("max_bytes", max_bytes)
        self._linger = validate_duration("linger", linger) / SECOND
        self._retry_seconds = validate_duration("retry_timeout", retry_timeout, zero=True) / SECOND
        self._producer = Producer(context.messages, producer_id)
        self._handed = self._producer.number  # the number of the last message that came
        self._stopped: BaseException | None = None  # why a named producer stopped
        self._changed = threading.Condition()
        self._batch = self._new_batch()
        self._sending = _Batch()
        self._done = self._wanted = 0  # settled messages, either way. Those that a flush waits for.
        # The error, the number of messages, and those whose error a caller asked for.
        self._failed: list[tuple[BaseException, int, set[int]]] = []
        self._closing = self._has_sent = False
        self._thread = threading.Thread(target=self._run, name="spark_mq publisher", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    def __enter__(self) -> BufferedPublisher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _new_batch(self) -> _Batch:
        return _Batch(number=self._handed if self._producer.named else None)

    @property
    def last_number(self) -> int | None:
        """Return the number of the last durable message, or None without a ``producer_id``.

        It is 0 before the first message.
        """
        return self._producer.number if self._producer.named else None

    def publish(self, message: bytes | str | Message) -> PendingMessage:
        """Add one message to the next commit. Wait while too much is pending.

        ``result()`` of the returned object waits until the message is durable. Raises InvalidOption
        for a message that cannot be published, and PublisherClosed.
        """
        self._process.check()
        row = with_own_context(to_row(message, "the message", self._context.now))
        if "dedup_id" in row:
            check_dedup(self._context.settings, self._context.path)
        size = len(row["value"])
        if len(row) > 1:
            texts = [row.get("key") or "", *chain(*(row.get("headers") or ()))]
            size += sum(len(text.encode()) for text in texts)
        with self._changed:
            while not self._closing and self._is_full():
                self._changed.wait()
            if self._closing:
                raise PublisherClosed(
                    "this publisher is closed: make another with queue.publisher()"
                )
            if self._stopped is not None:
                raise PublisherClosed(
                    f"this publisher has stopped: {self._stopped}. Make another with the same "
                    f"producer_id, and continue after its last_number"
                )
            batch = self._batch
            self._handed += 1
            before, at = batch.size, len(batch.rows)
            batch.rows.append(row)
            batch.size += size
            if at == 0:
                batch.since = time.monotonic()
            if at == 0 or at + 1 == self._max_messages or before < self._max_bytes <= batch.size:
                self._changed.notify_all()
            return PendingMessage(batch, at)

    def flush(self) -> None:
        """Wait until all messages so far are durable.

        Raises PublishFailed if some have failed and nobody asked for their errors.
        """
        self._process.check()
        with self._changed:
            pending = len(self._sending.rows) + len(self._batch.rows)
            self._wanted = upto = self._done + pending
            self._changed.notify_all()
            while self._done < upto:
                self._changed.wait()
            self._raise_failed()

    def close(self) -> None:
        """Flush, and accept no more messages. Raises as :meth:`flush`. May be called again."""
        self._process.check()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        atexit.unregister(self._close_at_exit)
        with self._changed:
            self._raise_failed()

    def _close_at_exit(self) -> None:
        if not self._process.is_foreign:  # a forked process leaves it to its parent
            self.close()

    def _raise_failed(self) -> None:
        failed, self._failed = self._failed, []
        left = [(error, count - len(reported)) for error, count, reported in failed]
        unreported = [(error, count) for error, count in left if count]
        if unreported:
            error, messages = unreported[0][0], sum(count for _, count in unreported)
            raise PublishFailed(
                f"not published: {show_count(messages, 'message')}: {error}", messages=messages
            ) from error

    def _is_full(self) -> bool:
        waiting, sending = self._batch, self._sending
        return (
            len(waiting.rows) + len(sending.rows) >= MAX_PENDING_BATCHES * self._max_messages
            or waiting.size + sending.size >= MAX_PENDING_BATCHES * self._max_bytes
        )

    # -- in the publisher's thread

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            outcome = self._stopped or report_send(
                self._context, batch.rows, lambda: self._send(batch)
            )
            if isinstance(outcome, BaseException):
                batch.sequences.set_exception(outcome)
            else:
                batch.sequences.set_result(outcome)
            with self._changed:
                count, batch.rows = len(batch.rows), []
                self._sending = _Batch()
                self._done += count
                if isinstance(outcome, BaseException):
                    self._failed.append((outcome, count, batch.reported))
                    self._give_up(outcome, count)
                self._changed.notify_all()

    def _give_up(self, error: BaseException, messages: int) -> None:
        """Continue after a failed batch, or stop if the producer has a name."""
        # The numbers of a name have no gaps, because a restart would count a gap as published.
        if self._producer.named:
            self._stopped = error
        else:
            self._producer.skip(messages)

    def _next(self) -> _Batch | None:
        with self._changed:
            while True:
                batch = self._batch
                left = batch.since + self._linger - time.monotonic()
                enough = len(batch.rows) >= self._max_messages or batch.size >= self._max_bytes
                if batch.rows and (
                    enough or left <= 0 or self._closing or self._done < self._wanted
                ):
                    self._batch, self._sending = self._new_batch(), batch
                    return batch
                if self._closing:
                    return None
                self._changed.wait(left if batch.rows else None)

    def _is_lasting(self, error: Exception) -> bool:
        """Return whether no wait helps. A store that took a batch before may do so again."""
        if isinstance(error, StorageError):
            return error.lasting and not self._has_sent
        return isinstance(error, SparkMQError) and not isinstance(error, ContentionTimeout)

    def _send(self, batch: _Batch) -> PublishReceipt | BaseException:
        """Commit a batch once. Return the receipt or the last error."""
        pending: PendingPublish | None = None
        failures, deadline = 0, time.monotonic() + self._retry_seconds
        while True:
            pause, failures = outage_pause(failures, _LONGEST_PAUSE), failures + 1
            try:
                if pending is None:
                    now = self._context.now()
                    times = self._context.settings.default_times(now)
                    table = to_publish(from_rows(batch.rows), now, times)
                    pending = pending_of(self._context, table, self._batch_id)
                receipt = self._producer.commit(pending)
                self._has_sent = True
                return receipt
            except Exception as error:
                if self._is_lasting(error) or time.monotonic() + pause > deadline:
                    return error
            except BaseException as error:  # no caller may wait for ever
                return error
            time.sleep(pause)
