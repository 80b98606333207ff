"""List, show and redrive dead letters with ``spark-mq dlq``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from spark_mq.cli.command import QUEUE, Given, argument, command, option, parse_sequence
from spark_mq.cli.output import NOT_FOUND, Column, Rows, complain, track
from spark_mq.errors import InvalidOption

__all__: list[str] = []

_COLUMNS: Final[list[Column]] = [
    ("LETTER", "dead_letter_sequence"), ("SEQUENCE", "sequence"), ("ID", "message_id"),
    ("GROUP", "consumer_group"), ("DELIVERIES", "delivery_count"), ("REASON", "reason"),
    ("ERROR", "error"), ("KEY", "key"), ("VALUE", "value"),
]  # fmt: skip
_CHUNK: Final = 10_000

_Where = Annotated[str | None, option("SQL over the columns, such as \"reason = 'rejected'\".")]


@command("dlq list")
def list_letters(
    on: Given,
    where: _Where = None,
    limit: Annotated[int, option("The most letters.", "-n", min=1)] = 100,
) -> Rows:
    """List dead letters that were not redriven."""
    return _letters(on, where, limit)


def _letters(on: Given, where: str | None, limit: int | None) -> Rows:
    return Rows(on.queue.list_dead_letters(where=where, limit=limit).to_pylist(), _COLUMNS)


@command("dlq show")
def show(
    on: Given,
    letter: Annotated[str | None, argument("The LETTER of `dlq list`.")] = None,
    message_id: Annotated[str | None, option("The first letter with this id.")] = None,
) -> Mapping[str, Any]:
    """Show one dead letter with its headers and its value."""
    queue = on.queue
    where, wanted = _which(letter, message_id)
    rows = queue.list_dead_letters(where=where, limit=1).to_pylist()
    if not rows:
        complain(f"no dead letter has the {wanted}")
        raise typer.Exit(NOT_FOUND)
    return {**rows[0], "headers": dict(rows[0]["headers"] or ())}


def _which(letter: str | None, message_id: str | None) -> tuple[str, str]:
    """Return the SQL condition for a letter, and its name in words."""
    if (letter is None) == (message_id is None):
        raise InvalidOption(
            "dlq show needs one dead letter: give the LETTER of `dlq list`, or --message-id",
            option="letter",
            value=letter,
        )
    if letter is not None:
        number = parse_sequence(letter, "a dead letter")
        return f"dead_letter_sequence = {number}", f"number {number}"
    quoted = str(message_id).replace("'", "''")
    return f"message_id = '{quoted}'", f"id {message_id}"


@command("dlq redrive", QUEUE, asks=True)
def redrive(
    on: Given,
    where: _Where = None,
    limit: Annotated[int | None, option("The most letters. Default: all.", "-n", min=1)] = None,
    rate: Annotated[float | None, option("The most messages a second.")] = None,
    dry_run: Annotated[bool, option("Only list which.")] = False,
) -> Rows | Mapping[str, Any]:
    """Publish dead letters into their queue again, each once, for all groups. Asks first."""
    queue = on.queue
    if dry_run:
        return _letters(on, where, limit)
    which = f"that meet {where}" if where else "of this queue"
    on.confirm(f"Redrive the dead letters {which}?")
    redriven = 0
    with track("redriven", limit) as progress:
        while limit is None or redriven < limit:
            chunk = _CHUNK if limit is None else min(_CHUNK, limit - redriven)
            found = queue.redrive(where=where, limit=chunk, rate=rate).messages
            redriven += found
            progress(redriven)
            if found < chunk:
                break
    return {"queue": queue.path, "redriven": redriven}
