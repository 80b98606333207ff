"""Publish and show messages: ``publish``, ``peek``, ``tail``, ``leases``, ``locate``, ``trace``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer

from spark_mq.cli import publishing
from spark_mq.cli.exits import NOT_FOUND
from spark_mq.cli.options import (
    Group,
    Output,
    OutputFormat,
    QueuePath,
    StorageOptions,
    existing_group,
    open_queue,
    option,
    parse_sequence,
)
from spark_mq.cli.output import emit, json_line, printable, show_age, show_time, show_value
from spark_mq.errors import InvalidOption
from spark_mq.util.clock import SECOND
from spark_mq.util.validation import validate_count, validate_duration

__all__ = ["register"]

_PEEK_COLUMNS = [
    ("SEQUENCE", "sequence"), ("ID", "message_id"), ("KEY", "key"), ("PUBLISHED", "published_at"),
    ("STATE", "state"), ("DELIVERIES", "delivery_count"), ("FAILURES", "failure_count"),
    ("WORKER", "worker_id"), ("ERROR", "error"), ("VALUE", "value"),
]  # fmt: skip
_QUEUE_COLUMNS = [one for one in _PEEK_COLUMNS if one[1] in
                  ("sequence", "message_id", "key", "published_at", "value")]  # fmt: skip
_LEASE_COLUMNS = [
    ("LEASE", "lease_id"), ("WORKER", "worker_id"), ("SINCE", "since"), ("UNTIL", "until"),
    ("EXPIRED", "expired"), ("MESSAGES", "messages"), ("DELIVERY", "delivery_count"),
    ("SEQUENCES", "sequences"),
]  # fmt: skip
_PLACE_COLUMNS = [
    ("SEQUENCE", "sequence"), ("GROUP", "group"), ("STATE", "state"), ("OUTCOME", "outcome"),
    ("WORKER", "worker_id"), ("LEASE", "lease_id"), ("UNTIL", "leased_until"),
    ("DUE", "available_at"),
    ("DELIVERIES", "delivery_count"), ("FAILURES", "failure_count"), ("REASON", "reason"),
    ("ERROR", "error"),
]  # fmt: skip
_CHUNK = 100

_Limit = Annotated[int, option("--limit", "-n", min=1, help="The most messages.")]
_Sequence = Annotated[str | None, typer.Argument(envvar="SPARK_MQ_SEQUENCE", help="The message.")]
_Key = Annotated[str | None, option("--key", help="Only messages with this key.")]
_MessageId = Annotated[str | None, option("--message-id", help="Only messages with this id.")]
_After = Annotated[int | None, option("--after", min=0, help="Only after this sequence.")]


def _complete_states(incomplete: str) -> list[str]:
    from spark_mq.inspect.positions import STATE_NAMES

    return [name for name in STATE_NAMES if name.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    app.command()(publishing.publish)
    for command in (peek, tail, leases, locate, trace):
        app.command()(command)


def peek(
    queue: QueuePath,
    group: Annotated[
        str | None, option("--group", "-g", help="Show the state in this group.")
    ] = None,
    state: Annotated[
        str | None,
        option("--state", help="Only this state of the group.", autocompletion=_complete_states),
    ] = None,
    key: _Key = None,
    message_id: _MessageId = None,
    after: _After = None,
    limit: _Limit = 10,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Show messages without leasing them."""
    opened = open_queue(queue, storage_option)
    wanted: dict[str, Any] = {"key": key, "message_id": message_id, "after": after}
    if group is None:
        if state is not None:
            raise InvalidOption(
                f"--state {state} needs --group: a state belongs to a group",
                option="--state",
                value=state,
            )
        emit(opened.peek(limit, **wanted), _QUEUE_COLUMNS, output)
        return
    found = existing_group(opened, group).peek(limit, state=state, **wanted)
    emit(found, _PEEK_COLUMNS, output)


