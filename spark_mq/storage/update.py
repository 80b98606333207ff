"""Change a ledger. All changes of ledgers come through here.

An update reads, computes and commits. It repeats all that after a conflict.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as with_changes
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import CommitConflict
from spark_mq.ledger.ranges import Ledger
from spark_mq.storage.ledger_store import PAUSE, LedgerSnapshot
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.posted_requests import SERVED, RequestTurn
from spark_mq.storage.request_files import PostedRequest
from spark_mq.util.backoff import Backoff, too_many_conflicts
from spark_mq.util.user import with_user

__all__ = ["DROP_GROUP", "NextLedger", "Priority", "SharedWork", "Update", "update_ledger"]

T = TypeVar("T")


class _Drop(Enum):
    GROUP = "drop group"


DROP_GROUP: Final = _Drop.GROUP  # a compute function returns it to drop the group

# Lost races in a row after which a writer asks the others to pause. Otherwise a much slower writer
# would lose each race. Other writers lose fewer, and ask for nothing.
ASK_AFTER: Final = 5

# Lost races in a row after which a writer posts its operations, if the store has no lock. Two
# writers that lose few races are faster without it.
SHARE_AFTER: Final = 2

# Pause in seconds that a commit names if it ran the operations of others. Other writers then post
# at their first conflict.
SHARED_PAUSE: Final = 0.2

# The ledger to commit. There is nothing to commit if it is None or the ledger that was read.
NextLedger = Ledger | Literal[_Drop.GROUP] | None

# The next ledger, the result, and the commit's account of itself.
Update = tuple[NextLedger, T, Mapping[str, Any]]


class Priority(Enum):
    """How long a commit pauses if others compete. The value is a share of the common pause."""

    #: For settles and extensions. They come first, or leases would starve them.
    SETTLE = 0.5
    #: For leases and the sweep, which can wait.
    LEASE = 1.0


Params = ParamSpec("Params")


class SharedWork(Protocol):
    """Operations that another writer's commit may run, and the reverse."""

    def posted(self) -> Sequence[Mapping[str, Any]] | None:
        """Return the operations as JSON, or None if only this process can run them."""

    def take(self, requests: Sequence[PostedRequest]) -> None:
        """Run the operations of others too, with the next commit."""

    def served(self) -> dict[str, Any]:
        """Return the outcomes of the operations of others, by request."""

    def accept(self, outcome: Any) -> Any:
        """Return the own results as the commit of another writer names them."""


def _abandons_lock(
    update: Callable[Concatenate[LedgerTable, str, Params], T],
) -> Callable[Concatenate[LedgerTable, str, Params], T]:
    """Abandon the lock if an interrupt kept the update from its release."""

    @functools.wraps(update)
    def wrapped(store: LedgerTable, group: str, /, *args: Params.args, **given: Params.kwargs) -> T:
        try:
            return update(store, group, *args, **given)
        except BaseException:
            store.commit_lock(group).abandon()
            raise

    return wrapped


@_abandons_lock
def update_ledger(
    store: LedgerTable,
    group: str,
    compute: Callable[[LedgerSnapshot], Update[T]],
    *,
    txns: Mapping[str, int] = MappingProxyType({}),
    whole_table: bool = False,
    replace: bool = False,
    timeout: float = 30.0,
    priority: Priority = Priority.SETTLE,
    share: SharedWork | None = None,
) -> T:
    """Commit the ledger that `compute` makes of a group's ledger. Return its result.

    `compute` runs again after each conflict, and may change `txns`. `replace` reads no ledger, so
    that `compute` can replace an unreadable one. `share` has the operations of `compute`, if other
    writers of an object store may run them. Raise ContentionTimeout if every commit conflicted
    until the timeout.
    """
    with store.commit_lock(group).hold():
        updating = _Updating(
            store, group, compute,
            txns=txns, whole_table=whole_table, replace=replace, priority=priority, share=share,
        )  # fmt: skip
        return updating.run(timeout)


