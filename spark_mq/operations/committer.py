"""Run commands on one group, which is the only way to change its ledger.

Threads that change a ledger at the same time share a commit, and so do writers of an object store
that delegate their commands. Settles and extensions run before leases. Each command gets the ledger
that the one before it left, and its errors are its own.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import CommitConflict, LeaseLost, StorageError
from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.commands import (
    Change,
    Command,
    NextLedger,
    Priority,
    View,
    join_notes,
)
from spark_mq.ledger.log_fingerprints import with_fingerprint
from spark_mq.ledger.ranges import Ledger, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.settle import Settle
from spark_mq.ledger.stream_batch import AckBatches, Replay
from spark_mq.operations.command_json import (
    decode_command,
    decode_result,
    encode_command,
    encode_result,
)
from spark_mq.operations.payloads import FileChecks, PayloadFiles
from spark_mq.storage.commit_turn import DelegatedRequest
from spark_mq.storage.ledger_files import LedgerSnapshot
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.optimistic_commit import commit
from spark_mq.telemetry import RECEIVE, SETTLE, Destination, Signal, error_type, watched
from spark_mq.util.advice import shell_command
from spark_mq.util.call_batcher import CallBatcher
from spark_mq.util.clock import to_datetime
from spark_mq.util.process import ForkGuard
from spark_mq.util.show import printable, show_count, show_some, show_time
from spark_mq.util.user import current_user, worker_label

__all__ = ["GroupCommitter"]

_log = logging.getLogger(__name__)

_LOST: Final = f"{LeaseLost.__module__}.{LeaseLost.__qualname__}"
CHECK_SECONDS: Final = 0.25  # for payload files in one try to commit, for which others may wait


class Group(Protocol):
    """What a committer needs of a group."""

    name: str
    queue_path: str
    payloads: PayloadFiles

    def view(
        self,
        command: Command[Any],
        snapshot: LedgerSnapshot,
        held: frozenset[str],
        checks: FileChecks | None,
    ) -> View:
        """Return what a command may know. Raise GroupNotFound."""


_NO_CHANGE: Final[Change[Any]] = Change(None, None)


@dataclass(slots=True)
class _Unit:
    """Commands in one commit. If one of a request fails, the whole request changes nothing."""

    commands: Sequence[Command[Any]]
    checks: FileChecks | None = None  # of earlier tries
    request_id: str | None = None  # of another writer
    exclusive: bool = False  # shares no commit
    results: list[Any] = field(default_factory=list)  # an exception for a command that failed


class GroupCommitter:
    """Runs the commands of all threads of this process on one group. Thread-safe."""

    def __init__(
        self, group: Group, store: LedgerTable, settings: GroupSettings, process: ForkGuard
    ) -> None:
        self._group, self._store, self._process = group, store, process
        # As last read, also as stored.
        self.read_settings: tuple[Mapping[str, Any] | None, GroupSettings] = (None, settings)
        self.batcher: CallBatcher[_Unit, list[Any]] = CallBatcher(self._commit)

    def run(self, commands: Sequence[Command[Any]], checks: FileChecks | None = None) -> list[Any]:
        """Run commands in one commit, perhaps with others. Return the result or error of each."""
        self._process.check()
        exclusive = any(one.exclusive for one in commands) or (
            # The commit names the person, and others must not get the name.
            not all(one.of_worker for one in commands) and current_user() is not None
        )
        unit = _Unit(commands, checks, exclusive=exclusive)
        run: Callable[[_Unit], list[Any]] = self._run_alone if exclusive else self.batcher.do
        if "opentelemetry" not in sys.modules:  # no SDK is set up
            return run(unit)
        destination = Destination.of(self._group.queue_path, self._group.name)
        watches = [partial(_signals_of, one) if one.of_worker else None for one in commands]
        return watched(destination, watches, lambda: run(unit))

    def _run_alone(self, unit: _Unit) -> list[Any]:
        return self._commit([unit])[0]

    def _commit(self, units: Sequence[_Unit]) -> list[list[Any]]:
        """Run the commands of several callers in one commit."""
        batch = _Batch(self._group, units)
        try:
            commit(self._store, self._group.name, batch)
            batch.log()
        except STORE_ERRORS as error:
            if sum(len(unit.commands) for unit in units) == 1:
                raise
            return [[_own_copy(error) for _ in unit.commands] for unit in units]
        return [unit.results for unit in units]


class _Batch:
    """The commands of one commit, those of this process first."""

    def __init__(self, group: Group, units: Sequence[_Unit]) -> None:
        self._group, self._own = group, units
        commands = [one for unit in units for one in unit.commands]
        self.priority = min((one.priority for one in commands), key=_rank, default=Priority.SETTLE)
        # A commit with a person's name must not have what others did.
        self.exclusive = any(unit.exclusive for unit in units) or current_user() is not None
        self.whole_table = any(one.whole_table for one in commands)
        self.without_ledger = any(one.without_ledger for one in commands)
        self.note: Mapping[str, Any] = {}
        self.txns: Mapping[str, int] = {}
        self._requests: list[_Unit] = []  # of other writers
        self._alarms: list[str] = []
        self._breakers: tuple[Breaker, Breaker] | None = None  # before and after
        self._expired: Sequence[tuple[str, Range]] = ()  # of a commit that expires leases
        self._held = frozenset[str]()
        self._steps: list[tuple[_Unit, list[int]]] = []
        self.take(())

    def of_others(self) -> _Batch:
        return _Batch(self._group, ())

    def take(self, requests: Sequence[DelegatedRequest]) -> None:
        self._requests = []
        for request in requests:
            found = [decode_command(data) for data in request.commands]
            known = [one for one in found if one is not None]
            if known and len(known) == len(found):
                self._requests.append(_Unit(known, request_id=request.request_id))
        units = (*self._own, *self._requests)
        self._held = frozenset(
            name
            for unit in units
            for one in unit.commands
            if one.priority is Priority.SETTLE
            for name in one.lease_ids
        )
        self._steps = [(unit, [at]) for unit in self._own for at in range(len(unit.commands))]
        self._steps += [(unit, list(range(len(unit.commands)))) for unit in self._requests]
        self._steps.sort(key=_rank_of_step)

    def apply(self, snapshot: LedgerSnapshot) -> NextLedger:
        now, notes, end = snapshot, list[Mapping[str, Any]](), time.monotonic() + CHECK_SECONDS
        self.txns, self._alarms = {}, []
        for unit in (*self._own, *self._requests):
            unit.results = [None] * len(unit.commands)
        for unit, places in self._steps:
            after, of_step = now, list[Mapping[str, Any]]()
            for at in places:
                command = unit.commands[at]
                try:
                    view = self._group.view(command, after, self._held, unit.checks)
                    change = command.apply(view)
                    while change.unchecked:
                        unit.checks = unit.checks or FileChecks(self._group.payloads)
                        wanted = view.settings.filter
                        if unit.checks.all_readable(change.unchecked, end, wanted):
                            break
                        change = command.apply(view._replace(files=unit.checks.problems(wanted)))
                except CommitConflict:
                    raise
                except Exception as error:
                    unit.results[at], change = error, _NO_CHANGE
                else:
                    unit.results[at] = change.result
                if change.ledger is not None and (change.ledger is not view.ledger or change.txn):
                    after = self._changed(after, command, change, view)
                    of_step.append(change.note)
                elif unit.request_id is None and not snapshot.looked:
                    return None  # perhaps the state was old: look, and apply all again
            if unit.request_id is None or None not in self._encoded(unit):
                now, notes = after, [*notes, *of_step]
        return self._finish(snapshot, now, notes)

    def _changed(
        self, before: LedgerSnapshot, command: Command[Any], change: Change[Any], view: View
    ) -> LedgerSnapshot:
        """Return what the next command gets."""
        ledger: Any = change.ledger
        if change.txn is not None:
            self.txns = {**self.txns, change.txn[0]: change.txn[1]}
        if change.alarm:
            self._alarms.append(change.alarm)
        if command.adds_fingerprint:
            ledger = with_fingerprint(ledger, view.log)
        return replace(before, ledger=ledger, txns=self.txns)

    def _finish(
        self, before: LedgerSnapshot, after: LedgerSnapshot, notes: Sequence[Mapping[str, Any]]
    ) -> NextLedger:
        if isinstance(before.ledger, Ledger) and isinstance(after.ledger, Ledger):
            changed = before.ledger.head.breaker is not after.ledger.head.breaker
            both = before.ledger.head.breaker, after.ledger.head.breaker
            self._breakers = both if changed else None
            was, now = before.ledger.head.happened, after.ledger.head.happened
            expires = was.get("lease_expired", 0) != now.get("lease_expired", 0)
            self._expired = after.ledger.events if expires else ()
        if not notes:
            return None
        self.note = notes[0] if len(notes) == 1 else join_notes(notes)
        return after.ledger

    def delegable(self) -> Sequence[Mapping[str, Any]] | None:
        if current_user() is not None:
            return None
        found = [encode_command(one) for unit in self._own for one in unit.commands]
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) else None

    def served(self) -> dict[str, Any]:
        outcomes = {unit.request_id or "": self._encoded(unit) for unit in self._requests}
        return {name: each for name, each in outcomes.items() if None not in each}

    @staticmethod
    def _encoded(unit: _Unit) -> list[Any]:
        """Return outcomes as JSON, each None if its own writer must run the command."""
        return [encode_result(result) for result in unit.results]

    def accept(self, outcome: Any) -> None:
        group, found = self._group, iter(outcome)
        try:
            for unit in self._own:
                unit.results = [decode_result(one, next(found)) for one in unit.commands]
        except (TypeError, KeyError, ValueError, AttributeError, StopIteration) as error:
            raise StorageError(
                f"changing group {group.name!r}: the commit of another worker ran the operation, "
                "and its outcome cannot be read. Use one version of spark_mq in all workers.",
                path=group.queue_path,
                landed=True,
            ) from error

    def log(self) -> None:
        """Log what people should know about the commit."""
        for alarm in self._alarms:
            _log.error("group %s: %s", self._group.name, alarm)
        if self._breakers is not None:
            log_breaker_change(self._group.name, self._group.queue_path, *self._breakers)
        if self._expired:
            log_expired(self._group.name, self._expired)


def _rank(priority: Priority) -> float:
    return priority.value


def _rank_of_step(step: tuple[_Unit, Sequence[int]]) -> float:
    """Return the rank of a step that has to wait least, because it may also settle."""
    unit, places = step
    return min(_rank(unit.commands[at].priority) for at in places)


def _own_copy(error: Exception) -> Exception:
    """Return a copy for one of several callers, as a raised error belongs to one thread."""
    own = copy.copy(error)
    own.__cause__ = error
    return own


def _signals_of(command: Command[Any], result: Any) -> list[Signal]:
    """Return the telemetry of a worker's command, from its result or error."""
    if isinstance(command, Settle):
        return _settle_signals(command, result)
    if isinstance(command, AckBatches):
        return _ack_signals(result)
    if isinstance(command, Acquire | Replay):
        return _lease_signals(command, result)
    return []


