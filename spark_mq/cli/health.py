"""Check the health of a queue with ``spark-mq check``, whose exit code is the result."""

from __future__ import annotations

import typer

from spark_mq.cli.exits import FAILED
from spark_mq.cli.options import (
    MaxAge,
    MaxDead,
    MaxUnswept,
    Output,
    OutputFormat,
    QueuePath,
    StorageOptions,
    open_queue,
    parse_limit,
)
from spark_mq.cli.output import emit, json_line

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(
    queue: QueuePath,
    max_unswept: MaxUnswept = "1h",
    max_age: MaxAge = None,
    max_dead: MaxDead = None,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Exit with 1 and a reason if the queue is unhealthy.

    It is unhealthy if it was not swept in time, a group leases nothing, a ledger cannot be read, or
    a limit is exceeded.
    """
    health = open_queue(queue, storage_option).health(
        max_unswept=parse_limit(max_unswept),
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
