"""Commit commands to the ledgers of a queue. Every change of a ledger comes through here.

A commit reads the ledgers, applies the commands and writes. It repeats all that after a conflict.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import CommitConflict, CorruptLog
from spark_mq.ledger.commands import NextLedger, Priority
from spark_mq.ledger.ranges import Ledger
from spark_mq.storage.commit_turn import (
    CYCLE,
    LEADS,
    PAUSE,
    SERVED,
    CommitTurn,
    DelegatedRequest,
    note_of_groups,
)
from spark_mq.storage.delegated_commands import DelegationTurn, delete_soon
from spark_mq.storage.ledger_files import LedgerSnapshot
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.util.backoff import too_many_conflicts
from spark_mq.util.user import with_user

_log = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 30.0

# Lost races in a row after which a writer asks the others to pause. Otherwise a much slower writer
# would lose each race. Other writers lose fewer, and ask for nothing.
ASK_AFTER: Final = 5
# The same over a store for a writer whose commands nobody else can run.
ASK_SOON_AFTER: Final = 2

# How long a writer leads. Then any other one may, because the first one may be a slow one.
LEAD_SECONDS: Final = 10.0
# A leader deletes so many requests together, because that is one request to a store.
DELETED_TOGETHER: Final = 24


class Batch(Protocol):
    """The commands of one commit."""

    priority: Priority
    exclusive: bool  # shares no commit
    whole_table: bool  # a change of any other group is a conflict
    without_ledger: bool  # no ledger is read, because it may be unreadable
    notes: Mapping[str, Mapping[str, Any]]  # by group
    txns: Mapping[str, int]

    @property
    def groups(self) -> Sequence[str]:
        """Return the groups that the commands may change."""

    def apply(
        self, snapshots: Mapping[str, LedgerSnapshot | CorruptLog]
    ) -> Mapping[str, NextLedger]:
        """Apply the commands, again after a conflict. Return the groups to change."""

    def delegable(self) -> Sequence[Any] | None:
        """Return the commands as JSON, or None if only this process can run them."""

    def take(self, requests: Sequence[DelegatedRequest]) -> None:
        """Apply the commands of others too, with the next commit."""

    def served(self) -> dict[str, Any]:
        """Return the outcomes of the commands of others, by request."""

    def accept(self, outcome: Any) -> None:
        """Use the own results as the commit of another writer names them."""

    def of_others(self) -> Batch:
        """Return a batch without own commands."""

    def log(self) -> None:
        """Log what people should know about the commit."""


def commit(store: LedgerTable, batch: Batch) -> None:
    """Commit a batch, again after each conflict. Raise ContentionTimeout."""
    OptimisticCommit(store, batch).run()


def show_groups(groups: Sequence[str]) -> str:
    """Return the names of groups for an error."""
    return f"group{'s' if len(groups) > 1 else ''} {', '.join(map(repr, groups))}"


class OptimisticCommit:
    """One commit in progress."""

    def __init__(self, store: LedgerTable, batch: Batch) -> None:
        self._store, self._batch = store, batch
        self._groups = batch.groups  # of the own commands
        self._losses = 0
        self._pleas: list[str] = []  # files that ask the others to wait
        self._is_nested = False  # whether the thread is in another commit to the table
        self._backoff, self._peers = store.backoff, store.peers
        self._turn: CommitTurn | None = None
        self._requests: Sequence[DelegatedRequest] = ()
        self._ran: Sequence[DelegatedRequest] = ()  # with the commit
        self._leads = False  # whether the last commit says that another one follows
        self._leads_until: float | None = None  # None before the first such commit
        self._led_at = 0.0  # when that commit was written

    def run(self) -> None:
        """Repeat until a commit lands, or there is nothing to commit. Raise ContentionTimeout."""
        lock = self._store.commit_lock()
        try:
            with lock.hold() as hold:
                self._is_nested = hold.is_nested
                try:
                    self._repeat()
                except STORE_ERRORS as error:
                    if self._turn is None:
                        raise
                    self._accept(self._turn, self._turn.outcome_after(error))
                finally:
                    self._end_turn()
        except BaseException:  # an interrupt may keep the lock from its release
            lock.abandon()
            raise

    def _repeat(self) -> None:
        """Try to commit until it is done."""
        started = time.monotonic()
        refresh: bool | None = None  # as the store likes
        while not self._wait(started + TIMEOUT_SECONDS):
            began = time.monotonic()
            try:
                snapshots, looked = self._read(refresh)
                if self._was_run():
                    return
                after = self._batch.apply(snapshots)
                if after:
                    met = self._write(snapshots, after, began)
                    if met and looked and self._turn is None and self._store.delegates:
                        # Each commit of others cost requests, although it changed other groups.
                        self._peers.met()
                if after or looked:  # else the state may be old
                    self._leave_others()
                    return
            except CommitConflict as error:
                self._lost(error, began, started)
            refresh = True

    def _end_turn(self) -> None:
        if self._pleas:
            delete_soon(self._store.files, self._pleas)
        if self._leads:
            # Its caller need not wait for it. It is no daemon, because the end of a process must
            # not cut a request of the store's client.
            threading.Thread(target=self._lead, name="spark_mq requests").start()
        elif self._turn is not None:
            try:
                self._turn.close(self._ran)
            finally:  # an interrupt may cut the first one short
                self._turn.close(self._ran)

    def _read(self, refresh: bool | None) -> tuple[Mapping[str, LedgerSnapshot | CorruptLog], bool]:
        """Return the ledgers by group, or why they are unreadable, and if they are up to date."""
        if self._delegation is not None:  # the wait for the turn has just looked
            looked = True
        else:
            looked = not self._store.may_skip_look() if refresh is None else refresh
            if looked:
                self._store.version()
        snapshots = {group: self._snapshot(group, looked) for group in self._batch.groups}
        if self._turn is not None:  # a commit up to the snapshots may have run some requests
            left = self._turn.not_run(self._requests)
            if len(left) < len(self._requests):
                self._requests = left
                self._batch.take(left)
        return snapshots, looked

    def _snapshot(self, group: str, looked: bool) -> LedgerSnapshot | CorruptLog:
        without_ledger = self._batch.without_ledger
        try:
            snapshot = self._store.read(group, without_ledger=without_ledger, refresh=False)
        except CorruptLog as error:
            return error
        return snapshot if snapshot.looked == looked else replace(snapshot, looked=looked)

    def _was_run(self) -> bool:
        """Return whether another writer ran the commands. Use its outcome if so."""
        if self._turn is None or (outcome := self._turn.outcome) is None:
            return False
        self._accept(self._turn, outcome)
        return True

    def _accept(self, turn: CommitTurn, outcome: Any) -> None:
        """Use the outcome in the commit of another writer."""
        self._batch.accept(outcome)
        self._won(0.0, shared=turn.shared)
        self._store.was_changed = True

    def _wait(self, until: float) -> bool:
        """Wait for a turn, or pause. Return whether another writer ran the commands."""
        if self._turn is None and not self._is_nested:
            self._turn = self._store.turn(
                self._batch.delegable, self._is_idle, lost=self._losses > 0
            )
        if self._turn is not None:
            self._turn.wait(until)
            if self._was_run():
                return True
        self._peers.grant_pleas()
        # Writers that share make few commits, so a race with them is rare.
        if self._backoff.pause and self._delegation is None:
            self._backoff.wait(self._batch.priority.value)
        self._take_requests()
        return False

    def _is_idle(self) -> bool:
        """Return whether the commands change nothing in the ledgers as of the last look."""
        snapshots, _ = self._read(None)
        return not self._batch.apply(snapshots)

    @property
    def _delegation(self) -> DelegationTurn | None:
        """Return the turn if it keeps writers of all machines from races."""
        return self._turn if isinstance(self._turn, DelegationTurn) else None

    def _leave_others(self) -> None:
        """Leave the requests that did not run to their own writers."""
        if self._turn is not None:
            self._turn.leave(request for request in self._requests if request not in self._ran)

    def _take_requests(self) -> None:
        """Read the requests to run with the next commit."""
        if self._turn is None or self._batch.exclusive:
            return
        self._requests = self._turn.requests_to_run()
        self._batch.take(self._requests)

    def _lost(self, error: CommitConflict, began: float, started: float) -> None:
        """Note a lost race. Raise ContentionTimeout after too many of them."""
        self._losses, now = self._losses + 1, time.monotonic()
        if now - started > TIMEOUT_SECONDS:
            what = f"{show_groups(self._groups)}: a commit"
            group = self._groups[0] if len(self._groups) == 1 else None
            raise too_many_conflicts(what, self._losses, TIMEOUT_SECONDS, group) from error
        self._backoff.lost(now - began)
        soon = self._store.delegates and self._delegation is None
        if self._losses % ASK_AFTER == 0 or (soon and self._losses == ASK_SOON_AFTER):
            self._pleas += self._store.ask_others(self._backoff.pause, now - began)

    def _write(
        self,
        snapshots: Mapping[str, Any],
        after: Mapping[str, NextLedger],
        began: float,
    ) -> int:
        """Return how many commits of others came first."""
        batch, turn = self._batch, self._turn
        note = note_of_groups(
            [{"group": group, **with_user(batch.notes[group])} for group in after]
        )
        ran: Mapping[str, Any] = {}
        leads, is_own = False, not self._leads
        if turn is not None:
            ran = batch.served()
            can_lead = self._delegation is not None
            leads = can_lead and bool(ran) and self._may_lead()
            if served := {**(turn.own_outcome if is_own else {}), **ran}:
                note[SERVED] = served
            if can_lead:
                note[LEADS] = leads
            if leads:
                now = time.monotonic()
                if self._led_at:
                    note[CYCLE] = round(now - self._led_at, 3)
                self._led_at = now
        # Who shares commits need not pause for a writer that can delegate nothing.
        if self._backoff.pause and not self._store.delegates:
            note[PAUSE] = round(self._backoff.pause, 3)
        met = self._store.write(
            *((snapshots[group], _next_revision(ledger)) for group, ledger in after.items()),
            operation_id=uuid.uuid4().hex,
            note=note,
            txns=tuple(batch.txns.items()),
            whole_table=batch.whole_table,
        )
        self._ran = [request for request in self._requests if request.request_id in ran]
        self._leads = leads
        if leads and is_own:
            self._leads_until = time.monotonic() + LEAD_SECONDS
        self._won(time.monotonic() - began, shared=len(ran) + is_own > 1)
        self._store.notifier.notify()
        return met

    def _won(self, seconds: float, *, shared: bool) -> None:
        """Note a commit that took some seconds. `shared` if it ran requests of several writers."""
        self._backoff.won(seconds)
        if self._delegation is not None:
            self._peers.note_commit(shared=shared)
        elif self._store.delegates:
            self._peers.note_lone_commit(self._store.files)

    def _may_lead(self) -> bool:
        """Return whether this writer makes the next commit, too, if others delegate."""
        if self._leads_until is not None:
            return time.monotonic() < self._leads_until
        return not self._peers.leads

    def _lead(self) -> None:
        """Commit what others delegate, as long as they do."""
        turn, peers = self._delegation, self._peers
        assert turn is not None
        peers.leads = True
        try:
            turn.close(self._ran)
            self._commit_for_others(turn)
        except Exception as error:  # also if the process ends: others notice that it leads no more
            _log.debug("commits for other writers of %s ended: %s", self._store.path, error)
        finally:
            peers.leads, peers.led_until = False, 0.0

    def _commit_for_others(self, turn: DelegationTurn) -> None:
        done: list[DelegatedRequest] = []
        try:
            # The process ends with its main thread.
            while self._leads and threading.main_thread().is_alive():
                began, served = time.monotonic(), len(self._ran)
                self._ran, self._batch = (), self._batch.of_others()
                self._peers.grant_pleas()
                turn.find_more_requests(served)
                self._take_requests()
                snapshots, _ = self._read(None)
                after = self._batch.apply(snapshots)
                if after:
                    met = self._write(snapshots, after, began)
                self._leave_others()
                if not after:  # no requests, or only their own writers can run them
                    return
                done += self._ran
                if len(done) >= DELETED_TOGETHER:
                    turn.delete(done)
                    done = []
                self._batch.log()
                if met and turn.others_lead(met):  # one leader is enough
                    return
        finally:
            if done:
                turn.delete(done)


def _next_revision(ledger: NextLedger) -> Ledger | None:
    if not isinstance(ledger, Ledger):
        return None
    head = replace(ledger.head, revision=ledger.head.revision + 1)
    return ledger.replaced(head, ledger.events)
