"""Lease messages of one group for a pool of handlers, and settle them together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_mq.errors import LeaseLost, SparkMQError
from spark_mq.handler import log_outcomes
from spark_mq.lease import Lease
from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.settle import ACK, NACK, RELEASE, SettleCommand, SettleOutcome
from spark_mq.message import ReceivedMessage
from spark_mq.operations.acquire import Acquired, LeaseOptions, lease_operation, wait_for_lease
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.outages import OUTAGES, is_outage, outage_pause, settle_patiently
from spark_mq.operations.settle import summarize
from spark_mq.operations.shared_ledger import LedgerOperation
from spark_mq.per_message.decisions import (
    Decision,
    MessageEnd,
    commands_for_ends,
    end_of_error,
    end_of_result,
)
from spark_mq.per_message.keeper import LeaseKeeper
from spark_mq.per_message.lanes import LaneChains, lanes_of
from spark_mq.per_message.pool import Pool
from spark_mq.per_message.state import FeedOptions, WorkState
from spark_mq.per_message.task import HeldLease, MessageTask
from spark_mq.util.notifier import Notifier
from spark_mq.worker_loop import has_ended

__all__ = ["GroupFeed"]

_log = logging.getLogger("spark_mq.worker")

PREFETCH_SECONDS: Final = 1.0
"""A feed leases as many messages as its handlers need for this time, and not more."""
_SMOOTHING: Final = 0.2
"""The share of the newest duration in the average."""


@dataclass(eq=False)
class GroupFeed:
    """Leases messages of one group for a pool, and settles what its handlers have finished."""

    ledger: GroupLedger
    handler: Callable[[ReceivedMessage], Any]
    options: FeedOptions
    pool: Pool
    state: WorkState
    keeper: LeaseKeeper = field(init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _wake: Notifier = field(default_factory=Notifier)
    """Wakes the feed while it waits for messages."""
    _chains: LaneChains[MessageTask] = field(default_factory=LaneChains)
    """The tasks of a group in order, by lane."""
    _unclaimed: dict[MessageTask, None] = field(default_factory=dict)
    _running: dict[MessageTask, None] = field(default_factory=dict)
    _done: list[tuple[MessageTask, MessageEnd]] = field(default_factory=list)
    _settle_at: float = 0.0
    """Settle what is done at this time, also without more."""
    _duration: float | None = None
    """The average time of a handler in seconds."""
    _failed: bool = False
    """The last handler has failed."""
    _dry: bool = False
    """The last look found nothing to lease."""
    _look_at: float = 0.0
    """After a look that found nothing: when to look for other lanes again."""
    _idle: bool = False
    """No feed had anything to do at the last look."""
    _outages: int = 0
    _seen: int = 0
    """The activity before the last look."""

    def __post_init__(self) -> None:
        self.keeper = LeaseKeeper(self.ledger, self.options.limit)
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
        """Wake the feed's thread, because the work ends."""
        with self._changed:
            self._changed.notify_all()
        self._wake.notify()

    def in_hand(self) -> int:
        """Return how many messages wait for a handler or are with one."""
        return len(self._unclaimed) + len(self._running)

    def running(self) -> list[tuple[str, float]]:
        """Return what the handlers have, and since when in monotonic seconds."""
        with self._changed:
            return [
                (f"message {task.message.sequence} of group {self.ledger.name}", task.started)
                for task in self._running
            ]

    def _room(self) -> int:
        """Return how many messages to lease now. 0 as long as enough are in hand."""
        slots = self.pool.slots
        wanted = slots
        if self._duration is not None and self._may_prefetch():
            wanted += round(slots * PREFETCH_SECONDS / max(self._duration, 1e-6))
        wanted = min(wanted, self.options.lease.max_messages)
        held, enough = self.in_hand(), slots + (wanted - slots) // 2
        return max(0, wanted - held) if held < min(enough, wanted) else 0

    def _room_for_lanes(self) -> int:
        """Return how many messages to lease for handlers that the lanes in hand leave idle.

        No lease gets the lanes that another one holds, so these are messages of other lanes.
        """
        if not self._chains or (self._dry and time.monotonic() < self._look_at):
            return 0
        held = self.in_hand()
        busy = self._chains.lanes + max(0, held - len(self._chains))
        return max(0, min(self.pool.slots - busy, self.options.lease.max_messages - held))

    def _wanted(self) -> int:
        """Return how many messages to lease now."""
        return self._room() or self._room_for_lanes()

    def _may_prefetch(self) -> bool:
        """Return whether messages may wait in hand for a handler.

        Messages that were acked first are lost with their process. After a failure, small leases
        open the breaker before many messages have failed.
        """
        return self.options.policy.ack != "first" and not self._failed

    def _settle_now(self) -> bool:
        with self._changed:
            if not self._done:
                return False
            full = len(self._done) >= self.options.lease.max_messages
            hungry = not self._dry and self._wanted() > 0
            late = time.monotonic() >= self._settle_at or self._chains.paused
            return full or hungry or late or not self.in_hand()

    def _wait(self) -> None:
        """Wait until handlers have finished messages."""
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
            self.state.stop.wait(outage_pause(self._outages))
            self._outages += 1
            return
        self._note_look(bool(acquired.ranges or acquired.unfinished))
        if acquired.ranges:
            self._take(acquired)
        elif self._idle and self._dry:
            self.state.finish()

    def _lease_options(self) -> LeaseOptions:
        return replace(self.options.lease, max_messages=max(1, self._wanted()))

    def _note_look(self, found: bool) -> None:
        self._dry, self._look_at = not found, time.monotonic() + self.options.poll

    def _time_left(self) -> float:
        """Return the seconds for which a wait for messages may go on."""
        self._dry, self._idle, seen = True, False, self._seen
        if self.state.stop.is_set():
            return -1.0
        with self._changed:
            if self._done:
                return self._settle_at - time.monotonic() if self.in_hand() else -1.0
            if self.in_hand() or self.options.until is None:
                return float("inf")
        ended = has_ended(self.ledger, self.options.until)
        self._idle = ended and self.state.all_idle(self, seen)
        self._seen = self.state.activity()
        return 0.0 if self._idle else float("inf")

    def _take(self, acquired: Acquired) -> None:
        """Give the messages of a lease to the pool."""
        lease = Lease(self.ledger, self.options.lease.worker_id, acquired)
        self.state.note_activity()
        with self.state.lock:
            self.state.summary.leases += 1
        self.keeper.add(lease)
        if self.options.policy.ack == "first" and not self._ack_first(lease):
            return
        try:
            messages = lease.messages
        except OUTAGES as error:  # the lease was released, uncounted
            self.keeper.remove(lease.lease_id)
            self._note_outage(error)
            self.state.stop.wait(outage_pause(self._outages))
            return
        if not messages:
            self.keeper.remove(lease.lease_id)
            return
        held = HeldLease(lease, len(messages))
        tasks = [MessageTask(self, held, message) for message in messages]
        lanes = self._lanes_of(acquired)
        with self._changed:
            self._unclaimed.update(dict.fromkeys(tasks))
            for task in tasks:
                lane = lanes.get(task.message.sequence)
                if lane is None or self._chains.add(lane, task):
                    self.pool.submit(task)

    def _lanes_of(self, acquired: Acquired) -> dict[int, int]:
        """Return the lanes of the messages of a lease, if the group is in order."""
        index = self.ledger.messages.index(acquired.ranges[-1].last)
        if not is_ordered(index, self.ledger.last_settings):
            return {}
        return lanes_of(index, acquired.ranges)

    def _ack_first(self, lease: Lease) -> bool:
        """Ack before a handler gets the messages. Return whether it may have them."""
        command = SettleCommand(ACK, lease.lease_id, lease._held.unsettled(), whole=True)
        done = self._commit([command], more=False)
        self.keeper.remove(lease.lease_id)
        return done is not None and done[0][0].settled == len(lease)

    # -- in the pool's threads

    def claim(self, task: MessageTask) -> bool:
        """Return whether a handler may have a message: its lease lasts, and nobody has it."""
        with self._changed:
            acked = self.options.policy.ack == "first"
            if task not in self._unclaimed:
                return False
            if self.state.stop.is_set() and not acked:
                self._changed.notify_all()  # the feed releases it
                return False
            del self._unclaimed[task]
            if not acked and self._has_expired(task):
                self._add_done(task, MessageEnd(None))
                self._go_on_after(task)
                return False
            task.started = time.monotonic()
            self._running[task] = None
        return True

    def _has_expired(self, task: MessageTask) -> bool:
        return self.ledger.now() > task.held.lease._expires_at

    def finish(self, task: MessageTask, result: Any, error: BaseException | None) -> float:
        """Note how a handler ended. Returns the seconds that its slot has to pause."""
        seconds, pause = time.monotonic() - task.started, 0.0
        try:
            end, pause = self._end_of(task, result, error)
        except BaseException as wrong:
            self.state.fail(wrong)
            end = MessageEnd(None)
        with self._changed:
            if task not in self._running:
                return 0.0  # it was given back after a second Ctrl-C
            del self._running[task]
            known = seconds if self._duration is None else self._duration
            self._duration = known + _SMOOTHING * (seconds - known)
            self._failed = end.verb == NACK or end.handler_failed
            if end.verb in (NACK, RELEASE):
                self._chains.pause(task)
            else:
                self._go_on_after(task)
            self._add_done(task, end)
        return pause

    def _go_on_after(self, task: MessageTask) -> None:
        """Let the next message of a lane run."""
        if (following := self._chains.remove(task)) is not None:
            self.pool.submit(following)

    def _end_of(
        self, task: MessageTask, result: Any, error: BaseException | None
    ) -> tuple[MessageEnd, float]:
        if error is None:
            self._outages = 0
            end = end_of_result(result)
        elif not isinstance(error, Exception):
            raise error
        elif isinstance(error, Decision):
            end = end_of_error(error, self.options.policy)
        elif is_outage(error):
            return MessageEnd(RELEASE), self._note_outage(error)
        else:
            self._note_failure(task, error)
            end = end_of_error(error, self.options.policy)
            if end.verb is None:
                raise error
        return end, 0.0

    def _note_outage(self, error: Exception) -> float:
        """Log an outage that a handler met. Returns the seconds to pause."""
        text = "group %s: a handler met a failing store. Its message is released, uncounted: %s"
        _log.warning(text, self.ledger.name, error)
        pause, self._outages = outage_pause(self._outages), self._outages + 1
        return pause

    def _note_failure(self, task: MessageTask, error: Exception) -> None:
        with self.state.lock:
            self.state.summary.failed += 1
        limit = self.ledger.last_settings.max_delivery_attempts
        message = task.message
        _log.warning(
            "group %s: the handler failed with message %d (delivery %d%s)",
            self.ledger.name, message.sequence, message.delivery_count,
            f" of {limit}" if limit else "", exc_info=error,
        )  # fmt: skip

    def _add_done(self, task: MessageTask, end: MessageEnd) -> None:
        """Add a finished message. Wakes the feed if it may have to settle."""
        if not self._done:
            self._settle_at = time.monotonic() + self.options.settle_delay
        if self._chains.paused:
            self._settle_at = 0.0
        self._done.append((task, end))
        self._changed.notify_all()
        if len(self._done) == 1 or self._chains.paused or not self.in_hand():
            self._wake.notify()

    # -- settle

    def _settle(self, *, more: bool) -> None:
        """Settle what is done, and lease more in the same commit."""
        with self._changed:
            done, self._done = self._done, []
        first = self.options.policy.ack == "first"
        ended = [(task.lease_id, task.message.sequence, end) for task, end in done]
        commands = [] if first else commands_for_ends(ended)
        committed = self._commit(commands, more=more) if commands else ([], [])
        self.state.note_activity()
        if committed and len(self._chains):
            self._drop_returned(commands, committed[0])
        for task, _ in done:
            self._let_go(task)
        for acquired in committed[1] if committed else ():
            if isinstance(acquired, Acquired):
                self._note_look(bool(acquired.ranges))
                if acquired.ranges:
                    self._take(acquired)
            else:
                self._dry = False

    def _let_go(self, task: MessageTask) -> None:
        """Count a message out of its lease. Its lane goes on."""
        with self._changed:
            self._go_on_after(task)
        task.held.messages -= 1
        if not task.held.messages:
            self.keeper.remove(task.lease_id)

    def _drop_returned(
        self, commands: Sequence[SettleCommand], outcomes: Sequence[SettleOutcome]
    ) -> None:
        """Give up the messages that came back with an earlier one of their key."""
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
            self._let_go(task)
        self.state.count(RELEASE, len(lost))

    def _commit(
        self, commands: Sequence[SettleCommand], *, more: bool
    ) -> tuple[list[SettleOutcome], list[Any]] | None:
        """Settle, and with `more` lease. Waits as long as the store fails, or until the end."""

        def also() -> list[LedgerOperation[Acquired]]:
            wanted = more and not self.state.stop.is_set() and self._wanted() > 0
            return [lease_operation(self.ledger, self._lease_options())] if wanted else []

        def before_retry(granted: Sequence[Any]) -> None:
            self._give_back(granted)
            self.keeper.remove_limit()

        done = settle_patiently(self.ledger, commands, also, self.state.over, before_retry)
        if done is None:
            _log.warning("some messages could not be settled: their leases are left to expire")
            return None
        for command, outcome in zip(commands, done[0], strict=True):
            self.state.count(command.verb, outcome.settled)
        log_outcomes(self.ledger.name, self.ledger.now(), zip(commands, done[0], strict=True))
        try:
            summarize([command.lease_id for command in commands], done[0])
        except LeaseLost as lost:
            _log.warning("some messages come again, to another worker: %s", lost)
        return done

    def _give_back(self, granted: Sequence[Any]) -> None:
        """Release the lease that came with a settle that failed."""
        for acquired in granted:
            if isinstance(acquired, Acquired) and acquired.ranges:
                try:
                    Lease(self.ledger, self.options.lease.worker_id, acquired).release()
                except SparkMQError as error:
                    _log.warning("a lease could not be released and will expire: %s", error)

    def _finish(self) -> None:
        """Release what no handler has got, and settle what the running ones finish in time."""
        if self._chains.paused:
            self._settle(more=False)  # it gives some messages back
        with self._changed:
            acked = self.options.policy.ack == "first"  # so a handler must get them
            for task in [] if acked else list(self._unclaimed):
                del self._unclaimed[task]
                self._add_done(task, MessageEnd(RELEASE))
        while not self.state.over.is_set():
            self._settle(more=False)
            with self._changed:
                if not self._done and not self.in_hand():
                    return
                if not self._done:
                    self._changed.wait(self.options.poll)
        if self.state.hurried:
            self._give_back_running()
        elif running := len(self._running):
            _log.warning("%d handlers still run: their messages are left to expire", running)

    def _give_back_running(self) -> None:
        """Release the messages of running handlers, and settle what else is done."""
        with self._changed:
            for task in list(self._running):
                del self._running[task]
                self._add_done(task, MessageEnd(RELEASE))
        self._settle(more=False)
