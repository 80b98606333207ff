"""The worker loop for plain Python: lease, call the handler, settle, until it is stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import ContentionTimeout, InvalidHandlerResult, LeaseLost, SparkMQError
from spark_mq.handler import (
    HandlerPolicy,
    MessageVerdict,
    commands_for,
    describe_held,
    log_outcomes,
    parse_result,
)
from spark_mq.lease import Lease
from spark_mq.ledger.settle import ACK, NACK, REJECT, SettleCommand, SettleOutcome
from spark_mq.operations.acquire import (
    Acquired,
    LeaseOptions,
    lease_operation,
    wait_for_lease,
    without_unreadable,
)
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.keep_alive import LeaseKeepAlive
from spark_mq.operations.settle import summarize
from spark_mq.util.clock import SECOND, Duration
from spark_mq.util.notifier import Notifier
from spark_mq.util.validation import (
    validate_callable,
    validate_count,
    validate_duration,
    validate_name,
)

__all__ = ["Handler", "WorkSummary", "run_worker"]

_log = logging.getLogger(__name__)

Handler = Callable[[Lease], Any]


@dataclass(slots=True)
class WorkSummary:
    """What a worker loop did. Messages that a handler settled itself are not counted.

    Attributes
    ----------
    leases
        Leases handed to the handler.
    failed
        Those of them whose handler failed.
    settled
        Messages settled.
    nacked
        Messages of these given back. They are redelivered, except after their last attempt.
    rejected
        Messages of these made dead. The rest was acked.
    """

    leases: int = 0
    failed: int = 0
    settled: int = 0
    nacked: int = 0
    rejected: int = 0


def run_worker(
    ledger: GroupLedger,
    handler: Handler,
    *,
    worker_id: str | None = None,
    threads: int = 1,
    max_messages: int = 1,
    visibility_timeout: Duration | None = None,
    max_lease_duration: Duration = "30m",
    on_error: str = "nack",
    ack: str = "after",
    graceful_timeout: Duration = "30s",
    stop: threading.Event | None = None,
    max_poll_interval: Duration = "500ms",
    until_empty: bool = False,
    fail_on_data_loss: bool = True,
) -> WorkSummary:
    """Run a handler for one lease after the other: see :meth:`spark_mq.ConsumerGroup.work`."""
    validate_callable("handler", handler, "lease")
    limit = validate_duration("max_lease_duration", max_lease_duration)
    timeout = None
    if visibility_timeout is not None:
        timeout = validate_duration("visibility_timeout", visibility_timeout)
    name = validate_name("worker_id", worker_id or _default_worker_id())
    messages = validate_count("max_messages", max_messages)
    loop = _WorkerLoop(
        ledger,
        handler,
        LeaseOptions(name, messages, timeout, fail_on_data_loss),
        HandlerPolicy.validated(on_error, ack),
        limit,
        stop or threading.Event(),
        validate_duration("max_poll_interval", max_poll_interval) / SECOND,
        until_empty,
    )
    grace = validate_duration("graceful_timeout", graceful_timeout, zero=True) / SECOND
    return loop.run(validate_count("threads", threads, most=1_000), grace)


def _default_worker_id() -> str:
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100]
    return f"{host}-{os.getpid()}"


@dataclass(eq=False)
class _WorkerLoop:
    """One call of :func:`run_worker`."""

    ledger: GroupLedger
    handler: Handler
    options: LeaseOptions
    policy: HandlerPolicy
    limit: int
    stop: threading.Event
    poll: float
    until_empty: bool
    summary: WorkSummary = field(default_factory=WorkSummary)
    error: BaseException | None = None
    _ending: Notifier = field(default_factory=Notifier)
    """Wakes the thread that waits for messages when the loop ends."""
    _leasing: threading.Lock = field(default_factory=threading.Lock)
    """One thread waits for messages, for all."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)
    _alive: dict[str, LeaseKeepAlive] = field(default_factory=dict)

    def run(self, threads: int, grace: float) -> WorkSummary:
        running = [
            threading.Thread(target=self._thread, name=f"spark_mq worker {n}", daemon=True)
            for n in range(threads)
        ]
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
        self._ending.notify()

    def _join(self, running: list[threading.Thread], grace: float) -> None:
        deadline = time.monotonic() + grace
        for thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            late = list(self._alive.values())
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
            lease = self._next()
            while lease is not None:
                lease = self._handle(lease) or self._next()
        except BaseException as error:
            with self._lock:
                self.error = self.error or error
            self._end()
        finally:
            self._ended.set()

    def _next(self) -> Lease | None:
        """Return the next lease, or None at the end. A lease that comes after the end is
        released."""
        pause = self.poll
        while not self.stop.is_set():
            try:
                with self._leasing:
                    acquired = wait_for_lease(
                        self.ledger, self.options, self._time_left, self.poll, self._ending
                    )
            except (*STORE_ERRORS, ContentionTimeout) as error:
                _log.warning("could not lease, trying again: %s", error)
                self.stop.wait(pause := min(30.0, pause * 2))
                continue
            why = acquired.blocked_because
            if why and not acquired.ranges and not self.stop.is_set():
                _log.warning("group %s may lease nothing: %s", self.ledger.name, why)
            return self._take(acquired)
        return None

    def _take(self, acquired: Acquired) -> Lease | None:
        """Return a lease and keep it alive. One that comes after the end is released."""
        if not acquired.ranges:
            return None
        lease = Lease(self.ledger, self.options.worker_id, acquired)
        if self.stop.is_set():
            with contextlib.suppress(LeaseLost):
                lease.release()
            return None
        # From now on: the thread may have to end the extension of its last lease first.
        alive = lease._start_keep_alive(self.limit)
        with self._lock:
            self._alive[lease.lease_id] = alive
        return lease

    def _time_left(self) -> float:
        return 0.0 if self.until_empty or self.stop.is_set() else float("inf")

    def _handle(self, lease: Lease) -> Lease | None:
        """Handle a lease. Returns the next one if its commit granted one."""
        with self._lock:
            self.summary.leases += 1
        try:
            return self._call(lease)
        finally:
            with self._lock:
                alive = self._alive.pop(lease.lease_id)
            alive.stop()

    def _call(self, lease: Lease) -> Lease | None:
        if self.policy.ack == "first":
            try:
                self._count(ACK, lease.ack().settled)
            except LeaseLost as lost:
                _log.warning("a lease was lost before its messages were handed over: %s", lost)
                return None
        try:
            granted = [(r.first, r.last) for r in lease._ranges]
            result = parse_result(self.handler(lease), lease.lease_id, granted)
        except InvalidHandlerResult:
            raise
        except Exception as error:
            self._note_failure(lease, error)
            return self._settle(lease, error)
        return self._settle(lease, result)

    def _note_failure(self, lease: Lease, error: Exception) -> None:
        with self._lock:
            self.summary.failed += 1
        if self.policy.on_error == "raise":
            raise error
        limit = self.ledger.last_settings.max_delivery_attempts
        held = describe_held(lease._deliveries(), limit)
        _log.exception("group %s: the handler failed with %s", self.ledger.name, held)

    def _settle(self, lease: Lease, result: list[MessageVerdict] | Exception) -> Lease | None:
        """Settle the verdicts and the rest of a lease, and lease the next, in one commit."""
        unsettled = {lease.lease_id: lease._held.unsettled()}
        commands = commands_for(result, self.policy, unsettled)
        wanted = [] if self.stop.is_set() else [lease_operation(self.ledger, self.options)]
        if not commands:
            return self._take_next(self.ledger.run_together(*wanted)) if wanted else None
        outcomes, *granted = self.ledger.run_together(
            self.ledger.settle_operation(commands), *wanted
        )
        if isinstance(outcomes, Exception):
            self._release(granted)
            raise outcomes
        self._note_settled(lease, result, commands, outcomes)
        return self._take_next(granted)

    def _note_settled(
        self,
        lease: Lease,
        result: list[MessageVerdict] | Exception,
        commands: Sequence[SettleCommand],
        outcomes: Sequence[SettleOutcome],
    ) -> None:
        for command, outcome in zip(commands, outcomes, strict=True):
            lease._held.mark_settled(outcome.ranges)
            self._count(command.verb, outcome.settled)
        if isinstance(result, Exception):
            done = zip(commands, outcomes, strict=True)
            log_outcomes(self.ledger.name, self.ledger.now(), done)
        try:
            summarize([lease.lease_id] * len(outcomes), outcomes)
        except LeaseLost as lost:
            _log.warning("some messages of this lease come again, to another worker: %s", lost)

    def _take_next(self, granted: Sequence[Acquired | Exception]) -> Lease | None:
        """Return the lease that came with a settle. After an error :meth:`_next` asks again."""
        for acquired in granted:
            if isinstance(acquired, Acquired):
                try:
                    return self._take(without_unreadable(self.ledger, acquired))
                except STORE_ERRORS as error:
                    _log.warning("could not lease, trying again: %s", error)
        return None

    def _release(self, granted: Sequence[Acquired | Exception]) -> None:
        """Release the lease that came with a settle that failed. The loop ends."""
        for acquired in granted:
            if isinstance(acquired, Acquired) and acquired.ranges:
                with contextlib.suppress(SparkMQError):
                    Lease(self.ledger, self.options.worker_id, acquired).release()

    def _count(self, verb: str, messages: int) -> None:
        with self._lock:
            self.summary.settled += messages
            self.summary.nacked += messages if verb == NACK else 0
            self.summary.rejected += messages if verb == REJECT else 0
