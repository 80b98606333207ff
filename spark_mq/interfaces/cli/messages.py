"""Show messages with ``peek`` and ``trace``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Final

import typer

from spark_mq.group import ConsumerGroup
from spark_mq.inspect.peek import PeekedMessage
from spark_mq.interfaces.cli.command import Invocation, argument, command, option, parse_sequence
from spark_mq.interfaces.cli.output import NOT_FOUND, Pages, Rows, WrongCall, columns, complain
from spark_mq.queue import Queue
from spark_mq.util.clock import SECOND
from spark_mq.util.show import show_age, show_name, show_time, show_value
from spark_mq.util.validation import validate_duration

_QUEUE_COLUMNS: Final = columns("sequence message_id key published_at value")
_PEEK_COLUMNS: Final = columns(
    "sequence message_id key published_at state delivery_count failure_count worker_id error value"
)
_PLACE_COLUMNS: Final = columns(
    "sequence group state outcome worker_id lease_id leased_until available_at delivery_count "
    "failure_count reason error"
)
_FOLLOWED: Final = 100  # messages that `peek --follow` reads at once
_LIMIT: Final = 10


def _complete_states(incomplete: str) -> list[str]:
    from spark_mq.ledger.states import STATE_NAMES

    return [name for name in STATE_NAMES if name.startswith(incomplete)]


@command("peek")
def peek(
    ctx: Invocation,
    group: str | None = option("Show the state in this group.", "-g", envvar="SPARK_MQ_GROUP"),
    state: str | None = option("Only this state of the group.", autocompletion=_complete_states),
    key: str | None = option("Only messages with this key."),
    message_id: str | None = option("Only messages with this id."),
    after: str | None = option(
        "Only after this sequence. With --follow also earliest.", metavar="SEQUENCE"
    ),
    limit: int | None = option(
        "The most messages. Default: 10, with --follow no limit.", "-n", min=1
    ),
    follow: bool = option(
        "Print new messages as they are published, until Ctrl-C.", "-f", default=False
    ),
    interval: str = option("How often --follow reads the queue.", default="1s"),
) -> Rows | Pages:
    """Show messages without leasing them."""
    if state is not None and group is None:
        raise WrongCall(f"--state {state} needs --group: a state belongs to a group")
    start = None
    if after is not None and not (follow and after == "earliest"):
        start = parse_sequence(after, option="--after")
    source: Queue | ConsumerGroup = ctx.queue if group is None else ctx.existing_group(group)
    wanted: dict[str, Any] = {"key": key, "message_id": message_id}
    if state is not None:
        wanted["state"] = state
    if follow:
        start = _latest(ctx.queue) if after is None else start
        new = _new_messages(
            partial(source.peek, **wanted), start, validate_duration("--interval", interval)
        )
        return Pages(islice(new, limit), _message_line)
    most = limit or _LIMIT
    if isinstance(source, ConsumerGroup) and start is None and set(wanted.values()) == {None}:
        return Rows(_unsettled_first(source, most), _PEEK_COLUMNS)
    shown = _QUEUE_COLUMNS if group is None else _PEEK_COLUMNS
    return Rows(source.peek(most, after=start, **wanted), shown)


def _unsettled_first(group: ConsumerGroup, limit: int) -> list[PeekedMessage]:
    """Return the first messages of a group, those that are settled last."""
    from spark_mq.ledger.states import SETTLED, STATE_NAMES, UNREAD

    states = set(STATE_NAMES) - {SETTLED, UNREAD}  # ready ones contain unread ones
    unsettled = {
        message.sequence: message for state in states for message in group.peek(limit, state=state)
    }
    first = [unsettled[sequence] for sequence in sorted(unsettled)][:limit]
    missing = limit - len(first)
    return first + (list(group.peek(missing, state=SETTLED)) if missing else [])


def _latest(queue: Queue) -> int | None:
    latest = queue.describe().latest_sequence
    return latest if latest >= 0 else None


def _new_messages(
    peek: Callable[..., Sequence[Any]], after: int | None, pause: int
) -> Iterator[Any]:
    while True:
        messages = peek(_FOLLOWED, after=after)
        yield from messages
        if messages:
            after = messages[-1].sequence
        else:
            time.sleep(pause / SECOND)


def _message_line(message: Any) -> list[str]:
    key = "" if message.key is None else f"  {show_name(message.key)}"
    value = show_value(message.value, 1_000)
    return [f"{message.sequence}  {show_time(message.published_at)}{key}  {value}"]


@command("trace")
def trace(
    ctx: Invocation,
    sequence: str | None = argument("The message.", default=None),
    message_id: str | None = option("The messages with this id."),
    key: str | None = option("The messages with this key."),
    limit: int = option("The most messages, the newest first.", "-n", min=1, default=_LIMIT),
    now: bool = option(
        "Only the state now, with a row for each group. It reads less.", default=False
    ),
) -> Pages | Rows:
    """Show a message's life, and its state or outcome, worker and lease by group."""
    named = message_id is not None or key is not None
    if (sequence is None) is not named:
        raise WrongCall(
            "trace has no message: give a sequence, --message-id or --key"
            if sequence is None
            else "trace takes one kind of name: give a sequence, or --message-id and --key"
        )
    sequences: Sequence[int]
    if sequence is not None:
        sequences = [parse_sequence(sequence)]
    else:
        sequences = ctx.queue.find(key=key, message_id=message_id, n=limit)
    if not sequences:
        complain("no message has this id or key")
        raise typer.Exit(NOT_FOUND)
    if now:
        places = (place for number in sequences for place in ctx.queue.locate(number))
        return Rows(list(places), _PLACE_COLUMNS)
    traces = _traces(ctx.queue, sequences)
    return Pages(map(_with_groups, traces) if ctx.json else traces, _life)


_Traced = tuple[Any, dict[int, Any]]  # a trace, and where each message of its chain stands


def _traces(queue: Queue, sequences: Iterable[int]) -> Iterator[_Traced]:
    shown: set[int] = set()
    for sequence in sequences:
        if sequence not in shown:  # a redrive keeps id and key, so the first trace may have it
            traced = queue.trace(sequence)
            places = {message.sequence: queue._locate_traced(message) for message in traced.chain()}
            shown |= places.keys()
            yield traced, places


def _life(traced: _Traced) -> Iterator[str]:
    """Yield the lines of a message and of its redrives, with where they stand now."""
    trace, places = traced
    now = datetime.now(UTC)
    for number, message in enumerate(trace.chain()):
        yield from message.lines() if number == 0 else ["redriven as", *message.lines()]
        ends = {end.group: end for end in message.outcomes}
        for place in places[message.sequence]:
            yield f"  now  {place.group}  {_standing(place, ends.get(place.group), now)}"


def _with_groups(traced: _Traced) -> dict[str, Any]:
    trace, places = traced
    earlier = None if trace.earlier is None else _with_groups((trace.earlier, places))
    return {
        **asdict(trace),
        "earlier": earlier,
        "later": [_with_groups((later, places)) for later in trace.later],
        "groups": [asdict(place) for place in places[trace.sequence]],
    }


def _standing(position: Any, end: Any, now: datetime) -> str:
    if position.state == "leased":
        left = (position.leased_until - now).total_seconds()
        until = f"{show_age(left)} left" if left > 0 else "expired"
        return f"leased by {position.worker_id}, lease {position.lease_id}, {until}"
    if position.state == "delayed":
        return f"delayed until {show_time(position.available_at)}"
    if position.outcome:
        return f"settled: {end if end and end.outcome == position.outcome else position.outcome}"
    return f"{position.state}: {position.reason}" if position.reason else str(position.state)
