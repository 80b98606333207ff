"""Describe a ledger as it was read, and a commit of ledgers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from spark_mq.ledger.ranges import Ledger

__all__ = ["PAUSE", "LedgerCommit", "LedgerSnapshot"]


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
