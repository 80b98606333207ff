"""List, group, repair, redrive and discard dead letters with ``spark-mq dlq``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import typer

from spark_mq.inspect import Failure
from spark_mq.interfaces.cli.command import (
    QUEUE,
    Invocation,
    argument,
    check_sql,
    command,
    load_format,
    option,
    parse_sequence,
    stopping,
)
from spark_mq.interfaces.cli.output import (
    FAILED,
    INTERRUPTED,
    NOT_FOUND,
    OK,
    Rows,
    WrongCall,
    columns,
    complain,
    note,
    track,
)
from spark_mq.maintenance.condition import LetterFilter
from spark_mq.maintenance.redrive import RedriveResult
from spark_mq.maintenance.remaining_letters import DiscardResult
from spark_mq.maintenance.transform import RepairFunction
from spark_mq.message import to_headers
from spark_mq.queue import Queue
from spark_mq.util.loading import load_handler
from spark_mq.util.show import show_change, show_count, show_number, show_some

_FAILURE_COLUMNS: Final = columns(
    "messages group reason shape first_at last_at keys samples",
    messages="LETTERS", shape="FAILURE", samples="SAMPLE LETTERS",
)  # fmt: skip
_TRIAL_COLUMNS: Final = columns(
    "dead_letter_sequence message_id key value new_value transform_error",
    value="BEFORE", new_value="AFTER", transform_error="FAILS",
)  # fmt: skip
_FUNCTION: Final = re.compile(r"""[^\s:'"]+:\w+""")  # no SQL has one colon outside of a text
_LETTER_COLUMNS: Final = columns(
    "dead_letter_sequence sequence message_id consumer_group delivery_count reason error key value"
)
_WHERE: Final = option("SQL over the columns, such as \"reason = 'rejected'\".")


@command("dlq list")
def list_letters(
    ctx: Invocation,
    letter: str | None = argument(
        "Show only this LETTER of the list, with its whole value.", default=None
    ),
    message_id: str | None = option(
        "Show only the first letter with this id, with its whole value."
    ),
    where: str | None = _WHERE,
    limit: int = option("The most letters.", "-n", min=1, default=100),
) -> Rows | Mapping[str, Any]:
    """List dead letters that are neither redriven nor discarded, or show one with its headers."""
    check_sql("--where", where)
    given = [choice for choice in (letter, message_id, where) if choice is not None]
    if len(given) > 1:
        raise WrongCall(
            "dlq list takes one choice of letters: give a LETTER, --message-id or --where"
        )
    if letter is not None:
        number = parse_sequence(letter, "a dead letter")
        return _only_letter(ctx.queue, LetterFilter(letters=(number,)), f"number {number}")
    if message_id is not None:
        return _only_letter(ctx.queue, LetterFilter(message_id=message_id), f"id {message_id}")
    return Rows(
        _letter_rows(ctx.queue.list_dead_letters(where=where, limit=limit)), _LETTER_COLUMNS
    )


def _only_letter(queue: Queue, where: LetterFilter, named: str) -> Mapping[str, Any]:
    rows = _letter_rows(queue.list_dead_letters(where=where, limit=1))
    if not rows:
        complain(f"no dead letter has the {named}")
        raise typer.Exit(NOT_FOUND)
    return rows[0]


def _letter_rows(table: Any) -> list[dict[str, Any]]:
    """Return letters with their headers and priority as all other commands show them."""
    return [
        {**row, "headers": to_headers(row["headers"]), "priority": row["priority"] or 0}
        for row in table.to_pylist()
    ]


@command("dlq failures")
def list_failures(
    ctx: Invocation,
    n: int = option("The newest letters to look at.", "-n", min=1, default=100_000),
) -> Rows:
    """Group dead letters by group, reason and shape of the error."""
    failures = ctx.queue.failures(n)
    if unrouted := ctx.queue.describe().unrouted:
        note(f"not among these: {show_count(unrouted, 'dead message')} waiting for a sweep")
    if not failures.complete:
        note(f"these are the newest {show_count(failures.counted, 'letter')}. Give -n for more")
    rows = [_failure_row(failure) for failure in failures]
    return Rows(rows, _FAILURE_COLUMNS, _failure_cells)


def _failure_row(failure: Failure) -> Mapping[str, Any]:
    return {**asdict(failure), "where": failure.where}


def _failure_cells(row: Any) -> Mapping[str, Any]:
    keys = ", ".join(f"{hot['key']} ({show_number(hot['messages'])})" for hot in row["keys"])
    return {**row, "keys": keys, "samples": ", ".join(map(str, row["samples"]))}


@command("dlq redrive", QUEUE, asks=True)
def redrive(
    ctx: Invocation,
    where: str | None = _WHERE,
    limit: int | None = option("The most letters. Default: all.", "-n", min=1),
    rate: float | None = option("The most messages a second."),
    to: str | None = option("Another queue, as its path. Default: their own."),
    all_groups: bool = option(
        "For all groups, not only for the one in which each died.", default=False
    ),
    transform: str | None = option(
        "Repair each message before: SQL for its new value, or MODULE:FUNCTION."
    ),
    format: str | None = option(
        "What must decode the repaired values: MODULE:NAME of a format.", metavar="FORMAT"
    ),
    dry_run: bool = option("Only list which, with --transform before and after.", default=False),
) -> Rows | Mapping[str, Any]:
    """Publish dead letters again, each once, for the group in which it died. Asks first.

    Ctrl-C and SIGTERM end it after the letters in hand, 10,000 or those of a second at most.
    """
    check_sql("--where", where)
    queue = ctx.queue
    repair: dict[str, Any] = {}
    if transform:
        repair["transform"] = _transform(transform)
    if format:
        repair["format"] = load_format(format)
    place: dict[str, Any] = {"to": to, "to_all_groups": all_groups}
    if dry_run:
        return _trial(queue, where, limit, place, repair)
    if not ctx.yes:
        counted = queue._count_to_redrive(where, limit, **place)
        which = f"that meet {where}" if where else "of this queue"
        how = f" after {transform}" if transform else ""
        if counted.messages:
            letters = show_count(counted.messages, "dead letter")
            ctx.confirm(f"Redrive {letters} {which} {_place(counted, to)}{how}?")
    total = limit if where else _letters_to_redrive(queue, limit)
    with stopping() as stop, track("redriven", total):
        done = queue.redrive(where=where, limit=limit, rate=rate, stop=stop, **place, **repair)
    if stop.is_set():
        redriven = show_number(done.messages)
        complain(f"interrupted. Redriven: {redriven}. Run it again for the rest")
        raise typer.Exit(INTERRUPTED)
    ctx.exit_code = FAILED if done.failed or done.without_group else OK
    counts: dict[str, Any] = {
        "queue": queue.path,
        "redriven": done.messages,
        "groups": dict(done.groups),
    }
    if done.without_group:
        counts["without_group"] = dict(done.without_group)
    return {**counts, "failed": done.failed, "failures": dict(done.failures)} if repair else counts


def _place(result: RedriveResult, to: str | None) -> str:
    if to:
        return f"to {to}"
    return f"({result.destination})" if result.groups else "to all groups"


def _letters_to_redrive(queue: Queue, limit: int | None) -> int | None:
    letters = queue.describe().dead_letters
    return limit if letters is None or (limit is not None and limit < letters) else letters


@command("dlq discard", QUEUE, asks=True)
def discard(
    ctx: Invocation,
    where: str = option(
        "SQL over the columns, such as \"reason = 'rejected'\". All letters: true.", default=...
    ),
    dry_run: bool = option("Only count which, by group.", default=False),
) -> Rows | Mapping[str, Any]:
    """Settle dead letters for good, so that no redrive finds them. Counts them, and asks first."""
    check_sql("--where", where)
    queue = ctx.queue
    counted = queue.discard_dead_letters(where=where, dry_run=True)
    if dry_run:
        rows = [{"group": name, "messages": n} for name, n in counted.groups.items()]
        return Rows(rows, columns("messages group", messages="LETTERS"))
    discarded = 0
    if counted.newest is not None:
        ctx.confirm(f"Discard {_counts(counted)} of {queue.path}? No redrive brings them back.")
        done = queue.discard_dead_letters(where=where, before=counted.newest + 1)
        discarded = done.messages
    return {"queue": queue.path, "discarded": discarded}


def _counts(result: DiscardResult) -> str:
    groups = [f"{show_number(n)} of group {name or 'unknown'}" for name, n in result.groups.items()]
    return f"{show_count(result.messages, 'dead letter')} ({show_some(groups, 10)})"


def _transform(text: str) -> str | RepairFunction:
    if _FUNCTION.fullmatch(text):
        return load_handler(text, "--transform")
    check_sql("--transform", text, ", or give a function, as MODULE:FUNCTION")
    return text


def _trial(
    queue: Queue,
    where: str | None,
    limit: int | None,
    place: Mapping[str, Any],
    repair: Mapping[str, Any],
) -> Rows:
    """Return letters, before and after a repair. Their numbers go to standard error."""
    trial = queue.redrive(where=where, limit=limit, dry_run=True, **place, **repair)
    where_to = f" {_place(trial, place['to'])}" if trial.messages else ""
    fails = f". The transform fails for {show_number(trial.failed)}" if repair else ""
    note(f"{show_number(trial.messages)} would be redriven{where_to}{fails}")
    rows = [] if trial.table is None else _letter_rows(trial.table)
    if not repair:
        return Rows(rows, _LETTER_COLUMNS)
    for reason, number in trial.failures.items():
        note(f"{show_count(number, 'letter')}: {reason}")
    return Rows(rows, _TRIAL_COLUMNS, _trial_cells)


def _trial_cells(row: Any) -> Mapping[str, Any]:
    before, after = show_change(row["value"], row.get("new_value"))
    return {**row, "value": before, "new_value": after}
