"""The seam between the rules of a ledger and the place where ledgers are kept."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from spark_mq.ledger.ranges import Ledger
from spark_mq.storage.posted_requests import RequestTurn
from spark_mq.util.fair_lock import FairLock
from spark_mq.util.notifier import Notifier
from spark_mq.util.pace import Pace

__all__ = ["PAUSE", "LedgerCommit", "LedgerSnapshot", "LedgerStore"]


PAUSE: Final = "pause"
"""Key in a commit's note: the pause of its writer in seconds, if others compete."""


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """A group's ledger as read (None: there is no such group), and the token that a commit based on
    it needs."""

    group: str
    ledger: Ledger | None
    token: Any
    looked: bool = True
    """Whether the store was asked for newer commits."""
    txns: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Application transactions of earlier operations in the same commit."""


@dataclass(frozen=True, slots=True)
class LedgerCommit:
    """A commit of the table: its version, its time in microseconds, what it says it did, the
    events that it wrote (LEASES_SCHEMA), the person who made it, and what that person asked for."""

    version: int
    at: int
    group: str | None
    operation: str | None
    operation_id: str | None
    events: pa.Table
    user: str | None = None
    detail: str | None = None


class LedgerStore(Protocol):
    """Where ledgers are kept: the storage seam. ``storage/memory.py`` implements it in memory."""

    bell: Notifier
    """Rung after each commit."""
    paces: dict[str, Pace]
    """The pauses of the groups for which this process has lost races."""

    def door(self, group: str) -> FairLock:
        """Where those on this machine stand in line who want to change the group's ledger."""

    def read(self, group: str, *, blind: bool = False, look: bool | None = True) -> LedgerSnapshot:
        """Return the ledger.

        Parameters
        ----------
        group
            The name of the group.
        blind
            Leave the ledger out: a change replaces it, also if it is unreadable.
        look
            Ask the store for newer commits. None lets the store skip that if it costs a request.

        Raises
        ------
        CorruptLog
            The ledger is damaged.
        """

    def write(
        self,
        stored: LedgerSnapshot,
        ledger: Ledger | None,
        *,
        operation_id: str,
        note: Mapping[str, Any],
        txns: Sequence[tuple[str, int]] = (),
        whole_table: bool = False,
    ) -> None:
        """Commits `ledger` if the group is still as `stored` (with `whole_table`: if nothing at all
        has changed). Raises CommitConflict.

        None drops the group.
        """

    def turn(self, group: str, operations: Sequence[Mapping[str, Any]]) -> RequestTurn | None:
        """Return where a writer that meets others waits for its turn. None: it only pauses.

        Parameters
        ----------
        group
            The name of the group.
        operations
            The operations of the writer as JSON. Another writer may run them.
        """

    def ask_for_way(self, group: str | None, pause: float, *, share: bool = False) -> None:
        """Ask other writers of a group to pause for some seconds. None means all groups.

        With `share`, also ask them to post their operations, and to run those of others.
        """

    def mark(self, stored: LedgerSnapshot, app: str) -> int | None:
        """The number last committed with a mark of `app`, as of `stored`."""

    def known_horizon(self) -> int:
        """The trim horizon as of the last look, or -1."""

    def groups(self) -> list[str]:
        """The names of the groups there are."""

    def group_count(self) -> int:
        """The number of groups as of the last look, with reserved ones."""

    def version(self) -> int:
        """The version of the table."""

    def commit_time(self, version: int) -> int | None:
        """Return the time of a commit in microseconds since 1970, or None if it was cleaned."""

    def last_change(self, group: str) -> int | None:
        """Return the time of a group's last commit in microseconds since 1970, as of the last look.

        None without the group.
        """

    def tags(self) -> dict[str, Hashable]:
        """Return a tag of each group's ledger. Every change of a ledger changes its tag."""

    def scan(
        self, groups: Iterable[str], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield the stored rows of some groups. A group that was dropped meanwhile is left out.

        Nothing is cached, so a scan of many groups needs the memory of one.

        Parameters
        ----------
        groups
            The names of the groups.
        columns
            Columns of LEASES_SCHEMA. Default: all.
        """

    def commits(self, first: int, last: int) -> Iterator[LedgerCommit]:
        """The commits from one version to another that have not been cleaned away, in order."""

    def clean(self, keep_versions: int | None, keep_seconds: float | None, *, archived: int) -> int:
        """Delete old versions that nothing needs. Returns the number of files.

        None keeps the default. Versions after `archived` stay: they are not in ``history/`` yet.
        """