def _settle_signals(command: Settle, result: Any) -> list[Signal]:
    """Return one signal for each verb of a settle."""
    verbs = dict.fromkeys(part.verb for part in command.parts)
    if isinstance(result, Exception):
        return [Signal(verb, SETTLE, error=error_type(result)) for verb in verbs]
    found = []
    for verb in verbs:
        pairs = zip(command.parts, result, strict=False)
        mine = [outcome for part, outcome in pairs if part.verb == verb]
        lost = _LOST if any(outcome.lost for outcome in mine) else None
        found.append(Signal(verb, SETTLE, sum(outcome.settled for outcome in mine), lost))
    return found


def _ack_signals(messages: Any) -> list[Signal]:
    """Return the signal of acks that the source made by itself, or none without messages."""
    return [Signal("ack", SETTLE, messages)] if isinstance(messages, int) and messages else []


def _lease_signals(command: Acquire | Replay, result: Grant | Exception) -> list[Signal]:
    details = {"messaging.client.id": worker_label(command.worker_id)}
    if isinstance(result, Exception):
        return [Signal(command.name, RECEIVE, 0, error_type(result), details)]
    found, messages = _ack_signals(result.acked), result.message_count
    if messages:
        found.append(Signal(command.name, RECEIVE, messages, None, details))
    return found


