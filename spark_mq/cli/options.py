"""Define the options that several commands share, and open queues."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_mq.errors import InvalidOption, SparkMQError
from spark_mq.util.show import printable

if TYPE_CHECKING:
    from spark_mq.group import ConsumerGroup
    from spark_mq.queue import Queue

__all__ = [
    "Every",
    "Group",
    "GroupArgument",
    "MaxAge",
    "MaxDead",
    "MaxUnswept",
    "Output",
    "OutputFormat",
    "QueuePath",
    "QueuePathArgument",
    "StorageOptions",
    "Yes",
    "as_options",
    "confirm",
    "existing_group",
    "open_queue",
    "option",
    "parse_limit",
    "parse_pairs",
    "parse_sequence",
]


class OutputFormat(StrEnum):
    table = "table"
    json = "json"


def option(*names: str, **settings: Any) -> Any:
    """Return an option that is also read from the environment as ``SPARK_MQ_<NAME>``."""
    long = next(name for name in names if name.startswith("--")).partition("/")[0]
    envvar = "SPARK_MQ_" + long.removeprefix("--").upper().replace("-", "_")
    return typer.Option(*names, envvar=envvar, **settings)


def _complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    path = context.params.get("queue")
    if not path:
        return []
    try:
        pairs = context.params.get("storage_option") or ()
        names = open_queue(path, pairs).groups()
    except (SparkMQError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


QueuePath = Annotated[
    str, option("--queue", "-q", metavar="PATH", help="The queue: a path or a URI.")
]
QueuePathArgument = Annotated[
    str,
    typer.Argument(metavar="QUEUE", envvar="SPARK_MQ_QUEUE", help="The queue: a path or a URI."),
]
Group = Annotated[
    str,
    option("--group", "-g", metavar="NAME", help="The group.", autocompletion=_complete_groups),
]
GroupArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        envvar="SPARK_MQ_GROUP",
        help="The group.",
        autocompletion=_complete_groups,
    ),
]
StorageOptions = Annotated[
    list[str] | None,
    option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="Option of the object store. Repeatable. Prefer the environment for secrets.",
    ),
]
Output = Annotated[OutputFormat, option("--output", "-o", help="A table, or JSON lines.")]
Yes = Annotated[bool, option("--yes", "-y", help="Do not ask.")]
MaxUnswept = Annotated[
    str, option("--max-unswept", help="How long work may wait for a sweep, or none.")
]
MaxAge = Annotated[
    str | None, option("--max-age", help="The greatest age of an unsettled message.")
]
MaxDead = Annotated[
    int | None, option("--max-dead", min=0, help="The most dead messages and dead letters.")
]
Every = Annotated[
    str | None, option("--every", metavar="DURATION", help="Repeat with this pause, such as 60s.")
]


def parse_pairs(name: str, pairs: Sequence[str] | None) -> dict[str, str]:
    """Return NAME=VALUE texts as a mapping."""
    found = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not key or not equals:
            # The value may be a secret, so the error does not show it.
            raise InvalidOption(
                f"{name} {key!r} has no value: give NAME=VALUE", option=name, value=key
            )
        found[key] = value
    return found


def parse_limit(text: str) -> str | None:
    """Return a limit, or None for "none"."""
    return None if text.lower() == "none" else text


def parse_sequence(text: str, what: str) -> int:
    """Return a sequence, or raise an InvalidOption that suggests --message-id."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise InvalidOption(
        f"{text!r} is not {what}: give a number, or --message-id {text}", option=what, value=text
    )


def open_queue(path: str, storage_options: Sequence[str] | None = None) -> Queue:
    from spark_mq.queue import Queue

    options = parse_pairs("--storage-option", storage_options)
    return Queue.open(path, storage_options=options)


def existing_group(queue: Queue, name: str) -> ConsumerGroup:
    """Return a group, or raise GroupNotFound instead of creating it."""
    return queue.group(name, create=False)


def confirm(question: str, yes: bool) -> None:
    """Ask before data is lost. Raises typer.Abort for a no, InvalidOption without a terminal."""
    if yes:
        return
    question = printable(question)
    if not sys.stdin.isatty():
        raise InvalidOption(
            f"{question} Nobody can answer here: give --yes", option="--yes", value=False
        )
    if not typer.confirm(question, err=True):
        raise typer.Abort


def as_options(pairs: Sequence[str] | None) -> Mapping[str, str]:
    return parse_pairs("--storage-option", pairs)
