"""Show messages with ``peek``, ``tail``, ``leases``, ``locate``, ``trace`` and ``lanes``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Final

import typer

from spark_mq.errors import InvalidOption
from spark_mq.group import ConsumerGroup
from spark_mq.inspect.peek import PeekedMessage
from spark_mq.interfaces.cli.command import (
    GROUP,
    Invocation,
    argument,
    command,
    option,
    parse_sequence,
)
from spark_mq.interfaces.cli.output import NOT_FOUND, Column, Pages, Rows, complain
from spark_mq.queue import Queue
from spark_mq.util.advice import shell_command
from spark_mq.util.clock import SECOND
from spark_mq.util.sequences import number_in
from spark_mq.util.show import show_age, show_name, show_time, show_value
from spark_mq.util.validation import short_repr, validate_count, validate_duration

__all__ = ["lane_rows", "priority_rows"]

_QUEUE_COLUMNS: Final = ("sequence", "message_id", "key", "published_at", "value")
_PEEK_COLUMNS: Final[list[Column]] = [
    ("SEQUENCE", "sequence"), ("ID", "message_id"), ("KEY", "key"), ("PUBLISHED", "published_at"),
    ("STATE", "state"), ("DELIVERIES", "delivery_count"), ("FAILURES", "failure_count"),
    ("WORKER", "worker_id"), ("ERROR", "error"), ("VALUE", "value"),
]  # fmt: skip
_LEASE_COLUMNS: Final[list[Column]] = [
    ("LEASE", "lease_id"), ("WORKER", "worker_id"), ("SINCE", "since"), ("UNTIL", "until"),
    ("EXPIRED", "expired"), ("MESSAGES", "messages"), ("DELIVERY", "delivery_count"),
    ("SEQUENCES", "sequences"),
]  # fmt: skip
_PLACE_COLUMNS: Final[list[Column]] = [
    ("SEQUENCE", "sequence"), ("GROUP", "group"), ("STATE", "state"), ("OUTCOME", "outcome"),
    ("WORKER", "worker_id"), ("LEASE", "lease_id"), ("UNTIL", "leased_until"),
    ("DUE", "available_at"),
    ("DELIVERIES", "delivery_count"), ("FAILURES", "failure_count"), ("REASON", "reason"),
    ("ERROR", "error"),
]  # fmt: skip
_LANE_COLUMNS: Final[list[Column]] = [
    ("LANE", "lane"), ("MESSAGES", "messages"), ("SHARE", "share"), ("READY", "ready"),
    ("DELAYED", "delayed"), ("LEASED", "leased"), ("DEAD", "dead"), ("HEAD", "head"),
    ("AGE", "head_age"), ("HELD BACK", "held_back"), ("BECAUSE", "because"),
]  # fmt: skip
_PRIORITY_COLUMNS: Final[list[Column]] = [
    ("PRIORITY", "priority"), ("READY", "ready"), ("DELAYED", "delayed"),
    ("LEASED", "leased"), ("DEAD", "dead"), ("BLOCKED", "blocked"), ("OLDEST", "oldest_age"),
]  # fmt: skip
_KEY_COLUMNS: Final[list[Column]] = [("KEY", "key"), ("MESSAGES", "messages"), ("SHARE", "share")]
_TAILED: Final = 100  # messages that one look of a tail reads

_Newest = Annotated[int, option("The most messages with the id, newest first.", "-n", min=1)]
_Sequence = Annotated[str | None, argument("The message.")]
_MessageId = Annotated[str | None, option("The messages with this id.")]


def _complete_states(incomplete: str) -> list[str]:
    from spark_mq.ledger.states import STATE_NAMES

    return [name for name in STATE_NAMES if name.startswith(incomplete)]


@command("peek")
def peek(
    ctx: Invocation,
    group: Annotated[
        str | None, option("Show the state in this group.", "-g", envvar="SPARK_MQ_GROUP")
    ] = None,
    state: Annotated[
        str | None, option("Only this state of the group.", autocompletion=_complete_states)
    ] = None,
    key: Annotated[str | None, option("Only messages with this key.")] = None,
    message_id: Annotated[str | None, option("Only messages with this id.")] = None,
    after: Annotated[str | None, option("Only after this sequence.", metavar="SEQUENCE")] = None,
    limit: Annotated[int, option("The most messages.", "-n", min=1)] = 10,
) -> Rows:
    """Show messages without leasing them."""
    start = None if after is None else parse_sequence(after, option="--after")
    wanted: dict[str, Any] = {"key": key, "message_id": message_id, "after": start}
    if group is not None:
        found = ctx.existing_group(group)
        if state is None and not any(value is not None for value in wanted.values()):
            return Rows(_unsettled_first(found, limit), _PEEK_COLUMNS)
        return Rows(found.peek(limit, state=state, **wanted), _PEEK_COLUMNS)
    if state is not None:
        raise InvalidOption(
            f"--state {state} needs --group: a state belongs to a group",
            option="--state",
            value=state,
        )
    columns = [one for one in _PEEK_COLUMNS if one[1] in _QUEUE_COLUMNS]
    return Rows(ctx.queue.peek(limit, **wanted), columns)


def _unsettled_first(group: ConsumerGroup, limit: int) -> list[PeekedMessage]:
    """Return the first messages of a group, those that are settled last."""
    from spark_mq.ledger.states import SETTLED, STATE_NAMES, UNREAD

    states = set(STATE_NAMES) - {SETTLED, UNREAD}  # ready ones contain unread ones
    found = {one.sequence: one for state in states for one in group.peek(limit, state=state)}
    first = [found[sequence] for sequence in sorted(found)][:limit]
    missing = limit - len(first)
    return first + (list(group.peek(missing, state=SETTLED)) if missing else [])


@command("tail")
def tail(
    ctx: Invocation,
    start: Annotated[
        str, option("latest, earliest, or a sequence to start after.", "--from")
    ] = "latest",
    limit: Annotated[int | None, option("End after so many messages.", "-n", min=1)] = None,
    interval: Annotated[str, option("How often to look.")] = "1s",
) -> Pages:
    """Print new messages as they are published, until Ctrl-C."""
    queue = ctx.queue
    pause = validate_duration("--interval", interval) / SECOND
    return Pages(islice(_new_messages(queue, _start(queue, start), pause), limit), _message_line)


def _start(queue: Queue, text: str) -> int | None:
    if text in ("earliest", "latest"):
        latest = queue.describe().latest_sequence
        return latest if text == "latest" and latest >= 0 else None
    number = number_in(text)
    if number.isdecimal():
        return validate_count("--from", number, least=0, most=2**63 - 1)
    raise InvalidOption(
        f"--from {short_repr(text)} is not a position: give earliest, latest or a sequence",
        option="--from",
        value=text,
    )


def _new_messages(queue: Queue, after: int | None, pause: float) -> Iterator[Any]:
    while True:
        found = queue.peek(_TAILED, after=after)
        yield from found
        if found:
            after = found[-1].sequence
        else:
            time.sleep(pause)


def _message_line(message: Any) -> list[str]:
    key = "" if message.key is None else f"  {show_name(message.key)}"
    value = show_value(message.value, 1_000)
    return [f"{message.sequence}  {show_time(message.published_at)}{key}  {value}"]


@command("leases", GROUP)
def leases(ctx: Invocation) -> Rows:
    """Show which worker holds which messages, the oldest lease first."""
    return Rows(ctx.group.leases(), _LEASE_COLUMNS, _lease_cells)


def _lease_cells(lease: Any) -> dict[str, Any]:
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in lease.positions]
    return {**asdict(lease), "sequences": ",".join(parts[:3]) + (",..." if parts[3:] else "")}


@command("locate")
def locate(
    ctx: Invocation, sequence: _Sequence = None, message_id: _MessageId = None, limit: _Newest = 10
) -> Rows:
    """Show a message's state in each group, with its worker or outcome."""
    given = None if sequence is None else parse_sequence(sequence)
    if (given is None) == (message_id is None):
        raise InvalidOption(
            "locate takes one kind of name: give a sequence or --message-id",
            option="sequence",
            value=sequence,
        )
    found = [given] if given is not None else ctx.queue.find(message_id=message_id, n=limit)
    _require_found(found)
    return Rows([place for one in found for place in ctx.queue.locate(one)], _PLACE_COLUMNS)


