"""Define the archive of ledger commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

__all__ = ["Archived", "Filters", "HistoryStore"]

Filters = list[tuple[str, str, Any]]
"""Conditions on rows. Each has a column, one of ``=``, ``<=``, ``>=``, and a value."""


class Archived(NamedTuple):
    """The number of archived commits, and the last archived version of ``leases/``."""

    commits: int
    up_to: int


class HistoryStore(Protocol):
    """The archive of ledger commits. A queue in memory has none."""

    def read(self, filters: Filters, columns: Sequence[str] | None = None) -> tuple[pa.Table, int]:
        """Return the archived rows that match, and the last archived version.

        Parameters
        ----------
        filters
            Conditions that each row meets.
        columns
            The columns of HISTORY_SCHEMA to return. Default: all.

        Returns
        -------
        tuple of pyarrow.Table and int
            The version is -1 without an archive.
        """

    def agreed_up_to(self) -> int | None:
        """Return the last ledger version that archive and ledgers share. None: they agree."""

    def truncate(self, up_to: int) -> None:
        """Drop the rows of all ledger versions after one."""

    def archive(self, retention: int) -> Archived:
        """Archive new ledger commits and drop days older than `retention` microseconds."""

    def progress(self) -> tuple[int, int | None]:
        """Return the last archived version, and the archive's last commit time.

        The version is -1 and the time is None without an archive. The time is in microseconds since
        1970.
        """
