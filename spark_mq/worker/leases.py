"""Hold, extend and settle the leases of a feed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from spark_mq.errors import LeaseLost, SparkMQError
from spark_mq.handler import log_outcomes
from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.settle import ACK, REJECT, Settle, SettleOutcome, SettlePart
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.keep_alive import KeepAlive
from spark_mq.operations.outages import OUTAGES, outage_pause
from spark_mq.operations.settle import extend, summarize
from spark_mq.operations.work_report import VerdictLog, isolation_text
from spark_mq.util.error_shape import recent_error_shape
from spark_mq.util.failures import exc_info
from spark_mq.util.show import show_count
from spark_mq.worker.decisions import Verdict
from spark_mq.worker.pools import Pool
from spark_mq.worker.state import WorkState, has_ended
from spark_mq.worker.tasks import Done, Task, WorkerLease

_log = logging.getLogger("spark_mq.worker")

_MAX_SHAPES: Final = 100  # errors of which a worker logs a traceback
_MAX_PAUSE: Final = 5.0  # seconds between two tries to settle, while its lease may expire

ExtraAcquires = Callable[[], Sequence[Acquire]]  # the leases that a commit may add


class HeldLeases:
    """The leases of a feed, extended until their tasks are settled.

    `on_end` gets each that expires after its longest duration, `limit` in microseconds.
    """

    def __init__(
        self, ledger: GroupLedger, limit: int, on_end: Callable[[WorkerLease], None]
    ) -> None:
        self._ledger, self._limit, self._on_end = ledger, limit, on_end
        self._keep_alive = KeepAlive(self._extend, self._end_at_limit)
        self._lock = threading.Lock()
        self._leases: dict[str, WorkerLease] = {}
        self._unlimited: dict[str, WorkerLease] = {}  # extended without a limit, in an outage

    def add(self, lease: WorkerLease) -> None:
        with self._lock:
            self._leases[lease.lease_id] = lease
        timeout = lease.limit_extensions(self._limit)
        self._keep_alive.add(lease.lease_id, timeout, self._limit)

    def open(self, lease: WorkerLease, tasks: int) -> None:
        """Hold a lease until so many tasks are closed."""
        lease.open_tasks = tasks
        if not tasks:
            self.remove(lease)

    def close(self, leases: Iterable[WorkerLease]) -> None:
        """Close one task of each lease given. The last one of a lease ends its extensions."""
        ended = list[WorkerLease]()
        with self._lock:
            for lease in leases:
                lease.open_tasks -= 1
                if lease.open_tasks <= 0:
                    ended.append(lease)
        for lease in ended:
            self.remove(lease)

    def remove(self, lease: WorkerLease) -> None:
        self.stop_extending(lease)
        with self._lock:
            self._leases.pop(lease.lease_id, None)

    def stop_extending(self, lease: WorkerLease) -> None:
        self._keep_alive.remove(lease.lease_id)

    def remove_limit(self, leases: Iterable[WorkerLease]) -> None:
        """Extend leases without a limit, because finished tasks wait for a failing store."""
        kept = {lease.lease_id: lease for lease in leases}
        with self._lock:
            self._unlimited.update(kept)
        for lease in kept.values():
            lease.limit_extensions(None)
        self._keep_alive.set_limit(kept, None)

    def restore_limits(self) -> None:
        """Limit the leases that an outage has left, each for the whole duration from now."""
        if not self._unlimited:
            return
        with self._lock:
            leases, self._unlimited = self._unlimited, {}
        for lease in leases.values():
            lease.limit_extensions(self._limit)
        self._keep_alive.set_limit(leases, self._limit)

    def stop(self) -> None:
        """Stop. No extension starts after this returns."""
        self._keep_alive.stop()

    def _extend(self, lease_ids: Sequence[str], timeout: int) -> None:
        _, deadline = extend(self._ledger, lease_ids, timeout)
        with self._lock:
            held = [self._leases[name] for name in lease_ids if name in self._leases]
        for lease in held:
            lease.held.move_deadline(deadline)

    def _end_at_limit(self, lease_id: str) -> None:
        """End the tasks of a lease if it has ended. Then the feed removes it."""
        lease = self._leases.get(lease_id)
        if lease is not None and lease.has_ended():
            self._on_end(lease)


class FeedCommits:
    """Commits the settles of a feed, logs and counts them, and calls `wait_on` before a retry."""

    def __init__(
        self,
        ledger: GroupLedger,
        worker_id: str,
        state: WorkState,
        wait_on: Callable[[Sequence[WorkerLease]], None],
    ) -> None:
        self._ledger, self._worker_id = ledger, worker_id
        self._state, self._wait_on = state, wait_on
        self._shapes = set[tuple[str, bool]]()  # of the errors whose tracebacks were logged
        self._isolates = False  # whether the feed has had suspects lately
        self._verdict_log = VerdictLog(ledger.name, isolation=self._isolation)

    def settle(
        self,
        parts: Sequence[SettlePart],
        leases: Sequence[WorkerLease],
        extra_acquires: ExtraAcquires = list,
        *,
        failed: bool = False,
    ) -> tuple[list[SettleOutcome], list[Any]] | None:
        """Settle messages of leases, and lease more in the same commit. Retry in an outage.

        Return the outcomes, and the grants or errors of the leases, or None if the work ends.
        """
        settle, failures = Settle(tuple(parts)), 0
        while True:
            acquires = [] if failures else list(extra_acquires())  # none while the store fails
            outcomes, granted = self._try(settle, acquires)
            if not isinstance(outcomes, Exception):
                held = {lease.lease_id: lease for lease in leases}
                for part, outcome in zip(parts, outcomes, strict=True):
                    held[part.lease_id].held.mark_settled(outcome.ranges)
                self._note(parts, outcomes, failed)
                return outcomes, granted
            for grant in granted:
                if isinstance(grant, Grant) and grant.ranges:
                    self.give_back(self.lease_of(grant))
            self._wait_on(leases)
            if not isinstance(outcomes, OUTAGES):
                raise outcomes
            pause, failures = outage_pause(failures, _MAX_PAUSE), failures + 1
            _log.warning("could not settle, trying again in %.1f s: %s", pause, outcomes)
            if self._state.over.wait(pause):
                _log.warning("some messages could not be settled: their leases are left to expire")
                return None

    def _try(self, settle: Settle, acquires: Sequence[Acquire]) -> tuple[Any, list[Any]]:
        """Return the result or error of each command. An error of the store is that of all."""
        try:
            outcomes, *granted = self._ledger.committer.run([settle, *acquires])
        except OUTAGES as error:
            return error, []
        return outcomes, granted

    def ack_all(self, lease: WorkerLease, extra_acquires: ExtraAcquires) -> tuple[bool, list[Any]]:
        """Ack a lease before its handler, and lease more in the same commit.

        The lease keeps what was acked, because another one may have the rest. Return whether that
        is anything, and the grants or errors of the other leases.
        """
        part = SettlePart(ACK, lease.lease_id, lease.held.unsettled())
        if (done := self.settle([part], [lease], extra_acquires)) is None:
            return False, []
        (outcome,), granted = done
        if outcome.settled < len(lease):
            lease.keep_only(outcome.ranges)
        return outcome.settled > 0, granted

    def watch(self, lease: WorkerLease) -> None:
        """Log and count what a handler settles itself."""
        lease.held.on_settle = self._note_own

    def _note_own(self, part: SettlePart, outcome: SettleOutcome) -> None:
        self._state.count(part.verb, outcome.settled)
        self._verdict_log.add([part], [outcome])

    def lease_of(self, grant: Grant) -> WorkerLease:
        return WorkerLease(self._ledger, self._worker_id, grant)

    def note_suspects(self, lease: WorkerLease) -> None:
        """Log how far the isolation is if the feed has a lease of suspects for the first time."""
        if self._isolates or not lease.is_suspect:
            return
        self._isolates = True
        text, name = isolation_text([self._ledger]), self._ledger.name
        shown = f"leased {show_count(len(lease), 'message')} of a lease that failed"
        _log.info("group %s: %s", name, ", ".join([shown, text] if text else [shown]))

    def _isolation(self) -> str:
        """Return how far the isolation is. Without suspects lately, the store is not asked."""
        text = isolation_text([self._ledger]) if self._isolates else ""
        self._isolates = bool(text)
        return text

    def give_back(self, lease: WorkerLease) -> None:
        """Release a lease of which no handler got anything."""
        try:
            lease.release()
        except (SparkMQError, *OUTAGES) as error:
            _log.warning("a lease could not be released and will expire: %s", error)

    def note_ends(self, done: Sequence[Done]) -> None:
        """Hear of tasks that have ended, before they are settled."""

    def note_failure(self, task: Task, verdict: Verdict, failure: Exception) -> None:
        """Count and log the failure of a handler."""
        self._state.count("failed")
        limit = self._ledger.last_settings.max_delivery_attempts
        ends = verdict.verb in (ACK, REJECT) or task.is_last_attempt(limit)
        shape = recent_error_shape(verdict.error or ""), ends
        first = shape not in self._shapes and len(self._shapes) < _MAX_SHAPES
        if first:
            self._shapes.add(shape)
        failed = task.describe(limit)
        text = "group %s: the handler failed with %s"
        # One traceback for each kind of error. The line of the verdicts counts the others. A
        # failure that is retried is ordinary, so only one that ends a message is a warning.
        level = (logging.WARNING if ends else logging.INFO) if first else logging.DEBUG
        if _log.isEnabledFor(level):
            _log.log(level, text, self._ledger.name, failed, exc_info=exc_info(failure))

    def note_hang(self, pool: Pool, limit: str) -> None:
        """Hear that all handlers of a pool have exceeded their time limit."""
        text = "group %s: all handlers have exceeded their time limit of %s and still run. "
        text += "Nothing is leased until one of them returns"
        _log.warning(text, self._ledger.name, limit)

    def has_ended(self, until: str) -> bool:
        return has_ended(self._ledger, until)

    def is_ready(self) -> bool:
        return self._ledger.stats().ready > 0

    def flush_log(self) -> None:
        self._verdict_log.flush()

    def _note(
        self,
        parts: Sequence[SettlePart],
        outcomes: Sequence[SettleOutcome],
        failed: bool,
    ) -> None:
        settled = list(zip(parts, outcomes, strict=True))
        for part, outcome in settled:
            self._state.count(part.verb, outcome.settled)
        if self._verdict_log.add(parts, outcomes) and failed:
            log_outcomes(self._ledger.name, self._ledger.now(), settled)
        try:
            summarize([part.lease_id for part in parts], outcomes)
        except LeaseLost as lost:
            _log.warning("some leases lost messages, which are redelivered: %s", lost)


def returned_places(
    parts: Sequence[SettlePart], outcomes: Sequence[SettleOutcome]
) -> set[tuple[str, int, int]]:
    """Return the messages that came back with an earlier one of their key, by lease."""
    return {
        (part.lease_id, first, last)
        for part, outcome in zip(parts, outcomes, strict=True)
        for first, last in outcome.returned
    }