@command("trace")
def trace(
    ctx: Invocation,
    sequence: _Sequence = None,
    message_id: _MessageId = None,
    key: Annotated[str | None, option("The messages with this key.")] = None,
    limit: Annotated[int, option("The most messages, the newest first.", "-n", min=1)] = 10,
) -> Pages:
    """Show a message's life, and its state or outcome by group."""
    if sequence is not None:
        found: Sequence[int] = [parse_sequence(sequence)]
    elif message_id is not None or key is not None:
        found = ctx.queue.find(key=key, message_id=message_id, n=limit)
    else:
        raise InvalidOption(
            "trace has no message: give a sequence, --message-id or --key",
            option="sequence",
            value=None,
        )
    _require_found(found)
    traces = _traces(ctx.queue, found)
    return Pages(map(_with_groups, traces) if ctx.json else traces, _life)


def _require_found(sequences: Sequence[int]) -> None:
    if not sequences:
        complain("no message has this id or key")
        raise typer.Exit(NOT_FOUND)


_Traced = tuple[Any, dict[int, Any]]  # a trace, and where each message of its chain stands


def _traces(queue: Queue, sequences: Iterable[int]) -> Iterator[_Traced]:
    shown: set[int] = set()
    for sequence in sequences:
        if sequence not in shown:  # a redrive keeps id and key, so the first trace may have it
            found = queue.trace(sequence)
            places = {one.sequence: queue._locate_traced(one) for one in found.chain()}
            shown |= places.keys()
            yield found, places


