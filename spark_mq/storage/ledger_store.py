"""The seam between the rules of a ledger and where ledgers are kept, and :func:`change`, the one way to change a ledger."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from spark_mq.errors import CommitConflict, ContentionTimeout
from spark_mq.ledger.ranges import Ledger
from spark_mq.util.fair_lock import FairLock
from spark_mq.util.notifier import Notifier

__all__ = ["Dropped", "LedgerCommit", "LedgerSnapshot", "LedgerStore", "change"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """A group's ledger as read (None: there is no such group), and the token that a commit based on it needs."""

    group: str
    ledger: Ledger | None
    token: Any


@dataclass(frozen=True, slots=True)
class LedgerCommit:
    """A commit of the table: its version, its time in microseconds, what it says it did, and the rows that it wrote (LEASES_SCHEMA)."""

    version: int
    at: int
    group: str | None
    operation: str | None
    operation_id: str | None
    rows: pa.Table


class LedgerStore(Protocol):
    """Where ledgers are kept: the storage seam. Its twin in memory is in ``spark_mq.testing``."""

    bell: Notifier
    """Rung after each commit."""

    def door(self, group: str) -> FairLock:
        """Where those on this machine stand in line who want to change the group's ledger."""

    def read(self, group: str, *, blind: bool = False, look: bool = True) -> LedgerSnapshot:
        """The ledger as it is now. ``blind``: without looking into it, for what replaces it whatever it is. Raises CorruptLog."""

    def write(
        self,
        stored: LedgerSnapshot,
        ledger: Ledger | None,
        *,
        operation_id: str,
        note: Mapping[str, Any],
        mark: tuple[str, int] | None = None,
        whole_table: bool = False,
    ) -> None:
        """Commits `ledger` if the group is still as `stored` (with `whole_table`: if nothing at all has changed). Raises CommitConflict.

        None drops the group.
        """

    def mark(self, stored: LedgerSnapshot, app: str) -> int | None:
        """The number last committed with a mark of `app`, as of `stored`."""

    def groups(self) -> list[str]:
        """The names of the groups there are."""

    def version(self) -> int:
        """The version of the table."""

    def commits(self, first: int, last: int) -> Iterator[LedgerCommit]:
        """The commits from one version to another that have not been cleaned away, in order."""


class Dropped:
    """What a step of :func:`change` returns for a group that is to go."""


def change(
    store: LedgerStore,
    group: str,
    step: Callable[[LedgerSnapshot], tuple[Ledger | type[Dropped] | None, T, Mapping[str, Any]]],
    *,
    mark: Callable[[T], tuple[str, int] | None] = lambda _: None,
    whole_table: bool = False,
    blind: bool = False,
    patience: float = 30.0,
    pause: float = 0.005,
) -> T:
    """Reads a group's ledger, lets `step` compute the next, commits it; from the start again whenever the race is lost.

    `step` returns the next ledger (None or the same object: nothing to commit; Dropped: the group goes), its result, and a note of what
    it did for the commit's metadata. ``patience``: seconds until ContentionTimeout. ``pause``: seconds to wait after the first loss, longer
    for what may wait (a lease) than for what must not (a settle); after the second it gets in line.
    """
    attempts, deadline = 0, time.monotonic() + patience
    with store.door(group).turn():
        while True:
            try:
                stored = store.read(group, blind=blind)
                ledger, result, note = step(stored)
                app_mark = mark(result)
                if ledger is None or (ledger is stored.ledger and app_mark is None):
                    return result
                store.write(
                    stored,
                    _next(ledger) if isinstance(ledger, Ledger) else None,
                    operation_id=uuid.uuid4().hex,
                    note={"group": group, **note},
                    mark=app_mark,
                    whole_table=whole_table,
                )
                store.bell.ring()
                return result
            except CommitConflict as error:
                attempts += 1
                if time.monotonic() > deadline:
                    raise ContentionTimeout(
                        f"group {group!r}: a commit lost {attempts} races in {patience:.0f} s; nothing was changed. "
                        "Fewer workers with larger leases contend less",
                        group=group,
                        attempts=attempts,
                    ) from error
                time.sleep(pause * min(8, attempts) * random.uniform(0.5, 1.5))


def _next(ledger: Ledger) -> Ledger:
    return Ledger(replace(ledger.head, revision=ledger.head.revision + 1), ledger.ranges, ledger.events)
