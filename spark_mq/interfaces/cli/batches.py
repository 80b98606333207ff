"""List and close message batches with ``spark-mq batch``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from spark_mq.interfaces.cli.command import Invocation, argument, command, option
from spark_mq.interfaces.cli.output import Column, Pages, Rows
from spark_mq.operations.batches import BatchInfo

__all__: list[str] = []

_COLUMNS: Final[list[Column]] = [
    ("BATCH", "name"), ("STATE", "state"), ("MESSAGES", "messages"), ("SETTLED", "settled"),
    ("GROUPS", "groups"), ("CLOSED", "closed_at"), ("COMPLETED", "completed_at"), ("TO", "to"),
]  # fmt: skip


@command("batch list")
def list_batches(ctx: Invocation) -> Rows:
    """List the message batches with how much of them is settled."""
    return Rows(ctx.queue.batches(), _COLUMNS, _cells)


def _cells(one: BatchInfo) -> Mapping[str, Any]:
    found = {name: getattr(one, name) for _, name in _COLUMNS}
    return {**found, "groups": ", ".join(one.groups)}


@command("batch close")
def close(
    ctx: Invocation,
    name: Annotated[str, argument("The batch_id.", metavar="BATCH")],
    to: Annotated[str, option("The path of the queue of the completion message.", metavar="QUEUE")],
    group: Annotated[
        list[str] | None,
        option("A group that must settle the batch. Repeatable. Default: all that exist now."),
    ] = None,
) -> Pages:
    """Close a message batch. Once it is settled, a sweep publishes its counts to a queue.

    The same close again changes nothing.
    """
    return Pages([ctx.queue.close_batch(name, to=to, groups=group)], lambda made: [_cells(made)])
