"""The one way to change a ledger: read, compute, commit, and start again after a conflict."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace as with_changes
from enum import Enum
from types import MappingProxyType
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

from spark_mq.errors import CommitConflict
from spark_mq.ledger.ranges import Ledger
from spark_mq.storage.ledger_store import PAUSE, LedgerSnapshot, LedgerStore
from spark_mq.util.pace import Pace, too_many_conflicts
from spark_mq.util.user import with_user

__all__ = ["DROP_GROUP", "NextLedger", "Priority", "Update", "update_ledger"]

T = TypeVar("T")


class _Drop(Enum):
    GROUP = "drop group"


DROP_GROUP: Final = _Drop.GROUP
"""Returned by a compute function to drop the group."""

ASK_AFTER: Final = 5
"""Lost races in a row after which a writer asks the others to pause. A writer that is much slower
than they are would lose each race. Others lose fewer, and ask for nothing."""

NextLedger = Ledger | Literal[_Drop.GROUP] | None
"""The ledger to commit. None or the ledger that was read: there is nothing to commit."""

Update = tuple[NextLedger, T, Mapping[str, Any]]
"""The next ledger, the result, and the commit's own account of what it did."""


class Priority(Enum):
    """How long a commit pauses if others compete. The value is a share of the common pause."""

    #: For settles and extensions. They come first, or leases would starve them.
    SETTLE = 0.5
    #: For leases and the sweep, which can wait.
    LEASE = 1.0


Params = ParamSpec("Params")


def _leaves_no_turn(
    update: Callable[Concatenate[LedgerStore, str, Params], T],
) -> Callable[Concatenate[LedgerStore, str, Params], T]:
    """Release the turn if an interrupt kept the update from it."""

    @functools.wraps(update)
    def wrapped(store: LedgerStore, group: str, /, *args: Params.args, **given: Params.kwargs) -> T:
        try:
            return update(store, group, *args, **given)
        except BaseException:
            store.door(group).abandon()
            raise

    return wrapped


@_leaves_no_turn
def update_ledger(
    store: LedgerStore,
    group: str,
    compute: Callable[[LedgerSnapshot], Update[T]],
    *,
    txns: Mapping[str, int] = MappingProxyType({}),
    whole_table: bool = False,
    replace: bool = False,
    timeout: float = 30.0,
    priority: Priority = Priority.SETTLE,
) -> T:
    """Commit what `compute` makes of a group's ledger.

    Parameters
    ----------
    store
        The store of the ledger.
    group
        The name of the group.
    compute
        Computes the next ledger from a snapshot. It runs again after each conflict.
    txns
        The application transactions to commit. `compute` may change them.
    whole_table
        Conflict with every other commit, not only with those of this group.
    replace
        Do not read the ledger: `compute` replaces it, also if it is unreadable.
    timeout
        Seconds until the update gives up.
    priority
        Sets the pause if others compete.

    Returns
    -------
    T
        The result of the last `compute`.

    Raises
    ------
    ContentionTimeout
        Every commit conflicted until the timeout.
    """
    with store.door(group).hold():
        started, losses = time.monotonic(), 0
        pace = store.paces.get(group)
        look: bool | None = None  # the store may skip the first look, which costs it a request
        while True:
            if pace is not None:
                pace.wait(priority.value)
            began = time.monotonic()
            try:
                snapshot = store.read(group, blind=replace, look=look)
                done, result = _attempt(
                    store,
                    snapshot,
                    compute,
                    txns=txns,
                    whole_table=whole_table,
                    pace=pace,
                    began=began,
                )
            except CommitConflict as error:
                losses, now = losses + 1, time.monotonic()
                if now - started > timeout:
                    what = f"group {group!r}: a commit"
                    raise too_many_conflicts(what, losses, timeout, group) from error
                pace = store.paces.setdefault(group, Pace())
                pace.lost(now - began)
                if losses % ASK_AFTER == 0:
                    store.ask_for_way(None if whole_table else group, pace.pause)
            else:
                if done:
                    return result
            look = True


def _attempt(
    store: LedgerStore,
    snapshot: LedgerSnapshot,
    compute: Callable[[LedgerSnapshot], Update[T]],
    *,
    txns: Mapping[str, int],
    whole_table: bool,
    pace: Pace | None,
    began: float,
) -> tuple[bool, Any]:
    """Compute and commit once. Return whether it is done, and the result.

    It is not done if there was nothing to commit, or an error, on a state that may be old.
    """
    try:
        ledger, result, info = compute(snapshot)
    except Exception:
        if snapshot.looked:
            raise
        return False, None
    if ledger is None or (ledger is snapshot.ledger and not txns):
        return snapshot.looked, result
    note = {"group": snapshot.group, **with_user(info)}
    store.write(
        snapshot,
        None if ledger is DROP_GROUP else _next_revision(ledger),
        operation_id=uuid.uuid4().hex,
        note={**note, PAUSE: round(pace.pause, 3)} if pace and pace.pause else note,
        txns=tuple(txns.items()),
        whole_table=whole_table,
    )
    if pace is not None:
        pace.won(time.monotonic() - began)
        if not pace.pause:
            store.paces.pop(snapshot.group, None)
    store.bell.notify()
    return True, result


def _next_revision(ledger: Ledger) -> Ledger:
    head = with_changes(ledger.head, revision=ledger.head.revision + 1)
    return ledger.replaced(head, ledger.events)
