"""Define the store of ledgers. The store of messages is in ``message_store.py``."""

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


# Key in a commit's note. Its value is the pause of its writer in seconds, if others compete.
PAUSE: Final = "pause"


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """A group's ledger as it was read, or None if the group does not exist."""

    group: str
    ledger: Ledger | None
    token: Any  # identifies what was read, for a commit based on it
    looked: bool = True  # the store was asked for newer commits
    # Application transactions of earlier operations in the same commit.
    txns: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class LedgerCommit:
    """A commit of the table, with its operation and its author."""

    version: int
    at: int  # microseconds since 1970
    group: str | None
    operation: str | None
    operation_id: str | None
    events: pa.Table  # that it wrote, in LEASES_SCHEMA
    user: str | None = None  # the person who made it
    detail: str | None = None  # that person's request


class LedgerStore(Protocol):
    """The store of the ledgers. ``storage/memory.py`` implements it in memory."""

    notifier: Notifier  # notified after each commit
    backoffs: dict[str, Backoff]  # the pauses of the groups for which this process has lost races

    def commit_lock(self, group: str) -> FairLock:
        """Return the lock on a group's ledger for writers on this machine."""

    def read(self, group: str, *, blind: bool = False, look: bool | None = True) -> LedgerSnapshot:
        """Return the ledger. Raise CorruptLog if it is damaged.

        `blind` leaves the ledger out, so that a change can replace an unreadable one. `look` asks
        the store for newer commits. With None, the store skips that if it costs a request.
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
        """Commit a ledger if its group has not changed since `stored`. None drops the group.

        Raise CommitConflict if the group, the trim horizon or an app of `txns` has changed since.
        With `whole_table`, a change of any group counts. After a failure, `operation_id` shows
        whether the commit landed. `note` is the commit's account of itself.
        """

    def request_turn(
        self, group: str, operations: Sequence[Mapping[str, Any]]
    ) -> RequestTurn | None:
        """Return the turn in which a competing writer waits, or None if it only pauses.

        Another writer may run its `operations`, which are JSON.
        """

    def request_pause(self, group: str | None, pause: float, *, share: bool = False) -> None:
        """Ask other writers of a group, or of all groups with None, to pause for some seconds.

        `share` also asks them to post their operations, and to run those of others.
        """

    def txn_number(self, stored: LedgerSnapshot, app: str) -> int | None:
        """Return the number last committed for an app, or None."""

    def known_horizon(self) -> int:
        """Return the trim horizon as of the last look, or -1."""

    def groups(self) -> list[str]:
        """Return the names of all groups but the reserved ones."""

    def group_count(self) -> int:
        """Return the number of groups as of the last look, with the reserved ones."""

    def version(self) -> int: ...

    def commit_time(self, version: int) -> int | None:
        """Return a commit's time in microseconds since 1970, or None if it was cleaned."""

    def last_change(self, group: str) -> int | None:
        """Return a group's last commit time in microseconds, as of the last look, or None."""

    def tags(self) -> dict[str, Hashable]:
        """Return a tag of each group's ledger. Every change of a ledger changes its tag."""

    def scan(
        self, groups: Iterable[str], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield the stored rows of some groups, without those that were dropped meanwhile.

        Nothing is cached, so a scan of many groups needs the memory of a few.
        """

    def commits(self, first: int, last: int) -> Iterator[LedgerCommit]:
        """Yield the commits from one version to another, in order. Cleaned ones are left out."""

    def clean(self, keep_versions: int | None, keep_seconds: float | None, *, archived: int) -> int:
        """Delete old versions that nothing needs. Return the number of files.

        None keeps the default number of latest versions, or those of the default age. Versions
        after `archived` stay, because they are not in ``history/`` yet.
        """