def log_breaker_change(group: str, queue_path: str, before: Breaker, after: Breaker) -> None:
    if before == after:
        return
    cause, reason = after.cause or "no error text", after.pause_reason or "no reason given"
    cause, reason = printable(cause), printable(reason)
    if after.opened_at is not None and before.opened_at is None:
        _log.error(
            "group %s: the breaker is open: %d leases failed in a row, the last with %s. The next "
            "trial is at %s. Repair the handler, or call group.resume() or %s. If only "
            "some messages are bad, let the handler reject them, or set breaker_threshold=None, so "
            "that they become dead letters",
            group, len(after.failed), cause, _at(after.next_trial_at),
            shell_command("group", "resume", group, "-q", queue_path),
        )  # fmt: skip
    elif after.failed_trials > before.failed_trials:
        _log.warning(
            "group %s: the trial failed with %s. The next trial is at %s",
            group, cause, _at(after.next_trial_at),
        )  # fmt: skip
    elif before.opened_at is not None and after.opened_at is None:
        _log.warning("group %s: the breaker is closed", group)
    if after.paused_at is not None and before.paused_at is None:
        _log.warning("group %s is paused: %s", group, reason)
    elif before.paused_at is not None and after.paused_at is None:
        _log.warning("group %s is resumed", group)


def log_expired(group: str, events: Iterable[tuple[str, Range]]) -> None:
    """Log which workers lost leases, because they died, hung, or lost sight of the store."""
    messages: Counter[str] = Counter()
    for event, r in events:
        if event == "lease_expired":
            messages[r.worker or "unknown"] += r.message_count
    _log.warning(
        "group %s: the leases of %s expired, with %s. Their workers died, hung, or did not reach "
        "the store",
        group, show_some(list(messages), 5), show_count(messages.total(), "message"),
    )  # fmt: skip


def _at(instant: int | None) -> str:
    return "once" if instant is None else show_time(to_datetime(instant))