def _life(traced: _Traced) -> Iterator[str]:
    """Yield the lines of a message and of its redrives, with where they stand now."""
    trace, places = traced
    now = datetime.now(UTC)
    for number, one in enumerate(trace.chain()):
        yield from one.lines() if number == 0 else ["redriven as", *one.lines()]
        ends = {end.group: end for end in one.outcomes}
        for place in places[one.sequence]:
            yield f"  now  {place.group}  {_standing(place, ends.get(place.group), now)}"


def _with_groups(traced: _Traced) -> dict[str, Any]:
    """Return a trace for JSON, with each message's state by group."""
    trace, places = traced
    earlier = None if trace.earlier is None else _with_groups((trace.earlier, places))
    return {
        **asdict(trace),
        "earlier": earlier,
        "later": [_with_groups((one, places)) for one in trace.later],
        "groups": [asdict(one) for one in places[trace.sequence]],
    }


def _standing(one: Any, end: Any, now: datetime) -> str:
    if one.state == "leased":
        left = (one.leased_until - now).total_seconds()
        until = f"{show_age(left)} left" if left > 0 else "expired"
        return f"leased by {one.worker_id}, lease {one.lease_id}, {until}"
    if one.state == "delayed":
        return f"delayed until {show_time(one.available_at)}"
    if one.outcome:
        return f"settled: {end if end and end.outcome == one.outcome else one.outcome}"
    return f"{one.state}: {one.reason}" if one.reason else str(one.state)


@command("lanes", GROUP)
def lanes(
    ctx: Invocation,
    top: Annotated[int, option("The most lanes, or keys.", "-n", min=1)] = 10,
    by: Annotated[str, option("messages, or age for the oldest lanes.")] = "messages",
    lane: Annotated[int | None, option("Show the commonest keys of this lane instead.")] = None,
) -> Rows:
    """Show the lanes with the most unsettled messages.

    Each lane shows why it is held back.
    """
    group = ctx.group
    if not ctx.queue.settings.lanes:
        raise InvalidOption(
            f"{ctx.queue.path} has no lanes: lanes are fixed when a queue is created. "
            f"Create a queue with {shell_command('queue', 'create', 'PATH', '--lanes', '64')}.",
            option="queue",
            value=ctx.queue.path,
        )
    if lane is not None:
        return Rows(group.hot_keys(lane, top), _KEY_COLUMNS)
    return lane_rows(group.lanes(top, by=by))


def lane_rows(lanes: Iterable[Any], columns: Sequence[Column] = _LANE_COLUMNS) -> Rows:
    return Rows(lanes, columns)


def priority_rows(priorities: Iterable[Any]) -> Rows:
    return Rows(priorities, _PRIORITY_COLUMNS)
