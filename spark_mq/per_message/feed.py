"""Lease messages of one group for handlers, and settle them together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.commands import Command
from spark_mq.ledger.settle import ACK, NACK, RELEASE, SettleCommand, SettleOutcome
from spark_mq.message import ReceivedMessage
from spark_mq.operations.acquire import wait_for_lease
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.outages import OUTAGES
from spark_mq.per_message.commit import FeedCommits
from spark_mq.per_message.decisions import MessageEnd, commands_for_ends
from spark_mq.per_message.demand import LeaseDemand
from spark_mq.per_message.handler_ends import HandlerEnds
from spark_mq.per_message.keeper import LeaseKeeper
from spark_mq.per_message.lanes import LaneChains, lanes_of
from spark_mq.per_message.pool import Pool
from spark_mq.per_message.state import FeedOptions, WorkState
from spark_mq.per_message.task import HeldLease, MessageTask
from spark_mq.util.notifier import Notifier
from spark_mq.worker_loop import has_ended

__all__ = ["GroupFeed"]

_log = logging.getLogger("spark_mq.worker")


@dataclass(eq=False)
class GroupFeed:
    """Leases messages of one group for a pool, and settles finished ones."""

    ledger: GroupLedger
    handler: Callable[[ReceivedMessage], Any]
    options: FeedOptions
    pool: Pool
    state: WorkState
    keeper: LeaseKeeper = field(init=False)
    _demand: LeaseDemand = field(init=False)
    _ends: HandlerEnds = field(init=False)
    _commits: FeedCommits = field(init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _wake: Notifier = field(default_factory=Notifier)
    _chains: LaneChains[MessageTask] = field(default_factory=LaneChains)
    _unclaimed: dict[MessageTask, None] = field(default_factory=dict)
    _running: dict[MessageTask, None] = field(default_factory=dict)
    _done: list[tuple[MessageTask, MessageEnd]] = field(default_factory=list)
    _settle_at: float = 0.0  # when to settle what is done, also without more
    _idle: bool = False  # no feed had anything to do at the last look
    _seen: int = 0

    def __post_init__(self) -> None:
        options = self.options
        self._acks_first = options.policy.ack == "on_receive"
        self.keeper = LeaseKeeper(self.ledger, options.limit, self._end_lease)
        self._demand = LeaseDemand(options, self.pool)
        self._ends = HandlerEnds(self.ledger, options.policy, self.state)
        self._commits = FeedCommits(self.ledger, options, self.state, self.keeper)
        self.state.add(self)

    # -- in the feed's thread

    def run(self) -> None:
        """Lease and settle until the work ends."""
        try:
            while not self.state.stop.is_set():
                if self._settle_now():
                    self._settle(more=True)
                elif self._wanted():
                    self._lease()
                else:
                    self._wait()
            self._finish()
        except BaseException as error:
            self.state.fail(error)
        finally:
            self.keeper.stop()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._wake.notify()

    def unfinished(self) -> int:
        """Return how many messages wait for a handler or are with one."""
        return len(self._unclaimed) + len(self._running)

    def running(self) -> list[tuple[str, float]]:
        """Return what the handlers have, and since when in monotonic seconds."""
        with self._changed:
            return [
                (f"message {task.message.sequence} of group {self.ledger.name}", task.started)
                for task in self._running
            ]

    def _wanted(self) -> int:
        return self._demand.wanted(self.unfinished(), self._chains)

    def _settle_now(self) -> bool:
        with self._changed:
            if not self._done:
                return False
            full = len(self._done) >= self.options.lease.max_messages
            wants_more = not self._demand.dry and self._wanted() > 0
            late = time.monotonic() >= self._settle_at or self._chains.paused
            return full or wants_more or late or not self.unfinished()

    def _wait(self) -> None:
        with self._changed:
            if not self._done:
                self._changed.wait(self.options.poll)
            elif (left := self._settle_at - time.monotonic()) > 0:
                self._changed.wait(left)

    def _lease(self) -> None:
        """Wait for messages and lease them. A result that has to be settled ends the wait."""
        self._seen = self.state.activity()
        try:
            acquired = wait_for_lease(
                self.ledger, self._lease_options(), self._time_left, self.options.poll, self._wake
            )
        except OUTAGES as error:
            _log.warning("could not lease, trying again: %s", error)
            self.state.stop.wait(self._ends.count_outage())
            return
        self._demand.note_look(bool(acquired.ranges or acquired.unfinished))
        if acquired.ranges:
            self._take(acquired)
        elif self._idle and self._demand.dry:
            self.state.finish()

    def _lease_options(self) -> Acquire:
        return replace(self.options.lease, max_messages=max(1, self._wanted()))

    def _time_left(self) -> float:
        """Return the seconds for which a wait for messages may go on."""
        self._demand.dry, self._idle, seen = True, False, self._seen
        if self.state.stop.is_set():
            return -1.0
        with self._changed:
            if self._done:
                return self._settle_at - time.monotonic() if self.unfinished() else -1.0
            if self.unfinished() or self.options.until is None:
                return float("inf")
        ended = has_ended(self.ledger, self.options.until)
        self._idle = ended and self.state.all_idle(self, seen)
        self._seen = self.state.activity()
        return 0.0 if self._idle else float("inf")

    def _take(self, acquired: Grant) -> None:
        """Give the messages of a lease to the pool."""
        lease = Lease(self.ledger, self.options.lease.worker_id, acquired)
        self.state.note_activity()
        with self.state.lock:
            self.state.summary.leases += 1
        self.keeper.add(lease)
        if self._acks_first and not self._ack_first(lease):
            return
        try:
            messages = lease.messages
        except OUTAGES as error:  # the lease was released, uncounted
            self.keeper.remove(lease.lease_id)
            self.state.stop.wait(self._ends.note_outage(error))
            return
        if not messages:
            self.keeper.remove(lease.lease_id)
            return
        held = HeldLease(lease, len(messages))
        tasks = [MessageTask(self, held, message) for message in messages]
        lanes = lanes_of(self.ledger, acquired.ranges)
        with self._changed:
            self._unclaimed.update(dict.fromkeys(tasks))
            for task in tasks:
                lane = lanes.get(task.message.sequence)
                if lane is None or self._chains.add(lane, task):
                    self.pool.submit(task)

    def _ack_first(self, lease: Lease) -> bool:
        """Ack before a handler gets the messages. Return whether it may have them."""
        command = SettleCommand(ACK, lease.lease_id, lease._held.unsettled(), whole=True)
        done = self._commits.settle([command])
        self.keeper.remove(lease.lease_id)
        return done is not None and done[0][0].settled == len(lease)

    # -- in the pool's threads

    def claim(self, task: MessageTask) -> bool:
        with self._changed:
            if task not in self._unclaimed:
                return False
            if self.state.stop.is_set() and not self._acks_first:
                self._changed.notify_all()  # the feed releases it
                return False
            del self._unclaimed[task]
            if not self._acks_first and task.has_expired(self.ledger.now()):
                self._add_done(task, MessageEnd(None))
                self._advance_lane(task)
                return False
            task.started = time.monotonic()
            self._running[task] = None
        return True

    def finish(self, task: MessageTask, result: Any, error: BaseException | None) -> float:
        seconds, pause = time.monotonic() - task.started, 0.0
        if not self._acks_first and task.held.lease._has_ended():
            self._end_lease(task.held.lease)
        with self._changed:  # or the pool would count it as given up after it has returned
            if task not in self._running:
                return 0.0  # its lease has ended, or it was given back after a second Ctrl-C
        try:
            end, pause = self._ends.end_of(task, result, error)
        except BaseException as wrong:
            self.state.fail(wrong)
            end = MessageEnd(None)
        with self._changed:
            if task not in self._running:
                return 0.0
            del self._running[task]
            self._demand.note_duration(seconds)
            self._demand.failed = end.verb == NACK or end.handler_failed
            if end.verb in (NACK, RELEASE):
                self._chains.pause(task)
            else:
                self._advance_lane(task)
            self._add_done(task, end)
        return pause

    def _end_lease(self, lease: Lease) -> None:
        """Let the messages that handlers have of a lease expire, and release those of nobody."""
        with self._changed:
            self._take_back(self._unclaimed, RELEASE, lease)
            running = self._take_back(self._running, None, lease)
            for task in running:
                self.pool.give_up(task)
        self._ends.log_end(lease.lease_id, len(running))

    def _take_back(
        self, tasks: dict[MessageTask, None], verb: str | None, lease: Lease | None = None
    ) -> list[MessageTask]:
        """End the tasks of one lease, or all, without their handlers. Return them."""
        found = [task for task in tasks if lease is None or task.held.lease is lease]
        for task in found:
            del tasks[task]
            self._advance_lane(task)
            self._add_done(task, MessageEnd(verb))
        return found

    def _advance_lane(self, task: MessageTask) -> None:
        if (following := self._chains.remove(task)) is not None:
            self.pool.submit(following)

    def _add_done(self, task: MessageTask, end: MessageEnd) -> None:
        """Add a finished message. Wake the feed if it may have to settle."""
        if not self._done:
            self._settle_at = time.monotonic() + self.options.settle_delay
        if self._chains.paused:
            self._settle_at = 0.0
        self._done.append((task, end))
        self._changed.notify_all()
        if len(self._done) == 1 or self._chains.paused or not self.unfinished():
            self._wake.notify()

    def _settle(self, *, more: bool) -> None:
        """Settle what is done, and lease more in the same commit."""
        with self._changed:
            done, self._done = self._done, []
        done = self._ends.resolve_doubts(done)
        ended = [(task.lease_id, task.message.sequence, end) for task, end in done]
        commands = [] if self._acks_first else commands_for_ends(ended)
        also = self._more_leases if more else list[Command[Grant]]
        committed = self._commits.settle(commands, also) if commands else ([], [])
        self.state.note_activity()
        if committed and len(self._chains):
            self._drop_returned(commands, committed[0])
        for task, _ in done:
            self._drop_task(task)
        for acquired in committed[1] if committed else ():
            if isinstance(acquired, Grant):
                self._demand.note_look(bool(acquired.ranges))
                if acquired.ranges:
                    self._take(acquired)
            else:
                self._demand.dry = False

    def _drop_task(self, task: MessageTask) -> None:
        """Remove a message from its lease, and let its lane go on."""
        with self._changed:
            self._advance_lane(task)
        task.held.messages -= 1
        if not task.held.messages:
            self.keeper.remove(task.lease_id)

    def _drop_returned(
        self, commands: Sequence[SettleCommand], outcomes: Sequence[SettleOutcome]
    ) -> None:
        """Drop unclaimed messages that came back with an earlier one of their key."""
        returned = {
            (command.lease_id, first, last)
            for command, outcome in zip(commands, outcomes, strict=True)
            for first, last in outcome.returned
        }
        if not returned:
            return
        with self._changed:
            lost = [task for task in self._unclaimed if task.is_among(returned)]
            for task in lost:
                del self._unclaimed[task]
        for task in lost:
            self._drop_task(task)
        self.state.count(RELEASE, len(lost))

    def _more_leases(self) -> list[Command[Grant]]:
        """Return the lease to commit with a settle, if there is room."""
        wanted = not self.state.stop.is_set() and self._wanted() > 0
        return [self._lease_options()] if wanted else []

    def _finish(self) -> None:
        """Release unclaimed messages, and settle those that finish in time."""
        if self._chains.paused:
            self._settle(more=False)  # it gives some messages back
        with self._changed:
            if not self._acks_first:  # or a handler must get them
                self._take_back(self._unclaimed, RELEASE)
        while not self.state.over.is_set():
            self._settle(more=False)
            with self._changed:
                if not self._done and not self.unfinished():
                    return
                if not self._done:
                    self._changed.wait(self.options.poll)
        if self.state.hurried:
            with self._changed:
                self._take_back(self._running, RELEASE)
            self._settle(more=False)
        elif running := len(self._running):
            _log.warning("%d handlers still run: their messages are left to expire", running)
