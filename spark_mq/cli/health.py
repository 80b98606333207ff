"""``spark-mq check``: say whether a queue is healthy, with the exit code."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_mq.cli.exits import FAILED
from spark_mq.cli.options import Output, OutputFormat, QueuePath, StorageOptions, open_queue, option
from spark_mq.cli.output import emit, json_line

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


def check(
    queue: QueuePath,
    max_unswept: Annotated[
        str, option("--max-unswept", help="How long work may wait for a sweep, or none.")
    ] = "1h",
    max_age: Annotated[
        str | None, option("--max-age", help="The greatest age of an unsettled message.")
    ] = None,
    max_dead: Annotated[
        int | None, option("--max-dead", min=0, help="The most dead messages and dead letters.")
    ] = None,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Exit with 1 and a reason if the queue is unhealthy.

    Unhealthy: not swept, a group that leases nothing, an unreadable ledger, or past a limit.
    """
    health = open_queue(queue, storage_option).health(
        max_unswept=None if max_unswept.lower() == "none" else max_unswept,
        max_age=max_age,
        max_dead=max_dead,
    )
    if output is OutputFormat.json:
        print(json_line(health))
    elif health.healthy:
        print("healthy")
    else:
        emit(health.problems, [("CHECK", "check"), ("GROUP", "group"), ("REASON", "text")], output)
    if not health.healthy:
        raise typer.Exit(FAILED)
