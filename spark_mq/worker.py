"""The worker loop for plain Python: lease, hand to your function, settle; until told to stop."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError

from spark_mq.errors import ContentionTimeout, InvalidHandlerResult, LeaseLost
from spark_mq.failures import in_hand, tell_fate
from spark_mq.handler import settles_of, verdicts_of
from spark_mq.handler_policy import HandlerPolicy
from spark_mq.lease import Lease, result_of
from spark_mq.ledger.intervals import subtract
from spark_mq.ledger.settle import ACK, NACK, REJECT, SettleCommand
from spark_mq.operations.acquire import LeaseOptions, take
from spark_mq.operations.keep_alive import LeaseKeepAlive
from spark_mq.util.notifier import Notifier
from spark_mq.util.validation import SECOND, check_callable, check_count, check_duration, check_name

if TYPE_CHECKING:
    from spark_mq.group import ConsumerGroup

__all__ = ["Handler", "WorkSummary", "work"]

_log = logging.getLogger(__name__)

Handler = Callable[[Lease], Any]


@dataclass(slots=True)
class WorkSummary:
    """What a worker loop did: ``leases`` handed to the handler, those of them whose handler ``failed``, messages ``settled``.

    Of these were ``nacked`` (they come again, unless that was their last attempt) and ``rejected`` so many; the rest was acked. What a
    handler settles itself, by the lease's methods, is not counted.
    """

    leases: int = 0
    failed: int = 0
    settled: int = 0
    nacked: int = 0
    rejected: int = 0


def work(
    group: ConsumerGroup,
    handler: Handler,
    *,
    worker_id: str | None = None,
    threads: int = 1,
    max_messages: int = 1,
    visibility_timeout: Any = None,
    max_lease_duration: Any = "30m",
    on_error: str = "nack",
    ack: str = "after",
    graceful_timeout: Any = "30s",
    stop: threading.Event | None = None,
    max_poll_interval: Any = "500ms",
    until_empty: bool = False,
    fail_on_data_loss: bool = True,
) -> WorkSummary:
    """Calls ``handler(lease)`` for one lease after the other, in `threads` threads, and settles what it leaves.

    The lease is extended while its handler runs, up to ``max_lease_duration``. What the handler settles itself stands; the policy
    covers the rest: see :class:`~spark_mq.handler_policy.HandlerPolicy` for ``on_error`` and ``ack``. It may return what is to become of
    single
    messages: an Arrow table or a list of dicts with ``sequence``, and ``outcome`` ("ack", "nack", "reject"; none: a failure, by
    ``on_error``), ``delay`` (seconds, or "30s"), ``error``; all others are acked. Anything else ends the loop with InvalidHandlerResult:
    that is
    a mistake in the program.

    Ends when `stop` is set, on SIGTERM (in the main thread), and with ``until_empty`` once nothing is due: nothing more is leased,
    what never reached the handler is given back uncounted, and handlers that run have ``graceful_timeout`` to finish. What still runs
    then keeps its count and is left to expire. A failing store and a group that blocks are waited out. Raises InvalidOption; DataLossError.
    """
    check_callable("handler", handler, "lease")
    limit = check_duration("max_lease_duration", max_lease_duration)
    timeout = None if visibility_timeout is None else check_duration("visibility_timeout", visibility_timeout)
    name = check_name("worker_id", worker_id or re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100] + f"-{os.getpid()}")
    wanted = LeaseOptions(name, check_count("max_messages", max_messages), timeout, fail_on_data_loss)
    loop = _Loop(group, handler, wanted, HandlerPolicy.checked(on_error, ack), limit, stop or threading.Event(),
                 check_duration("max_poll_interval", max_poll_interval) / SECOND, until_empty)  # fmt: skip
    grace = check_duration("graceful_timeout", graceful_timeout, zero=True) / SECOND
    return loop.run(check_count("threads", threads, most=1_000), grace)


@dataclass(eq=False)
class _Loop:
    """One call of :func:`work`."""

    group: ConsumerGroup
    handler: Handler
    wanted: LeaseOptions
    policy: HandlerPolicy
    limit: int
    stop: threading.Event
    poll: float
    until_empty: bool
    summary: WorkSummary = field(default_factory=WorkSummary)
    error: BaseException | None = None
    _bell: Notifier = field(default_factory=Notifier)
    """Wakes the thread that waits for messages when the loop is to end."""
    _leasing: threading.Lock = field(default_factory=threading.Lock)
    """One thread waits for messages, for all."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)
    _alive: set[LeaseKeepAlive] = field(default_factory=set)

    def run(self, threads: int, grace: float) -> WorkSummary:
        running = [threading.Thread(target=self._thread, name=f"spark_mq worker {n}", daemon=True) for n in range(threads)]
        with self._on_sigterm():
            for thread in running:
                thread.start()
            try:
                while any(thread.is_alive() for thread in running) and not self.stop.is_set():
                    self._ended.wait(self.poll)
                    self._ended.clear()
            except BaseException:
                self._end()
                self._join(running, grace)
                raise
            self._end()
            self._join(running, grace)
        if self.error is not None:
            raise self.error
        return self.summary

    def _end(self) -> None:
        self.stop.set()
        self._bell.ring()

    def _join(self, running: list[threading.Thread], grace: float) -> None:
        deadline = time.monotonic() + grace
        for thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            late = list(self._alive)
        for alive in late:
            alive.stop()
        if any(thread.is_alive() for thread in running):
            _log.warning("a handler still runs after %.0f s: its lease is left to expire", grace)

    @contextlib.contextmanager
    def _on_sigterm(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def told(*_: object) -> None:
            self.stop.set()
            self._ended.set()

        before = signal.signal(signal.SIGTERM, told)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    # -- one thread

    def _thread(self) -> None:
        try:
            while (lease := self._next()) is not None:
                self._handle(lease)
        except BaseException as error:
            with self._lock:
                self.error = self.error or error
            self._end()
        finally:
            self._ended.set()

    def _next(self) -> Lease | None:
        """The next lease; None at the end. What comes when the end has been told is given back."""
        pause = self.poll
        while not self.stop.is_set():
            try:
                with self._leasing:
                    lease, why = take(self.group, self.wanted, self._left, self.poll, self._bell)
            except (OSError, DeltaError, ContentionTimeout) as error:
                _log.warning("could not lease, trying again: %s", error)
                self.stop.wait(pause := min(30.0, pause * 2))
                continue
            if lease is not None and self.stop.is_set():
                with contextlib.suppress(LeaseLost):
                    lease.release()
                return None
            if lease is None and why and not self.stop.is_set():
                _log.warning("group %s may lease nothing: %s", self.group.name, why)
            return lease
        return None

    def _left(self) -> float:
        return 0.0 if self.until_empty or self.stop.is_set() else float("inf")

    def _handle(self, lease: Lease) -> None:
        with self._lock:
            self.summary.leases += 1
        alive = lease.extender(self.limit)
        with self._lock:
            self._alive.add(alive)
        try:
            self._call(lease)
        finally:
            with self._lock:
                self._alive.discard(alive)
            alive.stop()

    def _call(self, lease: Lease) -> None:
        if self.policy.ack == "first":
            try:
                self._count(ACK, lease.ack().settled)
            except LeaseLost as lost:
                _log.warning("a lease was lost before its messages were handed over: %s", lost)
                return
        try:
            verdicts = verdicts_of(self.handler(lease), lease.lease_id, [(r.first, r.last) for r in lease.ranges])
        except InvalidHandlerResult:
            raise
        except Exception as error:
            self._failed(lease, error)
            return
        failure = REJECT if self.policy.on_error == "reject" else NACK
        self._settle(lease, settles_of(verdicts, failure, random.random()), ACK if self.policy.ack == "after" else None)

    def _failed(self, lease: Lease, error: Exception) -> None:
        with self._lock:
            self.summary.failed += 1
        if self.policy.on_error == "raise":
            raise error
        _log.exception("group %s: the handler failed with %s", self.group.name, in_hand(self.group, lease.lease_id))
        if self.policy.ack != "first":
            self._settle(lease, [], REJECT if self.policy.on_error == "reject" else NACK, f"{type(error).__name__}: {error}")

    def _settle(self, lease: Lease, settles: list[SettleCommand], rest: str | None, error: str | None = None) -> None:
        """One commit: what was said of single messages, and of all that the handler left."""
        named = [interval for one in settles for interval in one.intervals or ()]
        if rest is not None and (left := subtract(lease.left(), named)):
            settles = [*settles, SettleCommand(rest, lease.lease_id, left, whole=True, error=error, jitter=random.random())]
        if not settles:
            return
        outcomes = self.group.settle(settles)
        for outcome in outcomes:
            lease.forget(outcome.ranges)
        for one, outcome in zip(settles, outcomes, strict=True):
            self._count(one.verb, outcome.settled)
        if error is not None:
            tell_fate(self.group, zip(settles, outcomes, strict=True))
        try:
            result_of([lease.lease_id] * len(outcomes), outcomes)
        except LeaseLost as lost:
            _log.warning("some messages of this lease come again, to another worker: %s", lost)

    def _count(self, verb: str, messages: int) -> None:
        with self._lock:
            self.summary.settled += messages
            self.summary.nacked += messages if verb == NACK else 0
            self.summary.rejected += messages if verb == REJECT else 0