class _Updating:
    """One update in progress."""

    def __init__(
        self,
        store: LedgerTable,
        group: str,
        compute: Callable[[LedgerSnapshot], Update[Any]],
        *,
        txns: Mapping[str, int],
        whole_table: bool,
        replace: bool,
        priority: Priority,
        share: SharedWork | None,
    ) -> None:
        self._store, self._group, self._compute = store, group, compute
        self._txns, self._whole_table, self._replace = txns, whole_table, replace
        self._priority, self._share = priority, share
        self._losses = 0
        self._backoff = store.backoffs.get(group)
        self._turn: RequestTurn | None = None
        self._requests: Sequence[PostedRequest] = ()
        self._ran: Sequence[PostedRequest] = ()  # with the commit

    def run(self, timeout: float) -> Any:
        """Repeat until a commit lands. Return its result."""
        try:
            return self._run(timeout)
        except STORE_ERRORS as error:
            if self._turn is None or self._share is None:
                raise
            return self._share.accept(self._turn.outcome_after(error))
        finally:
            if self._turn is not None:
                self._turn.close(self._ran)

    def _run(self, timeout: float) -> Any:
        started = time.monotonic()
        look: bool | None = None  # the store may skip the first look, which costs it a request
        while True:
            if self._backoff is not None:
                outcome = self._wait(self._backoff, started + timeout)
                if outcome is not None and self._share is not None:
                    return self._share.accept(outcome)
            began = time.monotonic()
            try:
                snapshot = self._read(look)
                if (outcome := self._check_requests()) is not None and self._share is not None:
                    return self._share.accept(outcome)
                done, result = self._attempt(snapshot, began)
            except CommitConflict as error:
                self._losses, now = self._losses + 1, time.monotonic()
                if now - started > timeout:
                    what = f"group {self._group!r}: a commit"
                    raise too_many_conflicts(what, self._losses, timeout, self._group) from error
                self._lost(now - began)
            else:
                if done:
                    return result
            look = True

    def _read(self, look: bool | None) -> LedgerSnapshot:
        if self._turn is None:
            return self._store.read(self._group, blind=self._replace, look=look)
        # The wait for the turn has just looked.
        found = self._store.read(self._group, blind=self._replace, look=False)
        return with_changes(found, looked=True)

    def _check_requests(self) -> Any | None:
        """Leave out the requests that a commit up to the snapshot ran. Return the own outcome."""
        if self._turn is None or self._share is None:
            return None
        left = self._turn.not_run(self._requests)
        if len(left) < len(self._requests):
            self._requests = left
            self._share.take(left)
        return self._turn.outcome()

    def _wait(self, backoff: Backoff, until: float) -> Any | None:
        """Pause, or wait for a turn. Return the outcome if another writer ran the operations."""
        if self._share is None or not (backoff.shares or self._losses >= SHARE_AFTER):
            backoff.wait(self._priority.value)
            return None
        if self._turn is None and (operations := self._share.posted()) is not None:
            self._turn = self._store.request_turn(self._group, operations)
        if self._turn is None:
            backoff.wait(self._priority.value)
            return None
        backoff.shares = True
        outcome = self._turn.wait(until)
        if outcome is None:
            read = partial(self._store.read, self._group, look=False)
            self._requests = self._turn.requests_to_run(read)
            self._share.take(self._requests)
        else:
            backoff.take_over(SHARED_PAUSE)
        return outcome

    def _lost(self, seconds: float) -> None:
        self._backoff = self._store.backoffs.setdefault(self._group, Backoff())
        self._backoff.lost(seconds)
        group = None if self._whole_table else self._group
        if self._turn is not None:
            if not self._turn.others_share():
                # The winner does not look for requests yet. A commit with a pause makes it look.
                self._store.request_pause(group, SHARED_PAUSE, share=True)
        elif self._losses % ASK_AFTER == 0:
            self._store.request_pause(group, self._backoff.pause)

    def _attempt(self, snapshot: LedgerSnapshot, began: float) -> tuple[bool, Any]:
        """Compute and commit once. Return whether it is done, and the result.

        It is not done if there was nothing to commit, or an error, on a state that may be old.
        """
        try:
            ledger, result, info = self._compute(snapshot)
        except Exception:
            if snapshot.looked:
                raise
            return False, None
        if ledger is None or (ledger is snapshot.ledger and not self._txns):
            return snapshot.looked, result
        backoff = self._backoff
        note = {"group": snapshot.group, **with_user(info)}
        if backoff and backoff.pause:
            note[PAUSE] = round(backoff.pause, 3)
        if self._turn is not None and self._share is not None:
            served = self._share.served()
            note[SERVED] = {self._turn.request_id: None, **served}
        self._store.write(
            snapshot,
            None if ledger is DROP_GROUP else _next_revision(ledger),
            operation_id=uuid.uuid4().hex,
            note=note,
            txns=tuple(self._txns.items()),
            whole_table=self._whole_table,
        )
        self._ran = [one for one in self._requests if one.request_id in note.get(SERVED, ())]
        if self._turn is not None:
            self._turn.leave(one for one in self._requests if one not in self._ran)
        if backoff is not None:
            backoff.won(time.monotonic() - began)
            if self._ran:
                backoff.take_over(SHARED_PAUSE)
            if not backoff.pause:
                self._store.backoffs.pop(snapshot.group, None)
        self._store.notifier.notify()
        return True, result


def _next_revision(ledger: Ledger) -> Ledger:
    head = with_changes(ledger.head, revision=ledger.head.revision + 1)
    return ledger.replaced(head, ledger.events)