def tail(
    queue: QueuePath,
    start: Annotated[
        str, option("--from", help="latest, earliest, or a sequence to start after.")
    ] = "latest",
    limit: Annotated[
        int | None, option("--limit", "-n", min=1, help="End after so many messages.")
    ] = None,
    interval: Annotated[str, option("--interval", help="How often to look.")] = "1s",
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Print new messages as they are published, until Ctrl-C."""
    opened = open_queue(queue, storage_option)
    pause = validate_duration("--interval", interval) / SECOND
    for message in islice(_new_messages(opened, _start(opened, start), pause), limit):
        if output is OutputFormat.json:
            print(json_line(message), flush=True)
        else:
            key = "" if message.key is None else f"  {printable(message.key)}"
            value = show_value(message.value, 1_000)
            at = show_time(message.published_at)
            print(f"{message.sequence}  {at}{key}  {value}", flush=True)


def _start(queue: Any, text: str) -> int | None:
    if text in ("earliest", "latest"):
        tail = queue.describe().tail
        return tail if text == "latest" and tail >= 0 else None
    if text.isdecimal():
        return validate_count("--from", text, least=0, most=2**63 - 1)
    raise InvalidOption(
        f"--from {text!r} is not a position: give earliest, latest or a sequence",
        option="--from",
        value=text,
    )


def _new_messages(queue: Any, after: int | None, pause: float) -> Iterable[Any]:
    while True:
        found = queue.peek(_CHUNK, after=after)
        yield from found
        if found:
            after = found[-1].sequence
        else:
            time.sleep(pause)


def leases(
    queue: QueuePath,
    group: Group = "default",
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Show which worker holds which messages, the oldest lease first."""
    found = existing_group(open_queue(queue, storage_option), group).leases()
    rows = [{**asdict(one), "sequences": _intervals(one.positions)} for one in found]
    if output is OutputFormat.json:
        rows = [asdict(one) for one in found]
    emit(rows, _LEASE_COLUMNS, output)


def _intervals(positions: Iterable[tuple[int, int]]) -> str:
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in positions]
    return ",".join(parts[:3]) + (",..." if len(parts) > 3 else "")


def locate(
    queue: QueuePath,
    sequence: _Sequence = None,
    message_id: Annotated[
        str | None, option("--message-id", help="The messages with this id.")
    ] = None,
    limit: Annotated[
        int, option("--limit", "-n", min=1, help="The most messages with the id, newest first.")
    ] = 10,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Show a message's state in each group, with its worker or outcome."""
    given = None if sequence is None else parse_sequence(sequence, "a sequence")
    if (given is None) == (message_id is None):
        raise InvalidOption(
            "locate takes one kind of name: give a sequence or --message-id",
            option="sequence",
            value=sequence,
        )
    opened = open_queue(queue, storage_option)
    found = [given] if given is not None else opened.find(message_id=message_id, n=limit)
    _require_found(found)
    emit([place for one in found for place in opened.locate(one)], _PLACE_COLUMNS, output)


def trace(
    queue: QueuePath,
    sequence: _Sequence = None,
    message_id: Annotated[
        str | None, option("--message-id", help="The messages with this id.")
    ] = None,
    key: Annotated[str | None, option("--key", help="The messages with this key.")] = None,
    limit: Annotated[
        int, option("--limit", "-n", min=1, help="The most messages, the newest first.")
    ] = 10,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Show a message's life, and its state or outcome by group."""
    opened = open_queue(queue, storage_option)
    if sequence is not None:
        sequences = [parse_sequence(sequence, "a sequence")]
    elif message_id is not None or key is not None:
        sequences = opened.find(key=key, message_id=message_id, n=limit)
    else:
        raise InvalidOption(
            "trace has no message: give a sequence, --message-id or --key",
            option="sequence",
            value=None,
        )
    _require_found(sequences)
    shown: set[int] = set()
    for one in sequences:
        if one not in shown:  # a redrive keeps id and key, so the first trace may have it
            shown |= _print_trace(opened, one, output)


def _require_found(sequences: Sequence[int]) -> None:
    if not sequences:
        print("spark-mq: no message has this id or key", file=sys.stderr)
        raise typer.Exit(NOT_FOUND)


def _print_trace(queue: Any, sequence: int, output: OutputFormat) -> set[int]:
    """Print a message and those of its redrives, and return their sequences."""
    found = queue.trace(sequence)
    chain = found.chain()
    places = {one.sequence: queue._locate_traced(one) for one in chain}
    if output is OutputFormat.json:
        print(json_line(_with_groups(found, places)))
        return set(places)
    now = datetime.now(UTC)
    for number, one in enumerate(chain):
        lines = one.lines() if number == 0 else ["redriven as", *one.lines()]
        ends = {end.group: end for end in one.outcomes}
        lines += [
            f"  now  {place.group}  {_standing(place, ends.get(place.group), now)}"
            for place in places[one.sequence]
        ]
        for line in lines:
            print(printable(line))
    return set(places)


def _with_groups(trace: Any, places: dict[int, Any]) -> dict[str, Any]:
    """Return a trace for JSON, with each message's state by group."""
    earlier = None if trace.earlier is None else _with_groups(trace.earlier, places)
    return {
        **asdict(trace),
        "earlier": earlier,
        "later": [_with_groups(one, places) for one in trace.later],
        "groups": [asdict(one) for one in places[trace.sequence]],
    }


def _standing(one: Any, end: Any, now: Any) -> str:
    if one.state == "leased":
        left = (one.leased_until - now).total_seconds()
        until = f"{show_age(left)} left" if left > 0 else "expired"
        return f"leased by {one.worker_id}, lease {one.lease_id}, {until}"
    if one.state == "delayed":
        return f"delayed until {show_time(one.available_at)}"
    if one.outcome:
        return f"settled: {end if end and end.outcome == one.outcome else one.outcome}"
    return f"{one.state}: {one.reason}" if one.reason else str(one.state)
