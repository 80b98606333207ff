"""Show a queue's throughput over time with ``spark-mq throughput``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from spark_mq.cli.options import (
    Output,
    OutputFormat,
    QueuePath,
    StorageOptions,
    existing_group,
    open_queue,
    option,
)
from spark_mq.cli.output import Column, emit

__all__ = ["register"]

_COLUMNS: Final[list[Column]] = [
    ("AT", "at"), ("GROUP", "consumer_group"), ("PUBLISHED", "published"), ("LEASED", "leased"),
    ("FAILED", "failed"), ("ACKED", "acked"), ("DEAD LETTERED", "dead_lettered"),
    ("DROPPED", "dropped"), ("EXPIRED", "expired"), ("PUBLISHED/S", "published_per_second"),
    ("SETTLED/S", "settled_per_second"),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command()(throughput)


def throughput(
    queue: QueuePath,
    since: Annotated[str, option("--since", help="How far to look back.")] = "1h",
    every: Annotated[str, option("--every", help="The length of an interval.")] = "1m",
    group: Annotated[str | None, option("--group", "-g", help="Only this group.")] = None,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Show the throughput of a queue in each interval.

    It counts messages that were published, leased, failed and settled. The rates are those of
    publishes, and of messages that were acked, dead-lettered, dropped or expired.
    """
    opened = open_queue(queue, storage_option)
    if group is not None:
        existing_group(opened, group)
    found = opened.throughput(since=since, every=every, group=group)
    emit(found.to_pylist(), _COLUMNS, output)
