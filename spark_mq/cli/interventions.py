"""Change messages without leases: ``group discard``, ``retry-now`` and ``dead-letter``."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_mq.cli.options import (
    GroupArgument,
    Output,
    OutputFormat,
    QueuePath,
    StorageOptions,
    Yes,
    confirm,
    existing_group,
    open_queue,
    option,
)
from spark_mq.cli.output import emit_one

__all__ = ["register"]

_Sequences = Annotated[
    list[int] | None,
    typer.Argument(metavar="SEQUENCES", envvar="SPARK_MQ_SEQUENCES", help="The messages."),
]
_MessageIds = Annotated[
    list[str] | None, option("--message-id", help="The message with this id. Repeatable.")
]
_Keys = Annotated[
    list[str] | None, option("--key", help="Unsettled messages with this key. Repeatable.")
]
_Force = Annotated[bool, option("--force", help="Also take them from their leases.")]
_Reason = Annotated[str | None, option("--reason", help="Why, for people.")]


def register(app: typer.Typer) -> None:
    for command in (discard, retry_now, dead_letter):
        app.command()(command)


def discard(
    group: GroupArgument,
    queue: QueuePath,
    sequences: _Sequences = None,
    message_id: _MessageIds = None,
    key: _Keys = None,
    reason: _Reason = None,
    force: _Force = False,
    yes: Yes = False,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Settle messages without a lease. No worker of the group gets them again. Asks first."""
    found = existing_group(open_queue(queue, storage_option), group)
    confirm(f"Discard these messages of group {group}?", yes)
    messages = found.discard(
        sequences or None, message_id=message_id or None, key=key or None, reason=reason,
        force=force,
    )  # fmt: skip
    emit_one({"group": group, "discarded": messages}, output)


def retry_now(
    group: GroupArgument,
    queue: QueuePath,
    sequences: _Sequences = None,
    message_id: _MessageIds = None,
    key: _Keys = None,
    force: _Force = False,
    yes: Yes = False,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Make delayed, dead or blocked messages due now. Asks before it takes any from a lease."""
    found = existing_group(open_queue(queue, storage_option), group)
    if force:
        confirm(f"Take these messages of group {group} from their leases?", yes)
    messages = found.retry_now(
        sequences or None, message_id=message_id or None, key=key or None, force=force
    )
    emit_one({"group": group, "retried": messages}, output)


def dead_letter(
    group: GroupArgument,
    queue: QueuePath,
    sequences: _Sequences = None,
    message_id: _MessageIds = None,
    key: _Keys = None,
    reason: _Reason = None,
    force: _Force = False,
    yes: Yes = False,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Make messages dead without a lease. The sweep makes them dead letters. Asks first."""
    found = existing_group(open_queue(queue, storage_option), group)
    confirm(f"Make these messages of group {group} dead?", yes)
    messages = found.dead_letter(
        sequences or None, message_id=message_id or None, key=key or None, reason=reason,
        force=force,
    )  # fmt: skip
    emit_one({"group": group, "dead": messages}, output)
