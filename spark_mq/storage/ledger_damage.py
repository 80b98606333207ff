"""Explain a ledger that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable

from spark_mq.delta.store_errors import one_line
from spark_mq.errors import CorruptLog
from spark_mq.util.advice import drop_group
from spark_mq.util.show import show_name

__all__ = ["unreadable_ledger_error"]


def unreadable_ledger_error(
    path: str, version: int, group: str, files: Iterable[str], error: Exception
) -> CorruptLog:
    """Return the error for a ledger whose data files cannot be read."""
    names, drop = ", ".join(map(show_name, files)), drop_group(group)
    return CorruptLog(
        f"the ledger of group {group!r} cannot be read: {names} of {path}: "
        f"{one_line(error)}. Restore the file from a backup. Or drop the group with "
        f"{drop}: then it starts again, and gets all messages that the queue still has. Other "
        "groups continue",
        advice=[drop],
        path=path,
        version=version,
    )
