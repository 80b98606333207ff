"""Read a queue with the options that the handle of a group has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.group import ConsumerGroup
from spark_mq.spark.options import STORAGE_PREFIX, ReadOptions
from spark_mq.util.validation import short_repr

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Options that a handle has, each with the call that gives it.
_OF_THE_HANDLE: Final = {
    "path": "Queue.open(path)",
    "paths": "more_groups=[...]",
    "consumergroup": "queue.group(name)",
    "creategroup": "queue.group(name, create=False)",
    "startingposition": "queue.group(name, start=...)",
}


def read_stream(
    group: ConsumerGroup,
    spark: SparkSession,
    more_groups: Iterable[ConsumerGroup],
    options: Mapping[str, Any],
) -> DataFrame:
    given = read_options(group, options, more_groups)
    given |= {"createGroup": str(group._ledger.create).lower(), "startingPosition": _start(group)}
    return spark.readStream.format("spark_mq").options(**given).load()


def read(group: ConsumerGroup, spark: SparkSession, options: Mapping[str, Any]) -> DataFrame:
    return spark.read.format("spark_mq").options(**read_options(group, options)).load()


def read_options(
    group: ConsumerGroup, options: Mapping[str, Any], more_groups: Iterable[ConsumerGroup] = ()
) -> dict[str, str]:
    """Return the options of a read of groups, as text, after a check."""
    context, others = group._context, list(more_groups)
    for other in others:
        _check_same(group, other)
    for name in options:
        _check_not_named(name)
    given = {name: _text(value) for name, value in options.items() if value is not None}
    paths = [each._context.path for each in (group, *others)]
    given |= {
        "path": json.dumps(paths) if others else context.path,
        "consumerGroup": group.name,
        **{f"{STORAGE_PREFIX}{name}": text for name, text in context.storage_options.items()},
    }
    ReadOptions.parse(given)
    return given


def _check_same(group: ConsumerGroup, other: ConsumerGroup) -> None:
    """Raise InvalidOption for a group that one stream cannot read together with the first."""
    if not isinstance(other, ConsumerGroup):
        text = "is not a group: give groups of other queues"
    elif other.name != group.name:
        text = f"has another name than {group.name!r}: a stream reads the same group of each queue"
    elif other._context.storage_options != group._context.storage_options:
        text = "has other storage options: a stream has one set of them for all of its queues"
    else:
        return
    raise InvalidOption(
        f"more_groups: {short_repr(other)} {text}", option="more_groups", value=other
    )


def _check_not_named(name: str) -> None:
    lower = name.lower()
    in_store = lower.startswith(STORAGE_PREFIX)
    where = "Queue.open(path, storage_options=...)" if in_store else _OF_THE_HANDLE.get(lower)
    if where is not None:
        raise InvalidOption(
            f"option {short_repr(name)} is that of the group's handle: give it by {where}",
            option=name,
            value=None,
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _start(group: ConsumerGroup) -> str:
    start = group._start
    return start.isoformat() if isinstance(start, datetime) else str(start)
