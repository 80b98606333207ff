"""Run commands on the groups of a queue, which is the only way to change their ledgers.

Threads that change ledgers of a queue at the same time share a commit, and so do writers that wait
for the same line or delegate their commands. Settles and extensions run before leases. Each command
gets the ledger that the one before it left, and its errors are its own.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import CommitConflict, CorruptLog, GroupNotFound, StorageError
from spark_mq.ledger.commands import Change, Command, NextLedger, Priority, View, join_notes
from spark_mq.ledger.log_fingerprints import with_fingerprint
from spark_mq.ledger.ranges import Ledger
from spark_mq.ledger.settings import GroupSettings
from spark_mq.operations.command_json import (
    decode_command,
    decode_result,
    encode_command,
    encode_result,
)
from spark_mq.operations.commit_reports import log_breaker_change, log_expired, signals_of
from spark_mq.operations.payloads import FileChecks, PayloadFiles
from spark_mq.storage.commit_turn import DelegatedRequest
from spark_mq.storage.ledger_files import LedgerSnapshot
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.optimistic_commit import commit, show_groups
from spark_mq.telemetry import Destination, watched
from spark_mq.util.call_batcher import CallBatcher
from spark_mq.util.process import ForkGuard
from spark_mq.util.user import current_user
from spark_mq.util.validation import is_name

_log = logging.getLogger(__name__)

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


_NamedCommand = tuple[str, Command[Any]]  # a command with the name of its group


@dataclass(slots=True)
class _Unit:
    """Commands in one commit. If one of a request fails, the whole request changes nothing."""

    commands: Sequence[_NamedCommand]
    checks: FileChecks | None = None  # of earlier tries
    request_id: str | None = None  # of another writer
    exclusive: bool = False  # shares no commit
    results: list[Any] = field(default_factory=list)  # an exception for a command that failed


class QueueCommitter:
    """Runs the commands of all threads of this process on the groups of a queue. Thread-safe."""

    def __init__(self, path: str, store: LedgerTable, open_group: Callable[[str], Group]) -> None:
        self._path, self._store, self._open_group = path, store, open_group
        self.groups: dict[str, Group] = {}  # that this process has used
        self.batcher: CallBatcher[_Unit, list[Any]] = CallBatcher(self._commit)

    def run(self, unit: _Unit) -> list[Any]:
        """Run commands, with those of other threads unless they are exclusive."""
        return self._commit([unit])[0] if unit.exclusive else self.batcher.do(unit)

    def _group(self, name: str) -> Group:
        return self.groups.get(name) or self._open_group(name)

    def _commit(self, units: Sequence[_Unit]) -> list[list[Any]]:
        """Run the commands of several callers in one commit."""
        batch = _Batch(self._path, self._group, units)
        try:
            commit(self._store, batch)
            batch.log()
        except STORE_ERRORS as error:
            if sum(len(unit.commands) for unit in units) == 1:
                raise
            return [[_own_copy(error) for _ in unit.commands] for unit in units]
        return [unit.results for unit in units]


class GroupCommitter:
    """Runs the commands of all threads of this process on one group. Thread-safe."""

    def __init__(self, group: Group, queue: QueueCommitter, settings: GroupSettings) -> None:
        self._group, self._queue = group, queue
        self._process = ForkGuard(f"group {group.name!r} of {group.queue_path}")
        queue.groups[group.name] = group
        # As last read, also as stored.
        self.read_settings: tuple[Mapping[str, Any] | None, GroupSettings] = (None, settings)

    def run(self, commands: Sequence[Command[Any]], checks: FileChecks | None = None) -> list[Any]:
        """Run commands in one commit, perhaps with others. Return the result or error of each."""
        self._process.check()
        exclusive = any(command.exclusive for command in commands) or (
            # The commit names the person, and others must not get the name.
            not all(command.of_worker for command in commands) and current_user() is not None
        )
        name = self._group.name
        unit = _Unit([(name, command) for command in commands], checks, exclusive=exclusive)
        if "opentelemetry" not in sys.modules:  # no SDK is set up
            return self._queue.run(unit)
        destination = Destination.of(self._group.queue_path, name)
        watches = [
            partial(signals_of, command) if command.of_worker else None for command in commands
        ]
        return watched(destination, watches, lambda: self._queue.run(unit))


class _Batch:
    """The commands of one commit, those of this process first."""

    def __init__(self, path: str, group_of: Callable[[str], Group], units: Sequence[_Unit]) -> None:
        self._path, self._group_of, self._own = path, group_of, units
        commands = [command for unit in units for _, command in unit.commands]
        self.priority = min((c.priority for c in commands), default=Priority.SETTLE)
        # A commit with a person's name must not have what others did.
        self.exclusive = any(unit.exclusive for unit in units) or current_user() is not None
        self.whole_table = any(command.whole_table for command in commands)
        self.without_ledger = any(command.without_ledger for command in commands)
        self.notes: Mapping[str, Mapping[str, Any]] = {}
        self.txns: Mapping[str, int] = {}
        self._requests: list[_Unit] = []  # of other writers
        self._served: dict[str, Any] = {}  # outcomes of those that the commit runs, by id
        self._alarms: list[tuple[str, str]] = []
        # Of each group, before and after the commit.
        self._heads: Mapping[str, tuple[Any, Ledger]] = {}
        self._held = frozenset[str]()
        self._steps: list[tuple[_Unit, list[int]]] = []
        self.take(())

    @property
    def groups(self) -> Sequence[str]:
        units = (*self._own, *self._requests)
        return list(dict.fromkeys(name for unit in units for name, _ in unit.commands))

    def of_others(self) -> _Batch:
        return _Batch(self._path, self._group_of, ())

    def take(self, requests: Sequence[DelegatedRequest]) -> None:
        self._requests = []
        for request in requests:
            decoded = [_decoded(data) for data in request.commands]
            known = [command for command in decoded if command is not None]
            if known and len(known) == len(decoded):
                self._requests.append(_Unit(known, request_id=request.request_id))
        units = (*self._own, *self._requests)
        self._held = frozenset(
            lease_id
            for unit in units
            for _, command in unit.commands
            if command.priority is Priority.SETTLE
            for lease_id in command.lease_ids
        )
        self._steps = [(unit, [at]) for unit in self._own for at in range(len(unit.commands))]
        self._steps += [(unit, list(range(len(unit.commands)))) for unit in self._requests]
        self._steps.sort(key=_rank_of_step)

    def apply(
        self, snapshots: Mapping[str, LedgerSnapshot | CorruptLog]
    ) -> Mapping[str, NextLedger]:
        now, notes = dict(snapshots), dict[str, list[Mapping[str, Any]]]()
        end = time.monotonic() + CHECK_SECONDS
        self.txns, self._alarms, self._served = {}, [], {}
        for unit in (*self._own, *self._requests):
            unit.results = [None] * len(unit.commands)
        for unit, places in self._steps:
            after, of_step = dict[str, LedgerSnapshot](), list[tuple[str, Mapping[str, Any]]]()
            for at in places:
                name, command = unit.commands[at]
                before = after.get(name, now[name])
                if isinstance(before, CorruptLog):  # only this group's commands fail
                    unit.results[at] = _own_copy(before)
                    continue
                try:
                    view, change = self._change(unit, name, command, before, end)
                except CommitConflict:
                    raise
                except Exception as error:
                    unit.results[at], change = error, _NO_CHANGE
                else:
                    unit.results[at] = change.result
                if change.ledger is not None and (change.ledger is not view.ledger or change.txn):
                    after[name] = self._changed(name, before, command, change, view)
                    of_step.append((name, change.note))
                elif unit.request_id is None and not before.looked:
                    return {}  # perhaps the state was old: look, and apply all again
            if unit.request_id is None or self._serve(unit, {*notes, *after}):
                now |= after
                for name, note in of_step:
                    notes.setdefault(name, []).append(note)
        return self._finish(snapshots, now, notes)

    def _change(
        self, unit: _Unit, name: str, command: Command[Any], before: LedgerSnapshot, end: float
    ) -> tuple[View, Change[Any]]:
        """Run one command. `end` is for the checks of payload files."""
        group = self._group(name, unit, before)
        if self.txns:  # another group's command may have added some
            before = replace(before, txns=self.txns)
        view = group.view(command, before, self._held, unit.checks)
        change = command.apply(view)
        while change.unchecked:
            unit.checks = unit.checks or FileChecks(group.payloads)
            wanted = view.settings.filter
            if unit.checks.all_readable(change.unchecked, end, wanted):
                break
            change = command.apply(view._replace(files=unit.checks.problems(wanted)))
        return view, change

    def _group(self, name: str, unit: _Unit, snapshot: LedgerSnapshot) -> Group:
        if unit.request_id is not None and snapshot.ledger is None:
            # Others can name any group. Only its own writer asks the store if it exists.
            raise GroupNotFound(f"there is no consumer group {name!r} in {self._path}", group=name)
        return self._group_of(name)

    def _changed(
        self,
        name: str,
        before: LedgerSnapshot,
        command: Command[Any],
        change: Change[Any],
        view: View,
    ) -> LedgerSnapshot:
        ledger: Any = change.ledger
        if change.txn is not None:
            self.txns = {**self.txns, change.txn[0]: change.txn[1]}
        if change.alarm:
            self._alarms.append((name, change.alarm))
        if command.adds_fingerprint:
            ledger = with_fingerprint(ledger, view.log)
        return replace(before, ledger=ledger, txns=self.txns)

    def _finish(
        self,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        notes: Mapping[str, Sequence[Mapping[str, Any]]],
    ) -> Mapping[str, NextLedger]:
        self.notes = {
            name: given[0] if len(given) == 1 else join_notes(given)
            for name, given in notes.items()
        }
        ledgers: dict[str, NextLedger] = {name: after[name].ledger for name in notes}
        self._heads = {
            name: (before[name].ledger.head, ledger)
            for name, ledger in ledgers.items()
            if isinstance(ledger, Ledger) and isinstance(before[name].ledger, Ledger)
        }
        return ledgers

    def delegable(self) -> Sequence[Any] | None:
        if current_user() is not None:
            return None
        commands = [
            (name, encode_command(command)) for unit in self._own for name, command in unit.commands
        ]
        return None if any(data is None for _, data in commands) else commands

    def served(self) -> dict[str, Any]:
        return self._served

    def _serve(self, unit: _Unit, changed: Set[str]) -> bool:
        """Return whether the commit runs a request, and note it if so. It runs all or nothing."""
        # It must change all groups of the request. Otherwise another commit could run the request
        # again and conflict with none of these changes.
        if not {name for name, _ in unit.commands} <= changed:
            return False
        outcomes = [encode_result(result) for result in unit.results]
        if None in outcomes:  # its own writer must run the command
            return False
        self._served[unit.request_id or ""] = outcomes
        return True

    def accept(self, outcome: Any) -> None:
        outcomes = iter(outcome)
        try:
            for unit in self._own:
                unit.results = [
                    decode_result(command, next(outcomes)) for _, command in unit.commands
                ]
        except (TypeError, KeyError, ValueError, AttributeError, StopIteration) as error:
            raise StorageError(
                f"changing {show_groups(self.groups)}: the commit of another worker ran the "
                "operation, and its outcome cannot be read. Use one version of spark_mq in all "
                "workers.",
                path=self._path,
                landed=True,
            ) from error

    def log(self) -> None:
        """Log what people should know about the commit."""
        for name, alarm in self._alarms:
            _log.error("group %s: %s", name, alarm)
        for name, (before, after) in self._heads.items():
            if before.breaker is not after.head.breaker:
                log_breaker_change(name, self._path, before.breaker, after.head.breaker)
            was, now = before.happened, after.head.happened
            if was.get("lease_expired", 0) != now.get("lease_expired", 0):
                log_expired(name, after.events)


def _decoded(data: Any) -> _NamedCommand | None:
    """Return another writer's command, or None if it must run it itself."""
    if not isinstance(data, list) or len(data) != 2 or not is_name(data[0]):
        return None
    command = decode_command(data[1])
    return None if command is None else (data[0], command)


def _rank_of_step(step: tuple[_Unit, Sequence[int]]) -> float:
    """Return the rank of a step that has to wait least, because it may also settle."""
    unit, places = step
    return min(unit.commands[at][1].priority for at in places)


def _own_copy(error: Exception) -> Exception:
    """Return a copy for one of several callers, as a raised error belongs to one thread."""
    own = copy.copy(error)
    own.__cause__ = error
    return own
