"""Change the ledger of one group together with other threads.

Threads that change a ledger at the same time share a commit. Their operations run one after the
other, settles and extensions before leases. Each operation gets the ledger that the one before it
left, and its errors are its own.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import CommitConflict, StorageError
from spark_mq.ledger import settle as settling
from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.commit_info import join_commit_info, settle_info
from spark_mq.ledger.intervals import Interval, subtract
from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.log_marks import with_mark
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import Ledger
from spark_mq.ledger.schedule import settle_expired_held
from spark_mq.ledger.settle import SettleCommand, SettleOutcome
from spark_mq.ledger.transitions import expire_leases
from spark_mq.operations.breaker_log import log_breaker_change
from spark_mq.operations.group_reader import GroupReader, GroupView
from spark_mq.operations.payloads import PayloadFiles
from spark_mq.operations.posted_work import Posted, RequestRunner, post_settles
from spark_mq.operations.signals import destination_of, settle_signals
from spark_mq.storage.history_table import HistoryTable
from spark_mq.storage.ledger_store import LedgerSnapshot
from spark_mq.storage.request_files import PostedRequest
from spark_mq.storage.update import Priority, Update, update_ledger
from spark_mq.telemetry.watch import Watch, watched
from spark_mq.util.call_batcher import CallBatcher
from spark_mq.util.user import current_user

__all__ = [
    "CREATE_GROUP",
    "LedgerOperation",
    "OperationBatcher",
    "SharedLedger",
]

T = TypeVar("T")
_CLOSED: Final = Breaker()
CREATE_GROUP: Final = "create group"


@dataclass(frozen=True, slots=True, eq=False)
class LedgerOperation(Generic[T]):
    """A change of a ledger, in a commit that may hold other changes."""

    compute: Callable[[GroupView], Update[T]]  # runs again after each conflict
    txn: Callable[[T], tuple[str, int] | None] | None = None  # to commit with a result
    priority: Priority = Priority.SETTLE
    lease_ids: frozenset[str] = frozenset()  # that it settles or extends
    watch: Watch | None = None  # returns its telemetry
    post: Callable[[], Posted[T]] | None = None  # set if another writer's commit may run it


_Asked = tuple["SharedLedger", LedgerOperation[Any]]
OperationBatcher = CallBatcher[Sequence[_Asked], list[Any]]


class SharedLedger(GroupReader):
    """Changes the ledger of one group with other threads, after `share`. Thread-safe."""

    batcher: OperationBatcher
    payloads: PayloadFiles
    history: HistoryTable
    # The context sets it.
    open_posted: Callable[[Mapping[str, Any]], LedgerOperation[Any] | None] | None = None
    _created = False

    def share(
        self,
        payloads: PayloadFiles,
        history: HistoryTable,
        batchers: dict[str, OperationBatcher],
    ) -> None:
        """Share checked files, the archive and commits with other objects of the queue."""
        self.payloads, self.history = payloads, history
        self.batcher = batchers.setdefault(self.name, CallBatcher(self._run_batch))

    def run(self, operation: LedgerOperation[T]) -> T:
        """Run an operation in a commit that other threads may share. Return its result."""
        return _or_raise(self.run_together(operation)[0])

    def run_together(self, *operations: LedgerOperation[Any]) -> list[Any]:
        """Run operations in one commit. Return the result or the error of each."""
        self._process.check()
        asked = [(self, operation) for operation in operations]
        if "opentelemetry" not in sys.modules:  # no SDK is set up
            return self.batcher.do(asked)
        destination = destination_of(self.queue_path, self.name)
        watches = [operation.watch for operation in operations]
        return watched(destination, watches, lambda: self.batcher.do(asked))

    def _run_batch(self, calls: Sequence[Sequence[_Asked]]) -> list[list[Any]]:
        """Run the operations of several callers in one commit."""
        commit = _SharedCommit([asked for call in calls for asked in call])
        try:
            results = update_ledger(
                self._ledgers,
                self.name,
                commit.compute,
                txns=commit.txns,
                priority=commit.priority,
                share=commit,
            )
            before, after = commit.breakers
            if before is not after:
                log_breaker_change(self.name, before, after)
        except STORE_ERRORS as error:
            if len(commit.asked) == 1:
                raise
            results = [_own_copy(error) for _ in commit.asked]
        each = iter(results)
        return [[next(each) for _ in call] for call in calls]

    def update(
        self,
        compute: Callable[[GroupView], Update[T]],
        *,
        txn: Callable[[T], tuple[str, int] | None] | None = None,
        priority: Priority = Priority.SETTLE,
        lease_ids: frozenset[str] = frozenset(),
        watch: Watch | None = None,
        post: Callable[[], Posted[T]] | None = None,
    ) -> T:
        """Run an operation in a commit that others may share. See :class:`LedgerOperation`."""
        operation = LedgerOperation(compute, txn, priority, lease_ids, watch, post)
        if current_user() is None or watch is not None:
            return self.run(operation)
        # Not shared: the commit names the person, and others must not get the name. An operation
        # with `watch` is a worker's, as its leases and settles are.
        self._process.check()
        ((result,),) = self._run_batch([[(self, operation)]])
        return _or_raise(result)

    def settle(self, commands: Sequence[SettleCommand]) -> list[SettleOutcome]:
        """Run several settles in one commit, in order. Messages not held are in the outcomes."""
        return self.run(self.settle_operation(commands))

    def settle_operation(
        self, commands: Sequence[SettleCommand]
    ) -> LedgerOperation[list[SettleOutcome]]:
        def compute(view: GroupView) -> Update[list[SettleOutcome]]:
            ledger = expire_leases(view.ledger, view.now, view.settings, view.held)
            ledger, outcomes = self.settle_all(ledger, view, commands)
            changed = any(outcome.settled or outcome.ended for outcome in outcomes)
            return ledger if changed else None, outcomes, settle_info(commands, outcomes)

        lease_ids = frozenset(one.lease_id for one in commands)
        watch = partial(settle_signals, commands)
        post = partial(post_settles, commands)
        return LedgerOperation(compute, lease_ids=lease_ids, watch=watch, post=post)

    def settle_all(
        self, ledger: Ledger, view: GroupView, commands: Sequence[SettleCommand]
    ) -> tuple[Ledger, list[SettleOutcome]]:
        """Run commands on a ledger whose late leases have expired. Commit nothing."""
        # A caller that names later messages than this process knows may know more.
        named = (last for command in commands for _, last in command.intervals or ())
        index = self.index_for(ledger, max(named, default=-1))
        for lease_id in dict.fromkeys(command.lease_id for command in commands):
            ledger = settle_expired_held(ledger, index, view.now, view.settings, lease_id)
        if view.settings.order == "key" and is_ordered(index, view.settings):
            return _settle_in_order(ledger, index, view, commands)
        outcomes = []
        for command in commands:
            ledger, outcome = settling.settle(ledger, index, view.now, view.settings, command)
            outcomes.append(outcome)
        return ledger, outcomes


def _settle_in_order(
    ledger: Ledger, index: MessageIndex, view: GroupView, commands: Sequence[SettleCommand]
) -> tuple[Ledger, list[SettleOutcome]]:
    """Run nacks and releases first, because no other command may settle what they return."""
    outcomes: dict[int, SettleOutcome] = {}
    returned: dict[str, list[Interval]] = {}
    gives_back = (settling.NACK, settling.RELEASE)
    for at in sorted(range(len(commands)), key=lambda at: commands[at].verb not in gives_back):
        command = commands[at]
        gone = returned.setdefault(command.lease_id, [])
        if command.intervals is not None:
            command = replace(command, intervals=subtract(command.intervals, gone))
        ledger, outcomes[at] = settling.settle(ledger, index, view.now, view.settings, command)
        gone += outcomes[at].returned
    return ledger, [outcomes[at] for at in range(len(commands))]


class _SharedCommit:
    """The operations of one commit, run in their order."""

    def __init__(self, asked: Sequence[_Asked]) -> None:
        self.asked = asked
        self.priority = min((one.priority for _, one in asked), key=_rank)
        self.txns: dict[str, int] = {}
        self.breakers = _CLOSED, _CLOSED  # before and after the commit
        self._order = sorted(range(len(asked)), key=lambda at: _rank(asked[at][1].priority))
        self._held = frozenset(lease_id for _, one in asked for lease_id in one.lease_ids)
        self._own = self._held
        self._runner: RequestRunner | None = None

    def posted(self) -> Sequence[Mapping[str, Any]] | None:
        group = self.asked[0][0]
        if group.open_posted is None or current_user() is not None:
            return None
        found = [one.post().data for _, one in self.asked if one.post is not None]
        return found if len(found) == len(self.asked) else None

    def take(self, requests: Sequence[PostedRequest]) -> None:
        open_posted = self.asked[0][0].open_posted
        self._runner = None if open_posted is None else RequestRunner(requests, open_posted)
        self._held = self._own | (self._runner.lease_ids if self._runner else frozenset())

    def served(self) -> dict[str, Any]:
        return {} if self._runner is None else self._runner.served

    def accept(self, outcome: Any) -> list[Any]:
        try:
            return [
                one.post().decode(result)
                for (_, one), result in zip(self.asked, outcome, strict=True)
                if one.post is not None
            ]
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            group = self.asked[0][0]
            raise StorageError(
                f"changing group {group.name!r}: the commit of another worker ran the operation, "
                "and its outcome cannot be read. Use one version of spark_mq in all workers.",
                path=group.queue_path,
                landed=True,
            ) from error

    def compute(self, snapshot: LedgerSnapshot) -> Update[list[Any]]:
        """Run all operations on a snapshot. Return the result or the error of each."""
        self.txns.clear()
        now, infos = snapshot, list[Mapping[str, Any]]()
        results: list[Any] = [None] * len(self.asked)
        for at in self._order:
            after, results[at], info = self._run(*self.asked[at], now)
            if after is not None:
                now = replace(now, ledger=after, txns=dict(self.txns))
                infos.append(info)
            elif not snapshot.looked:
                return None, results, {}  # perhaps the state was old: look, and run all again
        if self._runner is not None:
            now, more = self._runner.run(now, partial(self._run, self.asked[0][0]))
            infos += more
        if snapshot.ledger is not None and now.ledger is not None:
            self.breakers = snapshot.ledger.head.breaker, now.ledger.head.breaker
        return now.ledger if infos else None, results, _info(infos)

    def _run(
        self, group: SharedLedger, operation: LedgerOperation[Any], snapshot: LedgerSnapshot
    ) -> tuple[Ledger | None, Any, Mapping[str, Any]]:
        """Run one operation. The ledger is None if it has nothing to commit."""
        try:
            view = group.view(snapshot, self._held)
            after, result, info = operation.compute(view)
            txn = None if operation.txn is None else operation.txn(result)
        except CommitConflict:
            raise
        except Exception as error:
            return None, error, {}
        if after is None or (after is view.ledger and txn is None):
            return None, result, {}
        assert isinstance(after, Ledger), "a group is dropped by an update of the whole table"
        after = with_mark(after, group._messages.known())
        self.txns.update([] if txn is None else [txn])
        return after, result, info


def _or_raise(result: Any) -> Any:
    if isinstance(result, Exception):
        raise result
    return result


def _info(infos: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    if len(infos) > 1:
        return join_commit_info(infos)
    return infos[0] if infos else {}


def _rank(priority: Priority) -> float:
    return priority.value


def _own_copy(error: Exception) -> Exception:
    """Return a copy for one of several callers, as a raised error belongs to one thread."""
    own = copy.copy(error)
    own.__cause__ = error
    return own
