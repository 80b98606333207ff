"""Name the existing groups in the error for a missing one."""

from __future__ import annotations

from typing import Final

from spark_mq.errors import GroupNotFound
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.util.advice import ENSURE_GROUP
from spark_mq.util.show import show_some
from spark_mq.util.validation import suggest

__all__ = ["MAX_COMPARED_GROUPS", "group_not_found"]

MAX_COMPARED_GROUPS: Final = 100  # with more groups, no name is compared with theirs
_MAX_NAMED: Final = 10


def group_not_found(name: str, ledgers: LedgerTable, queue_path: str) -> GroupNotFound:
    """Return the error for a missing group, which names the nearest group."""
    known = ledgers.groups() if ledgers.group_count() <= MAX_COMPARED_GROUPS else []
    there = f"The queue has {show_some(known, _MAX_NAMED)}"
    nearest = suggest(name, known)
    return GroupNotFound(
        f"there is no consumer group {name!r} in {queue_path}. "
        + (f"Did you mean {nearest!r}? " if nearest else "")
        + (f"{there}. " if known else "")
        + str(ENSURE_GROUP),
        advice=[ENSURE_GROUP],
        group=name,
    )
