"""Lease messages of one group for handlers, and settle them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from spark_mq.errors import HandlerTimeout
from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.settle import RELEASE, SettleOutcome, SettlePart
from spark_mq.operations.acquire import default_poll, wait_for_lease
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import OUTAGES, Refusals
from spark_mq.util.show import show_count, show_duration
from spark_mq.util.user import worker_label
from spark_mq.worker.decisions import Verdict
from spark_mq.worker.leases import ExtraAcquires, FeedCommits, HeldLeases, returned_places
from spark_mq.worker.open_tasks import Demand, OpenTasks
from spark_mq.worker.pools import Pool
from spark_mq.worker.state import WorkState
from spark_mq.worker.tasks import Done, Task, TaskOptions, Tasks, Verdicts, WorkerLease

_log = logging.getLogger("spark_mq.worker")


class _TimeLimit:
    """Calls `on_late`, in a thread of its own, with each task that runs for too long."""

    # `oldest` returns the running task that began first, or None. Without seconds, none is late.

    def __init__(
        self,
        seconds: float | None,
        oldest: Callable[[], Task | None],
        on_late: Callable[[Task, HandlerTimeout], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._seconds = float("inf") if seconds is None else seconds
        self._oldest, self._on_late, self._fail = oldest, on_late, fail
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark_mq time limit", daemon=True)

    def start(self) -> None:
        if self._seconds < float("inf"):
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        try:
            while True:
                task = self._oldest()
                # A task that begins meanwhile cannot be late before.
                since = time.monotonic() if task is None else task.started
                if self._ended.wait(max(0.0, since + self._seconds - time.monotonic())):
                    return
                if task is not None:
                    self._on_late(task, self._error(task))
        except BaseException as error:
            self._fail(error)

    def _error(self, task: Task) -> HandlerTimeout:
        limit = timedelta(seconds=self._seconds)
        text = f"the handler of {task} exceeded its time limit of {show_duration(limit)}"
        return HandlerTimeout(text, timeout=limit)


class GroupFeed:
    """Leases messages of one group for a pool, and settles finished tasks.

    Its own thread leases. It also settles, unless the thread of a handler settles its task and
    leases the next one in the same commit.
    """

    def __init__(
        self,
        ledger: GroupLedger,
        tasks: Tasks,
        options: TaskOptions,
        pool: Pool,
        state: WorkState,
        *,
        commits: type[FeedCommits] = FeedCommits,
    ) -> None:
        self.ledger, self.worker = ledger, worker_label(options.lease.worker_id) or ""
        self._tasks, self._options, self._pool, self._state = tasks, options, pool, state
        self._acks_first = options.policy.ack == "on_receive"
        # Messages that were acked first are lost with their process.
        may_prefetch = not (tasks.settles_alone or self._acks_first)
        most = pool.concurrency if tasks.settles_alone else options.lease.max_messages
        self._poll = default_poll(ledger) if options.poll is None else options.poll
        self._demand = Demand(most, self._poll, may_prefetch=may_prefetch)
        self._held = HeldLeases(ledger, options.limit, self._end_lease)
        self._commits = commits(ledger, self.worker, state, self._wait_for_store)
        self._verdicts = Verdicts(ledger, tasks, options.policy, state, self._commits.note_failure)
        self._open = OpenTasks(pool, self._demand, options.linger)
        self._idle = False  # when it last looked, no feed had anything to do
        self._seen = 0
        self._time_limit = _TimeLimit(
            options.timeout, self._open.oldest, self._end_late, state.fail
        )
        self._refusals = Refusals(ledger)
        state.add(self._open.changed)

    # -- in the feed's thread

    def run(self) -> None:
        """Lease and settle until the work ends."""
        try:
            self._time_limit.start()
            while not self._state.stop.is_set():
                if self._open.must_settle():
                    # A settle of this thread leases nothing for a thread that still has a lease.
                    self._settle(self._open.take_done(), more=not self._tasks.settles_alone)
                elif self._open.wanted():
                    self._lease()
                else:
                    if not self._pool.concurrency and self._is_nothing_left():
                        self._state.finish()  # all handlers hang, and need not return
                    self._open.wait(self._poll)
            self._finish()
        except BaseException as error:
            self._state.fail(error)
        finally:
            self._time_limit.stop()
            self._held.stop()
            self._commits.flush_log()

    def running(self) -> list[tuple[str, float]]:
        """Return what the handlers have, and since when in monotonic seconds."""
        return [(str(task), task.started) for task in self._open.running()]

    def is_busy(self) -> bool:
        """Return whether a handler has a message, or gets one soon."""
        return self._open.is_busy()

    def _lease(self) -> None:
        """Wait for messages and lease them. A result that has to be settled ends the wait."""
        self._seen = self._state.activity()
        command = self._tasks.lease_command(self._open.wanted())
        try:
            wake = self._open.changed
            note, give_up = partial(self._state.note_look, wake), self._refusals.give_up
            left, poll = self._time_left, self._poll
            grant = wait_for_lease(
                self.ledger, command, left, poll, wake, on_try=note, give_up=give_up
            )
        except OUTAGES as error:
            if self._refusals.give_up(error):
                raise
            _log.warning("could not lease, trying again: %s", error)
            self._state.pause(self._verdicts.count_outage())
            return
        self._take([grant], self._leases_for_idle)
        if self._idle and not grant.ranges:
            self._state.finish()

    def _time_left(self) -> float:
        self._demand.dry, self._idle, seen = True, False, self._seen
        if self._state.stop.is_set():
            return -1.0
        if (left := self._open.time_left()) is not None:
            return left
        if self._options.until is None:
            return float("inf")
        ended = self._commits.has_ended(self._options.until)
        self._idle = ended and self._state.all_idle(self._open.changed, seen)
        self._seen = self._state.activity()
        return 0.0 if self._idle else float("inf")

    def _is_nothing_left(self) -> bool:
        """Return whether the work ends by its option ``until``, without a try to lease."""
        return self._time_left() == 0.0 and not self._commits.is_ready()

    def _finish(self) -> None:
        """Release unclaimed tasks, and settle those that finish in time."""
        if self._open.has_paused_lane():
            self._settle(self._open.take_done(), more=False)  # it gives some messages back
        if not self._acks_first:  # or a handler must get them
            self._open.release()
        while not self._state.over.is_set():
            self._settle(self._open.take_done(), more=False)
            if self._open.is_empty():
                return
            self._open.wait(self._poll)
        if self._state.hurried:
            self._open.release(running=True)
            self._settle(self._open.take_done(), more=False)
            while self._open.is_settling():
                self._open.wait(self._poll)
        elif running := len(self._open.running()):
            text = "running after shutdown_timeout: %s. The messages are left to expire"
            _log.warning(text, show_count(running, "handler"))

    # -- leases

    def _take(self, granted: Sequence[Any], extra_acquires: ExtraAcquires = list) -> bool:
        """Give the tasks of leases to the pool. Return whether there are any."""
        # The commit of an ack before the handler adds the leases of `extra_acquires`.
        taken, waiting = False, deque(granted)
        while waiting:
            grant = waiting.popleft()
            if not isinstance(grant, Grant):
                self._demand.dry = False  # the feed's thread tries again
                continue
            self._demand.note_try(bool(grant.ranges or grant.unfinished))
            if grant.ranges:
                taken |= self._take_lease(self._commits.lease_of(grant), extra_acquires, waiting)
        return taken

    def _take_lease(
        self, lease: WorkerLease, extra_acquires: ExtraAcquires, waiting: deque[Any]
    ) -> bool:
        if self._state.stop.is_set():
            self._commits.give_back(lease)
            return False
        self._state.count("leases")
        self._held.add(lease)
        self._commits.note_suspects(lease)
        acked = True
        if self._acks_first:
            acked, granted = self._commits.ack_all(lease, extra_acquires)
            waiting.extend(granted)
            self._held.stop_extending(lease)
        tasks = self._tasks_of(lease) if acked else []
        self._commits.watch(lease)
        self._held.open(lease, len(tasks))
        self._open.add(tasks)
        return bool(tasks)

    def _tasks_of(self, lease: WorkerLease) -> list[tuple[Task, int | None]]:
        """Return the tasks of a lease, or none if no handler can have them."""
        try:
            return self._tasks.of_lease(self, lease)
        except OUTAGES as error:  # the lease was released, uncounted
            self._state.pause(self._verdicts.note_outage(error))
            return []

    def _end_lease(self, lease: WorkerLease) -> None:
        """Let the tasks that handlers have of a lease expire, and release those of nobody."""
        if running := self._open.end_lease(lease):
            text = "group %s: lease %s reached max_lease_duration during %s. The verdicts are "
            text += "refused, and the messages expire"
            _log.warning(text, self.ledger.name, lease.lease_id, show_count(running, "handler"))

    # -- in the thread of the time limit

    def _end_late(self, task: Task, error: HandlerTimeout) -> None:
        """Let a task fail that exceeds the time limit, and refuse what its handler returns."""
        if not self._open.give_up(task):
            return
        if not self._pool.concurrency:
            self._commits.note_hang(self._pool, show_duration(error.data["timeout"]))
        verdict, _ = self._verdict_of(task, None, error)
        self._open.end_late(task, verdict)  # the feed's thread settles it

    # -- in the pool's threads

    def claim(self, task: Task) -> bool:
        if self._acks_first:
            return self._open.claim(task, None)
        if self._state.stop.is_set():
            self._open.changed.set()  # the feed releases it
            return False
        return self._open.claim(task, self.ledger.now())

    def finish(self, task: Task, result: Any, error: BaseException | None) -> float:
        if not self._acks_first and task.lease.has_ended():
            self._end_lease(task.lease)
        if not self._open.is_running(task):
            return 0.0  # its lease has ended, or it was given back after a second Ctrl-C
        verdict, pause = self._verdict_of(task, result, error)
        alone = self._tasks.settles_alone and not self._state.over.is_set()
        if not self._open.finish(task, verdict, alone=alone):
            return 0.0
        if not alone:
            return pause
        self._settle_alone(task, verdict, pause)
        return 0.0

    def _verdict_of(
        self, task: Task, result: Any, error: BaseException | None
    ) -> tuple[Verdict, float]:
        """Return the verdict of a task, and the seconds to pause. End the work if it must end."""
        try:
            return self._verdicts.of(task, result, error)
        except BaseException as wrong:
            self._state.fail(wrong)
            return Verdict(None), 0.0

    def _settle_alone(self, task: Task, verdict: Verdict, pause: float) -> None:
        """Settle a task in the thread of its handler, and lease the next one."""
        taken = False
        try:
            taken = self._settle([(task, verdict)], more=not pause)
            if pause:
                self._state.pause(pause)
        except BaseException as error:
            self._state.fail(error)
        finally:
            self._open.end_alone()
            if not taken:
                self._open.changed.set()

    # -- settles

    def _settle(self, done: Sequence[Done], *, more: bool) -> bool:
        """Settle tasks, and lease more in the same commit. Return whether that gave tasks."""
        done = self._verdicts.without_suspicion(done)
        self._commits.note_ends(done)
        leases = list({task.lease.lease_id: task.lease for task, _ in done}.values())
        parts, granted = self._tasks.parts(done), list[Any]()
        failed = any(verdict.failure is not None for _, verdict in done)
        acquires: ExtraAcquires = self._more_leases if more else list
        committed = self._commits.settle(parts, leases, acquires, failed=failed) if parts else None
        if committed is not None:
            outcomes, granted = committed
            self._drop_returned(parts, outcomes)
        self._state.note_activity()
        self._drop([task for task, _ in done])
        if committed is not None:
            self._held.restore_limits()
        return self._take(granted)

    def _wait_for_store(self, leases: Sequence[WorkerLease]) -> None:
        """Keep the leases whose finished tasks wait for a failing store."""
        self._held.remove_limit([*leases, *self._open.done_leases()])

    def _more_leases(self) -> list[Acquire]:
        """Return the lease that a settle may add, if there is room."""
        return self._leases_for(1 if self._tasks.settles_alone else self._open.wanted())

    def _leases_for_idle(self) -> list[Acquire]:
        """Return the lease that the ack of one before its handler may add, for another thread."""
        return self._leases_for(self._open.wanted() - 1 if self._tasks.settles_alone else 0)

    def _leases_for(self, wanted: int) -> list[Acquire]:
        may_lease = wanted > 0 and not self._state.stop.is_set()
        return [self._tasks.lease_command(wanted)] if may_lease else []

    def _drop(self, tasks: Sequence[Task]) -> None:
        """Remove tasks from their leases, and let their lanes go on."""
        self._open.advance_lanes(tasks)
        self._held.close(task.lease for task in tasks)

    def _drop_returned(
        self, parts: Sequence[SettlePart], outcomes: Sequence[SettleOutcome]
    ) -> None:
        """Drop unclaimed messages that came back with an earlier one of their key."""
        lost = self._open.drop_unclaimed(returned_places(parts, outcomes))
        self._drop(lost)
        self._state.count(RELEASE, len(lost))
