"""List, show and redrive dead letters with ``spark-mq dlq``."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_mq.cli.exits import NOT_FOUND
from spark_mq.cli.options import (
    Output,
    OutputFormat,
    QueuePath,
    StorageOptions,
    Yes,
    confirm,
    open_queue,
    option,
    parse_sequence,
)
from spark_mq.cli.output import complain, emit, emit_one, track
from spark_mq.errors import InvalidOption

__all__ = ["app"]

app = typer.Typer(help="Look at dead letters and redrive them.", no_args_is_help=True)

_COLUMNS = [
    ("LETTER", "dead_letter_sequence"), ("SEQUENCE", "sequence"), ("ID", "message_id"),
    ("GROUP", "consumer_group"), ("DELIVERIES", "delivery_count"), ("REASON", "reason"),
    ("ERROR", "error"), ("KEY", "key"), ("VALUE", "value"),
]  # fmt: skip
_CHUNK = 10_000

_Where = Annotated[
    str | None,
    option("--where", help="SQL over the columns, such as \"reason = 'rejected'\"."),
]


@app.command("list")
def list_letters(
    queue: QueuePath,
    where: _Where = None,
    limit: Annotated[int, option("--limit", "-n", min=1, help="The most letters.")] = 100,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """List dead letters that were not redriven."""
    found = open_queue(queue, storage_option).list_dead_letters(where=where, limit=limit)
    emit(found.to_pylist(), _COLUMNS, output)


@app.command()
def show(
    queue: QueuePath,
    letter: Annotated[
        str | None,
        typer.Argument(envvar="SPARK_MQ_LETTER", help="The LETTER of `dlq list`."),
    ] = None,
    message_id: Annotated[
        str | None, option("--message-id", help="The first letter with this id.")
    ] = None,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Show one dead letter with its headers and its value."""
    opened = open_queue(queue, storage_option)
    where, wanted = _which(letter, message_id)
    rows = opened.list_dead_letters(where=where, limit=1).to_pylist()
    if not rows:
        complain(f"no dead letter has the {wanted}")
        raise typer.Exit(NOT_FOUND)
    row = {**rows[0], "headers": dict(rows[0]["headers"] or ())}
    emit_one(row, output)


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


@app.command()
def redrive(
    queue: QueuePath,
    where: _Where = None,
    limit: Annotated[
        int | None, option("--limit", "-n", min=1, help="The most letters. Default: all.")
    ] = None,
    rate: Annotated[float | None, option("--rate", help="The most messages a second.")] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Only list which.")] = False,
    yes: Yes = False,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Publish dead letters into their queue again, each once. Asks first."""
    opened = open_queue(queue, storage_option)
    if dry_run:
        found = opened.list_dead_letters(where=where, limit=limit)
        emit(found.to_pylist(), _COLUMNS, output)
        return
    which = f"that meet {where}" if where else "of this queue"
    confirm(f"Redrive the dead letters {which}?", yes)
    redriven = 0
    with track("redriven", limit) as progress:
        while limit is None or redriven < limit:
            chunk = _CHUNK if limit is None else min(_CHUNK, limit - redriven)
            found = opened.redrive(where=where, limit=chunk, rate=rate).messages
            redriven += found
            progress(redriven)
            if found < chunk:
                break
    emit_one({"queue": opened.path, "redriven": redriven}, output)
