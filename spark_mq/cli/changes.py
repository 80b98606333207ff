"""Show who changed a queue with ``spark-mq changes``."""

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
    ("AT", "at"), ("CHANGE", "operation"), ("GROUP", "group"), ("USER", "user"),
    ("MESSAGES", "messages"), ("DETAIL", "detail"),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command()(changes)


def changes(
    queue: QueuePath,
    since: Annotated[str, option("--since", help="How far to look back.")] = "1d",
    most: Annotated[int, option("--limit", "-n", min=1, help="The most changes.")] = 100,
    group: Annotated[str | None, option("--group", "-g", help="Only this group.")] = None,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Show the changes that people made, the newest first.

    These are settings, pauses, seeks, redrives and changes of single messages, each with its user.
    """
    opened = open_queue(queue, storage_option)
    if group is not None:
        existing_group(opened, group)
    emit(opened.changes(most, since=since, group=group), _COLUMNS, output)
