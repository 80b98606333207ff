"""Show, configure, pause, move and drop groups, and decide about messages: ``spark-mq group``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Final

from spark_mq.interfaces.cli.command import (
    GROUP_ARGUMENT,
    Invocation,
    argument,
    command,
    option,
    parse_sequence,
    settings,
)
from spark_mq.interfaces.cli.output import Pages, Part, Rows, WrongCall, columns
from spark_mq.interfaces.cli.queues import shown_settings
from spark_mq.interfaces.cli.workers import worker_rows
from spark_mq.ledger.settings import GroupSettings
from spark_mq.queue import Queue
from spark_mq.util.show import number_in, shell_command, show_count
from spark_mq.util.validation import parse_until, validate_position

_ERRORS: Final = 3  # the last errors in the description of a group
_ERROR_COLUMNS: Final = columns("error state messages at", error="LAST ERROR")
_LEASE_COLUMNS: Final = columns(
    "lease_id worker_id since until expired messages delivery_count sequences",
    delivery_count="DELIVERY",
)
_LANE_COLUMNS: Final = columns(
    "lane messages share ready delayed leased dead head head_age held_back because"
)
_PRIORITY_COLUMNS: Final = columns("priority ready delayed leased dead blocked oldest_age")


class _Part(StrEnum):
    leases = "leases"
    workers = "workers"
    lanes = "lanes"


@command("group describe", GROUP_ARGUMENT)
def describe(
    ctx: Invocation,
    part: _Part | None = argument(
        "Show only this, with all of its values.", metavar="PART", default=None
    ),
    top: int = option("The most lanes.", "-n", min=1, default=10),
    by: str = option("Lanes by messages, or by age for the oldest ones.", default="messages"),
) -> Pages | Rows:
    """Describe a group with its settings, leases, lanes, last errors and blockers.

    It also shows counts and priorities. `leases` are the leases with their workers and messages,
    `workers` adds idle ones, and `lanes` says what holds back which lane.
    """
    group = ctx.group
    if part is _Part.leases:
        return Rows(group.leases(), _LEASE_COLUMNS, _lease_cells)
    if part is _Part.workers:
        return worker_rows([group])
    if part is _Part.lanes:
        _require_lanes(ctx.queue)
        return Rows(group.lanes(top, by=by), _LANE_COLUMNS)
    described = {
        "group": group.name,
        **asdict(group.stats()),
        "leases": len(group.leases()),
        "settings": asdict(group.settings),
        "priorities": group.priorities(),
        "lanes": group.lanes(top, by=by),
        "errors": group.last_errors(_ERRORS),
        "blockers": [blocker for blocker in ctx.queue.blockers() if blocker.group == group.name],
    }
    return Pages([described], lambda _: _description(described, group.settings))


def _require_lanes(queue: Queue) -> None:
    if not queue.settings.lanes:
        raise WrongCall(
            f"{queue.path} has no lanes: lanes are fixed when a queue is created. "
            f"Create a queue with {shell_command('queue', 'create', 'PATH', '--lanes', '64')}."
        )


def _lease_cells(lease: Any) -> dict[str, Any]:
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in lease.positions]
    return {**asdict(lease), "sequences": ",".join(parts[:3]) + (",..." if parts[3:] else "")}


def _description(described: Mapping[str, Any], settings: GroupSettings) -> Iterator[Part]:
    names = ("settings", "priorities", "lanes", "errors", "blockers")
    parts = {name: described[name] for name in names}
    yield {name: value for name, value in described.items() if name not in parts}
    yield ""
    yield shown_settings(settings, settings, json=False)
    priorities = parts["priorities"] if len(parts["priorities"]) > 1 else []
    tables = [
        Rows(priorities, _PRIORITY_COLUMNS),
        Rows(parts["lanes"], _LANE_COLUMNS),
        Rows(parts["errors"], _ERROR_COLUMNS),
    ]
    for table in tables:
        if table.rows:
            yield ""
            yield table
    for blocker in parts["blockers"]:
        which = f"messages {blocker.first} to {blocker.last}"
        if blocker.first is None:  # a limit blocks
            which = f"waiting: {show_count(blocker.messages, 'message')}"
        yield f"{blocker.because} blocks {blocker.blocks}: {which}"


@command("group configure", (*GROUP_ARGUMENT, *settings("retry_delay=30s")))
def configure(
    ctx: Invocation,
    create: bool = option("Create the group if it is missing.", default=False),
    start: str | None = option(
        "Where --create starts: earliest, latest, a sequence, or an instant. Default: earliest."
    ),
) -> Mapping[str, Any]:
    """Create a group or change its settings, and print all of them.

    Changes are shown as old -> new. Workers apply them immediately. A group that exists keeps
    its position.
    """
    if start is not None and not create:
        raise WrongCall(
            "--start is for a new group: give --create, or move the group with group seek"
        )
    row: dict[str, Any] = {"group": str(ctx.group_name)}
    if create:
        group = ctx.queue.group(str(ctx.group_name), start=number_in(start or "earliest"))
        row["created"] = not group.exists()
    else:
        group = ctx.group
    before = group.settings
    # A wrong setting is refused before the group is created.
    after = group.configure(**ctx.settings) if ctx.settings else group.ensure().settings
    return {**row, **shown_settings(before, after, json=ctx.json)}


@command("group pause", GROUP_ARGUMENT)
def pause(
    ctx: Invocation,
    reason: str | None = option("Why, for people."),
    until: str | None = option(
        "When leases are allowed again: 30m from now, or an instant with a zone."
    ),
) -> Mapping[str, Any]:
    """Stop new leases of a group until `group resume`, or a time. Live leases can be settled."""
    ctx.group.pause(reason, until=parse_until("--until", until))
    return {"group": ctx.group.name, "blocked_because": ctx.group.stats().blocked_because}


@command("group resume", GROUP_ARGUMENT)
def resume(ctx: Invocation) -> Mapping[str, Any]:
    """End a pause of a group, and close its breaker."""
    ctx.group.resume()
    return {"group": ctx.group.name, "blocked_because": ctx.group.stats().blocked_because}


class _Resolution(StrEnum):
    retry = "retry"
    discard = "discard"
    dead_letter = "dead_letter"


_QUESTIONS: Final = {
    _Resolution.discard: "Discard {}?",
    _Resolution.dead_letter: "Make {} dead?",
}
_COUNTS: Final = {
    _Resolution.retry: "retried",
    _Resolution.discard: "discarded",
    _Resolution.dead_letter: "dead",
}


@command("group resolve", GROUP_ARGUMENT, asks=True)
def resolve(
    ctx: Invocation,
    to: _Resolution = option(
        "retry makes delayed, dead or blocked messages due now. discard settles them for good. "
        "dead_letter makes them dead, and the sweep makes them dead letters.",
        default=...,
    ),
    sequences: list[str] | None = argument("The messages.", metavar="SEQUENCES", default=None),
    message_id: list[str] | None = option("The message with this id. Repeatable."),
    key: list[str] | None = option("Unsettled messages with this key. Repeatable."),
    blocked: bool = option("All messages that block the group.", default=False),
    reason: str | None = option("Why, for people, with --to discard or dead_letter."),
    force: bool = option("Also take them from their leases.", default=False),
) -> Mapping[str, Any]:
    """Retry, discard or dead-letter messages by hand.

    Asks first, unless it only retries messages that no lease holds.
    """
    numbers = [parse_sequence(text, option="SEQUENCES") for text in sequences or ()]
    names: dict[str, Any] = {
        "sequences": numbers or None,
        "message_id": message_id or None,
        "key": key or None,
    }
    if blocked and (any(names.values()) or force or reason):
        raise WrongCall(
            "--blocked names its messages itself: leave out other names, --force and --reason"
        )
    if reason is not None and to is _Resolution.retry:
        raise WrongCall("--reason is for --to discard and --to dead_letter")
    group = ctx.group
    if to is not _Resolution.retry:
        which = "the messages that block" if blocked else "these messages of"
        ctx.confirm(_QUESTIONS[to].format(f"{which} group {group.name}"))
    elif force:
        ctx.confirm(f"Take these messages of group {group.name} from their leases?")
    if blocked:
        changed = group.unblock("drop" if to is _Resolution.discard else to)
    elif to is _Resolution.retry:
        changed = group.retry_now(**names, force=force)
    elif to is _Resolution.discard:
        changed = group.discard(**names, force=force, reason=reason)
    else:
        changed = group.dead_letter(**names, force=force, reason=reason)
    return {"group": group.name, _COUNTS[to]: changed}


@command("group seek", GROUP_ARGUMENT, destroys=True)
def seek(
    ctx: Invocation,
    to: str = option(
        "earliest, latest, a sequence, or an instant, as 2026-01-31T12:00:00Z.", default=...
    ),
    execute: bool = option(
        "Do it. Without this option nothing changes.", "--execute", "--yes", "-y", default=False
    ),
) -> Mapping[str, Any]:
    """Move a group. Without --execute it only shows the effects."""
    position = validate_position("--to", number_in(to))
    preview = ctx.group.preview_seek(position)
    if execute:
        ctx.group.seek(position)
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
