"""List the changes that people made, for an audit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.operations.context import QueueContext
from spark_mq.operations.history import read_history
from spark_mq.util.clock import Duration
from spark_mq.util.records import Record
from spark_mq.util.validation import validate_duration

__all__ = ["ChangeRecord", "list_changes"]

_OPERATIONS: Final = (
    "configure", "create group", "drop group", "pause", "redriven", "resume", "seek", "trim",
    "unblock",
)  # fmt: skip
"""Operations that people run or start. The stored text may have more words after these."""
_KEYS: Final = ["version", "committed_at", "consumer_group", "operation", "user", "detail"]


@dataclass(frozen=True, slots=True)
class ChangeRecord(Record):
    """A change that a person made.

    Attributes
    ----------
    at
        The time of the commit (aware, UTC).
    group
        The group, or a reserved name.
    operation
        The operation, such as "pause".
    user
        The person, or the user and host of the process. None for a group that a lease created.
    messages
        The messages that it concerned.
    in_dead_letters
        Whether the commit is one of the dead-letter queue.
    detail
        The reason of a pause, discard or dead letter, the settings that a configure changed, the
        target of a seek, or the condition of a redrive. None for other changes, and for
        a redrive that another process had to finish.
    """

    at: datetime
    group: str | None
    operation: str
    user: str | None
    messages: int
    in_dead_letters: bool = False
    detail: str | None = None


def list_changes(
    context: QueueContext, n: int, since: Duration, group: str | None = None
) -> list[ChangeRecord]:
    start = context.now() - validate_duration("since", since)
    found = list(_changes(context, start, group, False))
    dead = context.existing_dead_letters()
    if dead is not None and dead.path != context.path:
        found += _changes(dead, start, group, True)
    return sorted(found, key=lambda one: one.at, reverse=True)[:n]


def _changes(
    context: QueueContext, start: int, group: str | None, dead: bool
) -> Iterator[ChangeRecord]:
    rows = read_history(context, group=group, since=start, columns=[*_KEYS, "message_count"])
    named = pc.match_substring_regex(rows["operation"], rf"(^|\+)({'|'.join(_OPERATIONS)})")
    rows = rows.filter(pc.or_(pc.is_valid(rows["user"]), pc.fill_null(named, False)))
    step = pc.equal(rows["operation"], "freeze redrive")  # of a redrive, which follows
    rows = rows.filter(pc.invert(pc.fill_null(step, False)))
    sums: pa.Table = rows.group_by(_KEYS, use_threads=False).aggregate([("message_count", "sum")])
    for row in sums.to_pylist():
        yield ChangeRecord(
            row["committed_at"],
            row["consumer_group"],
            row["operation"] or "",
            row["user"],
            row["message_count_sum"] or 0,
            dead,
            row["detail"],
        )
