"""Lease messages of one group for handlers, and settle them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from spark_mq.errors import HandlerTimeout, SparkMQError
from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.settle import NACK, RELEASE, SettleOutcome, SettlePart
from spark_mq.operations.acquire import wait_for_lease
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import OUTAGES, Refusals
from spark_mq.operations.pauses import default_poll
from spark_mq.util.show import show_count, show_duration
from spark_mq.util.user import worker_label
from spark_mq.worker.decisions import Verdict
from spark_mq.worker.leases import FeedCommits, HeldLeases, More, returned_places
from spark_mq.worker.open_tasks import Demand, OpenTasks
from spark_mq.worker.pools import Pool
from spark_mq.worker.state import WorkState, has_ended
from spark_mq.worker.tasks import Done, Task, TaskOptions, Tasks, Verdicts
from spark_mq.worker.time_limit import TimeLimit

__all__ = ["GroupFeed"]

_log = logging.getLogger("spark_mq.worker")


class GroupFeed:
    """Leases messages of one group for a pool, and settles finished tasks.

    Its own thread leases. It also settles, unless the thread of a handler settles its task and
    leases the next one in the same commit.
    """

    def __init__(
        self, ledger: GroupLedger, tasks: Tasks, options: TaskOptions, pool: Pool, state: WorkState
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
        self._commits = FeedCommits(ledger, self.worker, state, self._wait_for_store)
        self._verdicts = Verdicts(ledger, tasks, options.policy, state)
        self._open = OpenTasks(pool, self._demand, options.linger)
        self._idle = False  # no feed had anything to do at the last look
        self._seen = 0
        self._time_limit: TimeLimit | None = None
        if options.timeout is not None:
            self._time_limit = TimeLimit(options.timeout, self._oldest, self._end_late, state.fail)
        self._refusals = Refusals(self.ledger)
        state.add(self._open.changed)

    # -- in the feed's thread

    def run(self) -> None:
        """Lease and settle until the work ends."""
        try:
            if self._time_limit is not None:
                self._time_limit.start()
            while not self._state.stop.is_set():
                if self._must_settle():
                    # A settle of this thread leases nothing for a thread that still has a lease.
                    self._settle(self._open.take_done(), more=not self._tasks.settles_alone)
                elif self._open.wanted():
                    self._lease()
                else:
                    if not self._pool.concurrency and self._is_nothing_left():
                        self._state.finish()  # all handlers hang, and need not return
                    self._wait()
            self._finish()
        except BaseException as error:
            self._state.fail(error)
        finally:
            if self._time_limit is not None:
                self._time_limit.stop()
            self._held.stop()
            self._commits.flush_log()

    def running(self) -> list[tuple[str, float]]:
        """Return what the handlers have, and since when in monotonic seconds."""
        with self._open.lock:
            return [(str(task), task.started) for task in self._open.running]

    def is_busy(self) -> bool:
        """Return whether a handler has a message, or gets one soon."""
        with self._open.lock:
            return self._open.unfinished > 0

    def _must_settle(self) -> bool:
        with self._open.lock:
            return self._open.must_settle()

    def _wait(self) -> None:
        with self._open.lock:
            until = self._open.settle_at if self._open.done else float("inf")
        self._open.changed.wait(min(max(0.0, until - time.monotonic()), self._poll))
        self._open.changed.clear()  # before the next look, so that no change in between is missed

    def _lease(self) -> None:
        """Wait for messages and lease them. A result that has to be settled ends the wait."""
        self._seen = self._state.activity()
        command = self._tasks.lease_command(self._open.wanted())
        try:
            wake = self._open.changed
            note = partial(self._state.note_look, wake)
            grant = wait_for_lease(
                self.ledger,
                command,
                self._time_left,
                self._poll,
                wake,
                on_try=note,
                give_up=self._refusals.give_up,
            )
        except OUTAGES as error:
            if self._refusals.give_up(error):
                raise
            _log.warning("could not lease, trying again: %s", error)
            self._state.stop.wait(self._verdicts.count_outage())
            return
        self._demand.note_look(bool(grant.ranges or grant.unfinished))
        if grant.ranges:
            self._take([grant], self._leases_for_idle)
        elif self._idle and self._demand.dry:
            self._state.finish()

    def _time_left(self) -> float:
        """Return the seconds for which a wait for messages may go on."""
        self._demand.dry, self._idle, seen = True, False, self._seen
        if self._state.stop.is_set():
            return -1.0
        with self._open.lock:
            if self._open.done:
                return self._open.settle_at - time.monotonic() if self._open.unfinished else -1.0
            if self._open.unfinished or self._options.until is None:
                return float("inf")
        ended = has_ended(self.ledger, self._options.until)
        self._idle = ended and self._state.all_idle(self._open.changed, seen)
        self._seen = self._state.activity()
        return 0.0 if self._idle else float("inf")

    def _is_nothing_left(self) -> bool:
        """Return whether the work ends by its option ``until``, without a try to lease."""
        return self._time_left() == 0.0 and not self.ledger.stats().ready

    def _finish(self) -> None:
        """Release unclaimed tasks, and settle those that finish in time."""
        if self._open.chains.paused:
            self._settle(self._open.take_done(), more=False)  # it gives some messages back
        with self._open.lock:
            if not self._acks_first:  # or a handler must get them
                self._open.take_back(self._open.unclaimed, RELEASE)
        while not self._state.over.is_set():
            self._settle(self._open.take_done(), more=False)
            with self._open.lock:
                ended = not self._open.done and not self._open.unfinished
            if ended:
                return
            self._wait()
        if self._state.hurried:
            with self._open.lock:
                self._open.take_back(self._open.running, RELEASE)
            self._settle(self._open.take_done(), more=False)
            while self._open.settling:
                self._wait()
        elif running := len(self._open.running):
            text = "running after shutdown_timeout: %s. The messages are left to expire"
            _log.warning(text, show_count(running, "handler"))

    # -- leases

    def _take(self, granted: Sequence[Any], also: More = list) -> bool:
        """Give the tasks of leases to the pool. Return whether there are any.

        `also` are leases for the commit of an ack before the handler. They are taken, too.
        """
        taken, waiting = False, deque(granted)
        while waiting:
            grant = waiting.popleft()
            if not isinstance(grant, Grant):
                self._demand.dry = False  # the feed's thread tries again
                continue
            self._demand.note_look(bool(grant.ranges))
            if grant.ranges:
                taken |= self._take_lease(self._commits.lease_of(grant), also, waiting)
        return taken

    def _take_lease(self, lease: Lease, also: More, waiting: deque[Any]) -> bool:
        if self._state.stop.is_set():
            self._commits.give_back(lease)
            return False
        self._state.note_activity()
        self._state.count("leases")
        self._held.add(lease)
        self._commits.note_suspects(lease)
        acked = True
        if self._acks_first:
            acked, granted = self._commits.ack_all(lease, also)
            waiting.extend(granted)
            self._held.stop_extending(lease)
        tasks = self._tasks_of(lease) if acked else []
        if not tasks:
            self._held.remove(lease)
            return False
        self._commits.watch(lease)
        self._held.open(lease, len(tasks))
        self._open.add(tasks)
        return True

    def _tasks_of(self, lease: Lease) -> list[tuple[Task, int | None]]:
        """Return the tasks of a lease, or none if no handler can have them."""
        try:
            return self._tasks.of_lease(self, lease)
        except OUTAGES as error:  # the lease was released, uncounted
            self._state.stop.wait(self._verdicts.note_outage(error))
            return []

    def _end_lease(self, lease: Lease) -> None:
        """Let the tasks that handlers have of a lease expire, and release those of nobody."""
        with self._open.lock:
            self._open.take_back(self._open.unclaimed, RELEASE, lease)
            running = self._open.take_back(self._open.running, None, lease)
            for task in running:
                self._pool.give_up(task)
        if running:
            text = "group %s: lease %s reached max_lease_duration during %s. The verdicts are "
            text += "refused, and the messages expire"
            _log.warning(
                text, self.ledger.name, lease.lease_id, show_count(len(running), "handler")
            )

    # -- in the thread of the time limit

    def _oldest(self) -> Task | None:
        """Return the running task that began first, or None."""
        with self._open.lock:
            return next(iter(self._open.running), None)

    def _end_late(self, task: Task, error: HandlerTimeout) -> None:
        """Let a task fail that exceeds the time limit, and refuse what its handler returns."""
        with self._open.lock:
            if task not in self._open.running:
                return
            del self._open.running[task]  # before its coroutine ends as one that was cancelled
            self._open.settling += 1
            self._pool.give_up(task)
            busy = self._pool.concurrency
        if not busy:
            text = "group %s: all handlers have exceeded their time limit of %s and still run. "
            text += "Nothing is leased until one of them returns"
            _log.warning(text, self.ledger.name, show_duration(error.data["timeout"]))
        verdict, _ = self._verdict_of(task, None, error)
        with self._open.lock:
            self._open.settling -= 1
            self._note_end(task, verdict)
            self._open.add_done(task, verdict)  # the feed's thread settles it

    # -- in the pool's threads

    def claim(self, task: Task) -> bool:
        with self._open.lock:
            if task not in self._open.unclaimed:
                return False
            if self._state.stop.is_set() and not self._acks_first:
                self._open.changed.set()  # the feed releases it
                return False
            del self._open.unclaimed[task]
            if not self._acks_first and task.has_expired(self.ledger.now()):
                self._open.add_done(task, Verdict(None))
                self._open.advance_lane(task)
                return False
            task.started = time.monotonic()  # without the wait for the lock
            self._open.running[task] = None
        return True

    def finish(self, task: Task, result: Any, error: BaseException | None) -> float:
        if not self._acks_first and task.lease._has_ended():
            self._end_lease(task.lease)
        with self._open.lock:  # or the pool would count it as given up after it has returned
            if task not in self._open.running:
                return 0.0  # its lease has ended, or it was given back after a second Ctrl-C
        verdict, pause = self._verdict_of(task, result, error)
        with self._open.lock:
            if task not in self._open.running:
                return 0.0
            del self._open.running[task]
            self._note_end(task, verdict)
            if not self._tasks.settles_alone or self._state.over.is_set():
                self._open.add_done(task, verdict)
                return pause
            self._open.settling += 1
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

    def _note_end(self, task: Task, verdict: Verdict) -> None:
        """Note how a task ended. Its lane goes on, or waits for the settle. The caller locks."""
        seconds = time.monotonic() - task.started
        self._demand.note_end(seconds, failed=verdict.verb == NACK or verdict.handler_failed)
        if verdict.verb in (NACK, RELEASE):
            self._open.chains.pause(task)
        else:
            self._open.advance_lane(task)

    def _settle_alone(self, task: Task, verdict: Verdict, pause: float) -> None:
        """Settle a task in the thread of its handler, and lease the next one."""
        taken = False
        try:
            taken = self._settle([(task, verdict)], more=not pause)
            if pause:
                self._state.stop.wait(pause)
        except BaseException as error:
            self._state.fail(error)
        finally:
            with self._open.lock:
                self._open.settling -= 1
            if not taken:
                self._open.changed.set()

    # -- settles

    def _settle(self, done: Sequence[Done], *, more: bool) -> bool:
        """Settle tasks, and lease more in the same commit. Return whether that gave tasks."""
        done = self._verdicts.without_doubts(done)
        leases = list({task.lease.lease_id: task.lease for task, _ in done}.values())
        parts, granted = self._tasks.parts(done), list[Any]()
        if parts:
            failed = any(verdict.failure is not None for _, verdict in done)
            also: More = self._more_leases if more else list
            if committed := self._commits.settle(parts, leases, also, failed=failed):
                outcomes, granted = committed
                if len(self._open.chains):
                    self._drop_returned(parts, outcomes)
        elif more and self._tasks.settles_alone:
            granted = self._lease_now()
        self._state.note_activity()
        self._drop([task for task, _ in done])
        if parts and committed:
            self._held.restore_limits()
        return self._take(granted)

    def _wait_for_store(self, leases: Sequence[Lease]) -> None:
        """Keep the leases whose finished tasks wait for a failing store."""
        with self._open.lock:
            waiting = [*leases, *(task.lease for task, _ in self._open.done)]
        self._held.remove_limit(waiting)

    def _more_leases(self) -> list[Acquire]:
        """Return the lease that a settle may add, if there is room."""
        return self._leases_for(1 if self._tasks.settles_alone else self._open.wanted())

    def _leases_for_idle(self) -> list[Acquire]:
        """Return the lease that the ack of one before its handler may add, for another thread."""
        return self._leases_for(self._open.wanted() - 1 if self._tasks.settles_alone else 0)

    def _leases_for(self, wanted: int) -> list[Acquire]:
        may_lease = wanted > 0 and not self._state.stop.is_set()
        return [self._tasks.lease_command(wanted)] if may_lease else []

    def _lease_now(self) -> list[Grant]:
        """Lease without a settle to share the commit. After an error the feed's thread leases."""
        try:
            return [
                wait_for_lease(self.ledger, command, lambda: 0.0, self._poll)
                for command in self._more_leases()
            ]
        except (SparkMQError, *OUTAGES):
            return []

    def _drop(self, tasks: Sequence[Task]) -> None:
        """Remove tasks from their leases, and let their lanes go on."""
        with self._open.lock:
            for task in tasks:
                self._open.advance_lane(task)
        self._held.close(task.lease for task in tasks)

    def _drop_returned(
        self, parts: Sequence[SettlePart], outcomes: Sequence[SettleOutcome]
    ) -> None:
        """Drop unclaimed messages that came back with an earlier one of their key."""
        lost = self._open.drop_unclaimed(returned_places(parts, outcomes))
        self._drop(lost)
        self._state.count(RELEASE, len(lost))
