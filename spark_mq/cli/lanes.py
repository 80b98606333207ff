"""Show the hottest lanes of a group with ``spark-mq lanes``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from spark_mq.cli.options import (
    Group,
    Output,
    OutputFormat,
    QueuePath,
    StorageOptions,
    existing_group,
    open_queue,
    option,
)
from spark_mq.cli.output import Column, emit, show_age
from spark_mq.errors import InvalidOption

__all__ = ["LANE_COLUMNS", "PRIORITY_COLUMNS", "lane_rows", "priority_rows", "register"]

LANE_COLUMNS: Final[list[Column]] = [
    ("LANE", "lane"), ("MESSAGES", "messages"), ("SHARE", "share"), ("READY", "ready"),
    ("DELAYED", "delayed"), ("LEASED", "leased"), ("DEAD", "dead"), ("HEAD", "head"),
    ("AGE", "age"), ("HELD BACK", "held_back"), ("BECAUSE", "because"),
]  # fmt: skip
PRIORITY_COLUMNS: Final[list[Column]] = [
    ("PRIORITY", "priority"), ("READY", "ready"), ("DELAYED", "delayed"),
    ("LEASED", "leased"), ("DEAD", "dead"), ("BLOCKED", "blocked"), ("OLDEST", "age"),
]  # fmt: skip
_KEY_COLUMNS: Final[list[Column]] = [("KEY", "key"), ("MESSAGES", "messages"), ("SHARE", "share")]


def register(app: typer.Typer) -> None:
    app.command()(lanes)


def lanes(
    queue: QueuePath,
    group: Group = "default",
    top: Annotated[int, option("--top", "-n", min=1, help="The most lanes, or keys.")] = 10,
    by: Annotated[str, option("--by", help="messages, or age for the oldest lanes.")] = "messages",
    lane: Annotated[
        int | None, option("--lane", help="Show the commonest keys of this lane instead.")
    ] = None,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Show the lanes with the most unsettled messages.

    Each lane shows why it is held back.
    """
    opened = open_queue(queue, storage_option)
    found = existing_group(opened, group)
    if not opened.settings.lanes:
        raise InvalidOption(
            f"{opened.path} has no lanes: lanes are fixed when a queue is created. Create a queue "
            "with --lanes 64.",
            option="queue",
            value=opened.path,
        )
    if lane is not None:
        keys = found.hot_keys(lane, top)
        emit(keys if output is OutputFormat.json else map(_shared, keys), _KEY_COLUMNS, output)
        return
    hottest = found.lanes(top, by=by)
    emit(hottest if output is OutputFormat.json else lane_rows(hottest), LANE_COLUMNS, output)


def lane_rows(lanes: Iterable[Any]) -> list[dict[str, Any]]:
    return [{**_shared(one), "age": show_age(one.head_age)} for one in lanes]


def priority_rows(priorities: Iterable[Any]) -> list[dict[str, Any]]:
    return [{**asdict(one), "age": show_age(one.oldest_age)} for one in priorities]


def _shared(one: Any) -> dict[str, Any]:
    """Return a record with its share in percent."""
    return {**asdict(one), "share": f"{one.share:.1%}"}
