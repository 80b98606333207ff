"""The one way to change a ledger: read, compute, commit, and start again after a conflict."""

from __future__ import annotations

import functools
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as with_changes
from enum import Enum
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

from spark_mq.errors import CommitConflict, ContentionTimeout
from spark_mq.ledger.ranges import Ledger
from spark_mq.storage.ledger_store import LedgerSnapshot, LedgerStore

__all__ = ["DROP_GROUP", "NextLedger", "Priority", "Update", "update_ledger"]

T = TypeVar("T")


class _Drop(Enum):
    GROUP = "drop group"


DROP_GROUP: Final = _Drop.GROUP
"""Returned by a compute function to drop the group."""

NextLedger = Ledger | Literal[_Drop.GROUP] | None
"""The ledger to commit. None or the ledger that was read: there is nothing to commit."""

Update = tuple[NextLedger, T, Mapping[str, Any]]
"""The next ledger, the result, and the commit's own account of what it did."""


class Priority(Enum):
    """How soon a commit tries again after its first conflict. The value is the pause in seconds."""

    #: For settles and extensions. They come first, or leases would starve them.
    SETTLE = 0.005
    #: For leases and the sweep, which can wait.
    LEASE = 0.02


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
    txns: Callable[[T], Sequence[tuple[str, int]]] | None = None,
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
        Returns the application transactions to commit with a result.
    whole_table
        Conflict with every other commit, not only with those of this group.
    replace
        Do not read the ledger: `compute` replaces it, also if it is unreadable.
    timeout
        Seconds until the update gives up.
    priority
        Sets the pause after the first conflict. It grows with each conflict.

    Returns
    -------
    T
        The result of the last `compute`.

    Raises
    ------
    ContentionTimeout
        Every commit conflicted until the timeout.
    """
    attempts, deadline = 0, time.monotonic() + timeout
    with store.door(group).hold():
        while True:
            try:
                # Over a store, a look costs a request, and the put finds out all the same.
                look = attempts > 0 or not store.may_skip_look()
                snapshot = store.read(group, blind=replace, look=look)
                try:
                    ledger, result, info = compute(snapshot)
                except Exception:
                    if look:
                        raise
                    attempts += 1  # perhaps the state was old
                    continue
                transactions = () if txns is None else txns(result)
                if ledger is None or (ledger is snapshot.ledger and not transactions):
                    if look:
                        return result
                    attempts += 1
                    continue
                store.write(
                    snapshot,
                    None if ledger is DROP_GROUP else _next_revision(ledger),
                    operation_id=uuid.uuid4().hex,
                    note={"group": group, **info},
                    txns=transactions,
                    whole_table=whole_table,
                )
                store.bell.notify()
                return result
            except CommitConflict as error:
                attempts += 1
                if time.monotonic() > deadline:
                    raise _timed_out(group, attempts, timeout) from error
                time.sleep(priority.value * min(8, attempts) * random.uniform(0.5, 1.5))


def _next_revision(ledger: Ledger) -> Ledger:
    head = with_changes(ledger.head, revision=ledger.head.revision + 1)
    return Ledger(head, ledger.ranges, ledger.events)


def _timed_out(group: str, attempts: int, timeout: float) -> ContentionTimeout:
    return ContentionTimeout(
        f"group {group!r}: a commit lost {attempts} races in {timeout:.0f} s; nothing was changed. "
        "Fewer workers with larger leases contend less",
        group=group,
        attempts=attempts,
    )
