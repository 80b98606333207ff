"""Show, configure, pause, move and drop groups, and change their messages: ``spark-mq group``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.interfaces.cli.command import (
    GROUP_ARGUMENT,
    Invocation,
    argument,
    command,
    option,
    parse_sequence,
    settings,
)
from spark_mq.interfaces.cli.messages import lane_rows, priority_rows
from spark_mq.interfaces.cli.output import Column, Pages, Part, Rows
from spark_mq.interfaces.cli.queues import group_columns, group_rows, shown_settings
from spark_mq.ledger.settings import GroupSettings
from spark_mq.util.sequences import number_in
from spark_mq.util.show import show_count
from spark_mq.util.validation import parse_instant, parse_until

__all__: list[str] = []

_LANES: Final = 5  # the hottest lanes in the description of a group
_ERRORS: Final = 3  # the last errors in it
_ERROR_COLUMNS: Final[list[Column]] = [
    ("LAST ERROR", "error"), ("STATE", "state"), ("MESSAGES", "messages"), ("AT", "at"),
]  # fmt: skip

_Reason = Annotated[str | None, option("Why, for people.")]
_Sequences = Annotated[list[str] | None, argument("The messages.", metavar="SEQUENCES")]
_MessageIds = Annotated[list[str] | None, option("The message with this id. Repeatable.")]
_Keys = Annotated[list[str] | None, option("Unsettled messages with this key. Repeatable.")]
_Force = Annotated[bool, option("Also take them from their leases.")]


@command("group list")
def list_groups(ctx: Invocation) -> Rows:
    """List the groups with their counts, the busiest first."""
    overview = ctx.queue.describe()
    rows = group_rows(overview.groups, len(overview.groups))
    rows += [{"group": name, "blocked_because": why} for name, why in overview.damaged.items()]
    return Rows(rows, group_columns())


@command("group describe", GROUP_ARGUMENT)
def describe(ctx: Invocation) -> Pages:
    """Describe a group with its settings, leases, lanes, last errors and blockers.

    It also shows counts and priorities.
    """
    group = ctx.group
    described = {
        "group": group.name,
        **asdict(group.stats()),
        "leases": len(group.leases()),
        "settings": asdict(group.settings),
        "priorities": group.priorities(),
        "lanes": group.lanes(_LANES),
        "errors": group.last_errors(_ERRORS),
        "blockers": [one for one in ctx.queue.blockers() if one.group == group.name],
    }
    return Pages([described], lambda _: _description(described, group.settings))


def _description(described: Mapping[str, Any], settings: GroupSettings) -> Iterator[Part]:
    names = ("settings", "priorities", "lanes", "errors", "blockers")
    parts = {name: described[name] for name in names}
    yield {name: value for name, value in described.items() if name not in parts}
    yield ""
    yield shown_settings(settings, settings, json=False)
    if len(parts["priorities"]) > 1:
        yield ""
        yield priority_rows(parts["priorities"])
    if parts["lanes"]:
        yield ""
        yield lane_rows(parts["lanes"])
    if parts["errors"]:
        yield ""
        yield Rows(parts["errors"], _ERROR_COLUMNS)
    for one in parts["blockers"]:
        which = f"messages {one.first} to {one.last}"
        if one.first is None:  # a limit blocks
            which = f"waiting: {show_count(one.messages, 'message')}"
        yield f"{one.because} blocks {one.blocks}: {which}"


@command("group create", GROUP_ARGUMENT)
def create(
    ctx: Invocation,
    start: Annotated[str, option("earliest, latest, a sequence, or an instant.")] = "earliest",
) -> Mapping[str, Any]:
    """Create a group at a position. A group that exists stays as it is."""
    made = ctx.queue.group(str(ctx.group_name), start=number_in(start))
    there = made.exists()
    made.ensure()
    return {"group": made.name, "created": not there}


@command("group configure", (*GROUP_ARGUMENT, *settings("retry_delay=30s")))
def configure(ctx: Invocation) -> Mapping[str, Any]:
    """Change settings of a group, and print all of them.

    A changed one is shown as old -> new. Workers apply them immediately.
    """
    group = ctx.group
    before = group.settings
    after = group.configure(**ctx.settings) if ctx.settings else before
    return {"group": group.name, **shown_settings(before, after, json=ctx.json)}


@command("group pause", GROUP_ARGUMENT)
def pause(
    ctx: Invocation,
    reason: _Reason = None,
    until: Annotated[
        str | None,
        option("When leases are allowed again: 30m from now, or an instant with a zone."),
    ] = None,
) -> Mapping[str, Any]:
    """Stop new leases of a group until `group resume`, or a time. Live leases can be settled."""
    ctx.group.pause(reason, until=parse_until("--until", until))
    return {"group": ctx.group.name, "blocked_because": ctx.group.stats().blocked_because}


@command("group resume", GROUP_ARGUMENT)
def resume(ctx: Invocation) -> Mapping[str, Any]:
    """End a pause of a group, and close its breaker."""
    ctx.group.resume()
    return {"group": ctx.group.name, "blocked_because": ctx.group.stats().blocked_because}


@command("group unblock", GROUP_ARGUMENT, asks=True)
def unblock(
    ctx: Invocation,
    to: Annotated[str, option("retry, dead_letter or drop.")],
    sequence: Annotated[
        list[str] | None, option("Only this message. Repeatable.", metavar="SEQUENCE")
    ] = None,
) -> Mapping[str, Any]:
    """Decide about messages that block a group. Asks before it drops any."""
    wanted = [parse_sequence(one, option="--sequence") for one in sequence or ()]
    group = ctx.group
    if to == "drop":
        ctx.confirm(f"Drop the messages that block group {group.name}?")
    return {"group": group.name, "unblocked": group.unblock(to, wanted or None)}


@command("group discard", GROUP_ARGUMENT, asks=True)
def discard(
    ctx: Invocation,
    sequences: _Sequences = None,
    message_id: _MessageIds = None,
    key: _Keys = None,
    reason: _Reason = None,
    force: _Force = False,
) -> Mapping[str, Any]:
    """Settle messages without a lease. No worker of the group gets them again. Asks first."""
    named = _named(sequences, message_id, key)
    ctx.confirm(f"Discard these messages of group {ctx.group.name}?")
    discarded = ctx.group.discard(**named, reason=reason, force=force)
    return {"group": ctx.group.name, "discarded": discarded}


@command("group retry-now", GROUP_ARGUMENT, asks=True)
def retry_now(
    ctx: Invocation,
    sequences: _Sequences = None,
    message_id: _MessageIds = None,
    key: _Keys = None,
    force: _Force = False,
) -> Mapping[str, Any]:
    """Make delayed, dead or blocked messages due now. Asks before it takes any from a lease."""
    named = _named(sequences, message_id, key)
    group = ctx.group
    if force:
        ctx.confirm(f"Take these messages of group {group.name} from their leases?")
    retried = group.retry_now(**named, force=force)
    return {"group": group.name, "retried": retried}


@command("group dead-letter", GROUP_ARGUMENT, asks=True)
def dead_letter(
    ctx: Invocation,
    sequences: _Sequences = None,
    message_id: _MessageIds = None,
    key: _Keys = None,
    reason: _Reason = None,
    force: _Force = False,
) -> Mapping[str, Any]:
    """Make messages dead without a lease. The sweep makes them dead letters. Asks first."""
    named = _named(sequences, message_id, key)
    ctx.confirm(f"Make these messages of group {ctx.group.name} dead?")
    return {
        "group": ctx.group.name, "dead": ctx.group.dead_letter(**named, reason=reason, force=force)
    }  # fmt: skip


def _named(
    sequences: list[str] | None, message_id: list[str] | None, key: list[str] | None
) -> dict[str, Any]:
    """Return how a change names its messages. What is not given is an empty list."""
    numbers = [parse_sequence(one, option="SEQUENCES") for one in sequences or ()]
    return {"sequences": numbers or None, "message_id": message_id or None, "key": key or None}


@command("group seek", GROUP_ARGUMENT, destroys=True)
def seek(
    ctx: Invocation,
    to_earliest: Annotated[bool, option("To the first message.")] = False,
    to_latest: Annotated[bool, option("After the last message.")] = False,
    to_datetime: Annotated[str | None, option("An instant, as 2026-01-31T12:00:00Z.")] = None,
    to_sequence: Annotated[str | None, option("A sequence.", metavar="SEQUENCE")] = None,
    execute: Annotated[
        bool, option("Do it. Without this option nothing changes.", "--execute", "--yes", "-y")
    ] = False,
) -> Mapping[str, Any]:
    """Move a group. Without --execute it only shows the effects."""
    given: list[str | int | datetime] = []
    given += ["earliest"] if to_earliest else []
    given += ["latest"] if to_latest else []
    given += [] if to_datetime is None else [parse_instant("--to-datetime", to_datetime)]
    if to_sequence is not None:
        given += [parse_sequence(to_sequence, option="--to-sequence")]
    if len(given) != 1:
        raise InvalidOption(
            f"a seek has {len(given)} targets: give one of --to-earliest, --to-latest, "
            "--to-datetime and --to-sequence",
            option="to",
            value=len(given),
        )
    preview = ctx.group.preview_seek(given[0])
    if execute:
        ctx.group.seek(given[0])
    return {**asdict(preview), "executed": execute}


@command("group drop", GROUP_ARGUMENT, asks=True)
def drop(ctx: Invocation) -> Mapping[str, Any]:
    """Drop a group with its ledger. Asks first."""
    name = str(ctx.group_name)
    if name not in ctx.queue.groups():
        ctx.existing_group(name)  # raises GroupNotFound, also if the ledger is damaged
    ctx.confirm(f"Drop group {name} of {ctx.queue.path} with its whole state?")
    ctx.queue.drop_group(name)
    return {"queue": ctx.queue.path, "removed": name}
