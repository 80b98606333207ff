"""Run the threads of a worker that lease, call the handler and settle."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_mq.errors import InvalidHandlerResult, LeaseLost, SparkMQError
from spark_mq.handler import (
    HandlerPolicy,
    MessageVerdict,
    commands_for,
    describe_held,
    log_outcomes,
    parse_result,
)
from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.commands import Command
from spark_mq.ledger.settle import ACK, RELEASE, SettleCommand, SettleOutcome
from spark_mq.operations.acquire import wait_for_lease
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.keep_alive import LeaseKeepAlive
from spark_mq.operations.outages import OUTAGES, outage_pause, settle_with_retry
from spark_mq.operations.settle import summarize
from spark_mq.operations.work_report import VerdictLog, WorkSummary, reported_work, why_left
from spark_mq.util.notifier import Notifier
from spark_mq.util.thread_watch import ThreadWatch, describe_wait

__all__ = ["Handler", "WorkSummary", "WorkerLoop", "has_ended"]

_log = logging.getLogger("spark_mq.worker")

Handler = Callable[[Lease], Any]


def has_ended(ledger: GroupLedger, until: str) -> bool:
    """Return whether a worker ends now that there is nothing to lease."""
    if until == "empty":
        return True
    stats = ledger.stats()
    return not (stats.ready or stats.delayed or stats.leased or stats.blocked)


@dataclass(eq=False, slots=True)
class _Running:
    """A lease that a handler has. ``since`` is in monotonic seconds."""

    lease: Lease
    alive: LeaseKeepAlive
    since: float


@dataclass(eq=False)
class WorkerLoop:
    """The threads of one call of :func:`run_worker`, and what they share."""

    ledger: GroupLedger
    handler: Handler
    options: Acquire
    policy: HandlerPolicy
    limit: int
    stop: threading.Event
    poll: float
    until: str | None  # "empty" or "settled"
    summary: WorkSummary = field(default_factory=WorkSummary)
    error: BaseException | None = None
    _ending: Notifier = field(default_factory=Notifier)
    """Wakes the thread that waits for messages when the loop ends."""
    _leasing: threading.Lock = field(default_factory=threading.Lock)
    """One thread waits for messages, for all."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    """Set after the graceful timeout or a second Ctrl-C. Then no settle is tried again."""
    _outages: int = 0
    """Handlers in a row that met a failing store."""
    _running: dict[str, _Running] = field(default_factory=dict)
    _verdicts: VerdictLog = field(init=False)

    def __post_init__(self) -> None:
        self._verdicts = VerdictLog(self.ledger.name)

    def run(self, threads: int, grace: float) -> WorkSummary:
        """Work until the end, then give running handlers `grace` seconds."""
        running: list[threading.Thread] = []
        watch = ThreadWatch(running, self.stop, self.poll, lambda: self._report_wait(grace))
        for n in range(threads):
            name = f"spark_mq worker {n}"
            running.append(
                threading.Thread(target=self._thread, args=(watch,), name=name, daemon=True)
            )
        watch.run(lambda: self._finish(watch, grace))
        watch.raise_end(self.error)
        return self.summary

    def _report_wait(self, grace: float) -> None:
        with self._lock:
            running = [
                (f"lease {one.lease.lease_id} with {len(one.lease):,} messages", one.since)
                for one in self._running.values()
            ]
        if running:
            _log.warning("group %s: %s", self.ledger.name, describe_wait(running, grace))

    def _end(self) -> None:
        self.stop.set()
        self._ending.notify()

    def _finish(self, watch: ThreadWatch, grace: float) -> None:
        if not self.stop.is_set():  # the end that `until` wants
            self.summary.blocked_because = why_left([self.ledger])
        self._end()
        watch.wait_for_end(grace)
        self._over.set()
        self._verdicts.flush()
        with self._lock:
            late = list(self._running.values())
        if watch.hurried:
            self._give_back([one.lease for one in late])
        for one in late:
            one.alive.stop()
        if late and not watch.hurried:
            _log.warning("a handler still runs after %.0f s: its lease is left to expire", grace)

    # -- one thread

    def _thread(self, watch: ThreadWatch) -> None:
        try:
            lease = self._next()
            while lease is not None:
                lease = self._handle(lease) or self._next()
        except BaseException as error:
            with self._lock:
                self.error = self.error or error
            self._end()
        finally:
            watch.note_end()

    def _next(self) -> Lease | None:
        pause = self.poll
        while not self.stop.is_set():
            try:
                with self._leasing:
                    acquired = wait_for_lease(
                        self.ledger, self.options, self._time_left, self.poll, self._ending
                    )
            except OUTAGES as error:
                _log.warning("could not lease, trying again: %s", error)
                self.stop.wait(pause := min(30.0, pause * 2))
                continue
            if acquired.unfinished:
                continue  # the end of the loop came first
            return self._take(acquired)
        return None

    def _take(self, acquired: Grant) -> Lease | None:
        """Return a lease and keep it alive. One that comes after the end is released."""
        if not acquired.ranges:
            return None
        lease = Lease(self.ledger, self.options.worker_id, acquired)
        if self.stop.is_set():
            self._give_back([lease])
            return None
        # From now on, because the thread may have to end the extension of its last lease first.
        alive = lease._start_keep_alive(self.limit)
        with self._lock:
            self._running[lease.lease_id] = _Running(lease, alive, time.monotonic())
        return lease

    def _time_left(self) -> float:
        if self.stop.is_set():
            return -1.0
        ends = self.until is not None and has_ended(self.ledger, self.until)
        return 0.0 if ends else float("inf")

    def _handle(self, lease: Lease) -> Lease | None:
        """Handle a lease. Return the next one if its settle granted one."""
        with self._lock:
            self.summary.leases += 1
        try:
            with reported_work([(self.ledger, lambda: lease._ranges)], lease.worker_id) as run:
                return self._call(lease, run)
        finally:
            with self._lock:
                running = self._running.pop(lease.lease_id)
            running.alive.stop()

    def _call(self, lease: Lease, run: Callable[..., Any]) -> Lease | None:
        if self.policy.ack == "on_receive" and not self._ack_first(lease):
            return None
        try:
            granted = [(r.first, r.last) for r in lease._ranges]
            result = parse_result(run(self.handler, lease), lease.lease_id, granted)
        except InvalidHandlerResult:
            raise
        except Exception as error:
            if lease._met_outage(error):
                self._wait_out(lease, error)
                return None
            self._note_failure(lease, error)
            return self._settle(lease, error)
        if lease._outage is not None:
            self._wait_out(lease, lease._outage)
            return None
        with self._lock:
            self._outages = 0
        return self._settle(lease, result)

    def _ack_first(self, lease: Lease) -> bool:
        """Ack before the handler gets the messages. Return whether it may have them."""
        command = SettleCommand(ACK, lease.lease_id, lease._held.unsettled(), whole=True)
        done = self._commit([lease], [command])
        if done is None:
            return False
        (outcome,), _ = done
        lease._held.mark_settled(outcome.ranges)
        self._count(ACK, outcome.settled)
        try:
            summarize([lease.lease_id], [outcome])
        except LeaseLost as lost:
            _log.warning("a lease was lost before its messages were handed over: %s", lost)
            return False
        return True

    def _wait_out(self, lease: Lease, error: Exception) -> None:
        text = "group %s: a handler met a failing store. Its messages are released, uncounted: %s"
        _log.warning(text, self.ledger.name, error)
        self._give_back([lease])
        with self._lock:
            pause, self._outages = outage_pause(self._outages), self._outages + 1
        self.stop.wait(pause)

    def _give_back(self, leases: Sequence[Lease]) -> None:
        """Release the rest of some leases in one commit. It waits while the store fails."""
        commands = [
            SettleCommand(RELEASE, lease.lease_id, unsettled, whole=True)
            for lease in leases
            if (unsettled := lease._held.unsettled())
        ]
        if commands:
            self._commit(leases, commands)

    def _commit(
        self, leases: Sequence[Lease], commands: Sequence[SettleCommand], *, more: bool = False
    ) -> tuple[list[SettleOutcome], list[Any]] | None:
        """Settle, and with `more` lease the next. Return None if the store failed to the end."""

        def also() -> list[Command[Grant]]:
            wanted = more and not self.stop.is_set()
            return [self.options] if wanted else []

        def before_retry(granted: Sequence[Any]) -> None:
            self._release(granted)
            with self._lock:
                running = [self._running.get(lease.lease_id) for lease in leases]
            for one in running:
                if one is not None:
                    one.alive.remove_limit()

        done = settle_with_retry(self.ledger, commands, also, self._over, before_retry)
        if done is None:
            names = ", ".join(lease.lease_id for lease in leases)
            _log.warning("lease %s could not be settled: it is left to expire", names)
        return done

    def _note_failure(self, lease: Lease, error: Exception) -> None:
        with self._lock:
            self.summary.failed += 1
        if self.policy.on_error == "raise":
            raise error
        limit = self.ledger.last_settings.max_delivery_attempts
        held = describe_held(lease._deliveries(), limit)
        _log.exception("group %s: the handler failed with %s", self.ledger.name, held)

    def _settle(self, lease: Lease, result: list[MessageVerdict] | Exception) -> Lease | None:
        """Settle a lease's verdicts and rest, and return the next lease."""
        unsettled = {lease.lease_id: lease._held.unsettled()}
        commands = commands_for(result, self.policy, unsettled)
        if not commands:
            return None  # the next lease has nothing to share a commit with
        if lease._has_ended():
            text = "group %s: lease %s reached max_lease_duration. Its handler's verdict is refused"
            _log.warning(text, self.ledger.name, lease.lease_id)
            return None
        done = self._commit([lease], commands, more=True)
        if done is None:
            return None
        outcomes, granted = done
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
        self._verdicts.add(commands, outcomes)
        if isinstance(result, Exception):
            done = zip(commands, outcomes, strict=True)
            log_outcomes(self.ledger.name, self.ledger.now(), done)
        try:
            summarize([lease.lease_id] * len(outcomes), outcomes)
        except LeaseLost as lost:
            _log.warning("a lease lost messages, which are redelivered: %s", lost)

    def _take_next(self, granted: Sequence[Grant | Exception]) -> Lease | None:
        """Return the lease that a settle granted. After an error :meth:`_next` tries again."""
        for acquired in granted:
            if isinstance(acquired, Grant):
                return self._take(acquired)
        return None

    def _release(self, granted: Sequence[Grant | Exception]) -> None:
        """Release the lease that came with a settle that failed."""
        for acquired in granted:
            if isinstance(acquired, Grant) and acquired.ranges:
                with contextlib.suppress(SparkMQError):
                    Lease(self.ledger, self.options.worker_id, acquired).release()

    def _count(self, verb: str, messages: int) -> None:
        with self._lock:
            self.summary.count(verb, messages)
