"""Define the archive of ledger commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

__all__ = ["Archived", "Filters", "HistoryStore"]

# Conditions on rows. Each has a column, one of ``=``, ``<=``, ``>=``, and a value.
Filters = list[tuple[str, str, Any]]


class Archived(NamedTuple):
    """The number of archived commits, and the last archived version of ``leases/``."""

    commits: int
    up_to: int


class HistoryStore(Protocol):
    """The archive of ledger commits."""

    def read(self, filters: Filters, columns: Sequence[str] | None = None) -> tuple[pa.Table, int]:
        """Return the rows that match, and the last archived version, or -1 without an archive."""

    def agreed_up_to(self) -> int | None:
        """Return the last ledger version that archive and ledgers share, or None if they agree."""

    def truncate(self, up_to: int) -> None:
        """Drop the rows of all ledger versions after one."""

    def archive(self, retention: int) -> Archived:
        """Archive new ledger commits and drop days older than `retention` microseconds."""

    def progress(self) -> tuple[int, int | None]:
        """Return the last archived version, or -1, and the commit time in microseconds, or None."""
