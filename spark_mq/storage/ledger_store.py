"""Define the store of ledgers, one half of the storage seam."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from spark_mq.ledger.ranges import Ledger
from spark_mq.storage.posted_requests import RequestTurn
from spark_mq.util.backoff import Backoff
from spark_mq.util.fair_lock import FairLock
from spark_mq.util.notifier import Notifier

__all__ = ["PAUSE", "LedgerCommit", "LedgerSnapshot", "LedgerStore"]


PAUSE: Final = "pause"
"""Key in a commit's note. Its value is the pause of its writer in seconds, if others compete."""


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """A group's ledger as it was read. None: the group does not exist.

    ``token`` identifies what was read. A commit based on the snapshot needs it.
    """

    group: str
    ledger: Ledger | None
    token: Any
    looked: bool = True
    """Whether the store was asked for newer commits."""
    txns: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Application transactions of earlier operations in the same commit."""


@dataclass(frozen=True, slots=True)
class LedgerCommit:
    """A commit of the table, with its operation and its author.

    ``at`` is its time in microseconds since 1970. ``events`` are the events that it wrote
    (LEASES_SCHEMA). ``user`` is the person who made it. ``detail`` is that person's request.
    """

    version: int
    at: int
    group: str | None
    operation: str | None
    operation_id: str | None
    events: pa.Table
    user: str | None = None
    detail: str | None = None


class LedgerStore(Protocol):
    """The store of the ledgers. ``storage/memory.py`` implements it in memory."""

    notifier: Notifier
    """Notified after each commit."""
    backoffs: dict[str, Backoff]
    """The pauses of the groups for which this process has lost races."""

    def commit_lock(self, group: str) -> FairLock:
        """Return the lock on a group's ledger for writers on this machine."""

    def read(self, group: str, *, blind: bool = False, look: bool | None = True) -> LedgerSnapshot:
        """Return the ledger.

        Parameters
        ----------
        group
            The name of the group.
        blind
            Leave the ledger out. A change replaces it, also if it is unreadable. Default: False.
        look
            Ask the store for newer commits. None lets the store skip that if it costs a request.
            Default: True.

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
        """Commit a ledger if its group has not changed since `stored`.

        Parameters
        ----------
        stored
            The snapshot that `ledger` was computed from.
        ledger
            The next ledger. None drops the group.
        operation_id
            The id of the operation. It shows after a failure whether the commit landed.
        note
            The commit's account of itself.
        txns
            Application transactions, ``(app id, number)``. Default: none.
        whole_table
            Conflict with a commit of any group. Default: False.

        Raises
        ------
        CommitConflict
            The group has changed since `stored`. With `whole_table`: any group has changed.
        """

    def request_turn(
        self, group: str, operations: Sequence[Mapping[str, Any]]
    ) -> RequestTurn | None:
        """Return the turn of a writer that competes with others.

        The writer waits there until it must commit. None: it only pauses.

        Parameters
        ----------
        group
            The name of the group.
        operations
            The operations of the writer as JSON. Another writer may run them.
        """

    def request_pause(self, group: str | None, pause: float, *, share: bool = False) -> None:
        """Ask other writers of a group to pause.

        Parameters
        ----------
        group
            The name of the group. None means all groups.
        pause
            The pause in seconds.
        share
            Also ask them to post their operations, and to run those of others. Default: False.
        """

    def txn_number(self, stored: LedgerSnapshot, app: str) -> int | None:
        """Return the number last committed for an app.

        Parameters
        ----------
        stored
            The snapshot to look in.
        app
            The app id of the transaction.

        Returns
        -------
        int or None
            None if there is no such number.
        """

    def known_horizon(self) -> int:
        """Return the trim horizon as of the last look, or -1."""

    def groups(self) -> list[str]:
        """Return the names of all groups."""

    def group_count(self) -> int:
        """Return the number of groups as of the last look.

        Reserved groups count.
        """

    def version(self) -> int:
        """Return the version of the table."""

    def commit_time(self, version: int) -> int | None:
        """Return the time of a commit, or None if it was cleaned.

        The time is in microseconds since 1970.
        """

    def last_change(self, group: str) -> int | None:
        """Return the time of a group's last commit.

        The time is in microseconds since 1970, as of the last look. None: the group does not exist.
        """

    def tags(self) -> dict[str, Hashable]:
        """Return a tag of each group's ledger. Every change of a ledger changes its tag."""

    def scan(
        self, groups: Iterable[str], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield the stored rows of some groups.

        A group that was dropped meanwhile is left out. Nothing is cached, so a scan of many groups
        needs the memory of one.

        Parameters
        ----------
        groups
            The names of the groups.
        columns
            Columns of LEASES_SCHEMA. Default: all.
        """

    def commits(self, first: int, last: int) -> Iterator[LedgerCommit]:
        """Yield the commits from one version to another, in order.

        Commits that were cleaned away are left out.
        """

    def clean(self, keep_versions: int | None, keep_seconds: float | None, *, archived: int) -> int:
        """Delete old versions that nothing needs. Return the number of files.

        Parameters
        ----------
        keep_versions
            Number of latest versions to keep. None keeps the default.
        keep_seconds
            Versions younger than this stay, in seconds. None keeps the default.
        archived
            Last archived version. Later versions stay, because they are not in ``history/`` yet.
        """
