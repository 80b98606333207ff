"""Compute the ages at which messages were settled, over time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.inspect.activity import ENDS, MAX_BUCKETS
from spark_mq.operations.context import QueueContext
from spark_mq.operations.history import read_history
from spark_mq.util.clock import SECOND, Duration, to_datetime
from spark_mq.util.validation import validate_count, validate_duration

__all__ = ["Ages", "age_of_part", "count_messages", "settled_ages"]

Ages = dict[datetime, list[tuple[float, int]]]  # seconds and messages, by interval

_COLUMNS: Final = ("committed_at", "consumer_group", "outcome", "first", "last")


def settled_ages(
    context: QueueContext, since: Duration, every: Duration, group: str | None
) -> dict[str, Ages]:
    """Return the ages of settled messages by group, from the commits that published them."""
    span, length = validate_duration("since", since), validate_duration("every", every)
    validate_count("since/every", -(-span // length), most=MAX_BUCKETS)
    start = (context.now() - span) // length * length
    rows = read_history(context, group=group, since=start, columns=_COLUMNS)
    rows = rows.filter(pc.is_in(rows["outcome"], value_set=pa.array(ENDS)))
    found: dict[str, Ages] = {}
    if not rows.num_rows:
        return found
    index = context.messages.full_index(pc.min(rows["first"]).as_py())
    names = ("committed_at", "consumer_group", "first", "last")
    rows = rows.set_column(0, "committed_at", rows["committed_at"].cast(pa.int64()))
    for at, name, first, last in zip(*(rows[one].to_pylist() for one in names), strict=True):
        some = found.setdefault(name, defaultdict(list))[to_datetime(at // length * length)]
        for piece in index.slices(first, last):
            some.append((max(0, at - piece.committed_at) / SECOND, piece.rows))
    return found


def age_of_part(ages: Sequence[tuple[float, int]], part: float) -> float:
    """Return the least age that a part of the messages does not exceed, such as 0.5 of them."""
    left = math.ceil(part * count_messages(ages))
    for age, count in sorted(ages):
        left -= count
        if left <= 0:
            return age
    return math.nan


def count_messages(ages: Iterable[tuple[float, int]]) -> int:
    return sum(count for _, count in ages)
