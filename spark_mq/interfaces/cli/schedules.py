"""List, make, pause, resume and remove schedules with ``spark-mq schedule``."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Mapping
from typing import Any, Final

from spark_mq.interfaces.cli.command import Invocation, argument, command, option, parse_pairs
from spark_mq.interfaces.cli.output import Pages, Rows, columns
from spark_mq.message import Message
from spark_mq.operations.schedules import ScheduleInfo
from spark_mq.util.show import show_duration
from spark_mq.util.validation import parse_instant

_COLUMNS: Final = columns(
    "name rule catch_up next_at last_at paused_at pause_reason",
    name="SCHEDULE", pause_reason="REASON",
)  # fmt: skip

_FACTS: Final = (
    "rule", "starts_at", "catch_up", "jitter", "next_at", "last_at", "paused_at", "pause_reason",
)  # fmt: skip
_NAME: Final = argument("The schedule.", metavar="SCHEDULE")


@command("schedule list")
def list_schedules(ctx: Invocation) -> Rows:
    """List the schedules with their next and last instants."""
    return Rows(ctx.queue.schedules(), _COLUMNS, _cells)


def _cells(schedule: ScheduleInfo) -> Mapping[str, Any]:
    return {name: getattr(schedule, name) for _, name in _COLUMNS}


@command("schedule add")
def add(
    ctx: Invocation,
    name: str = _NAME,
    message: str = argument("The payload. -: all of stdin."),
    cron: str | None = option("Five fields, such as '0 2 * * *'."),
    every: str | None = option("A period, such as 15m, instead of --cron."),
    timezone: str | None = option("The zone of --cron, such as Europe/Berlin. UTC without it."),
    catch_up: str = option("After a time without sweeps: latest, all or none.", default="latest"),
    jitter: str = option("Delay each message by a part of this duration.", default="0s"),
    starts_at: str | None = option("No instant is earlier.", metavar="INSTANT"),
    key: str | None = option("The key of the messages."),
    header: list[str] | None = option("A header. Repeatable.", metavar="NAME=VALUE"),
    priority: int = option("A higher one is leased first.", min=0, max=9, default=0),
) -> Pages:
    """Make or change a schedule, whose messages the sweep publishes.

    Repeating the same definition changes nothing.
    """
    value: bytes | str = message
    if message == "-":
        value = sys.stdin.buffer.read().removeprefix(codecs.BOM_UTF8)  # a mark of text files
    made = ctx.queue.schedule(
        name,
        message=Message(value, key, parse_pairs("--header", header), priority=priority),
        cron=cron,
        every=every,
        timezone=timezone,
        catch_up=catch_up,
        jitter=jitter,
        starts_at=None if starts_at is None else parse_instant("--starts-at", starts_at),
    )
    return _brief(made)


@command("schedule pause")
def pause(
    ctx: Invocation, name: str = _NAME, reason: str | None = option("Why, for people.")
) -> Pages:
    """Publish no message of a schedule until `schedule resume`. Its instants are skipped."""
    return _brief(ctx.queue.pause_schedule(name, reason))


@command("schedule resume")
def resume(ctx: Invocation, name: str = _NAME) -> Pages:
    """End a pause of a schedule, from now on."""
    return _brief(ctx.queue.resume_schedule(name))


@command("schedule remove", asks=True)
def remove(ctx: Invocation, name: str = _NAME) -> Mapping[str, Any]:
    """Remove a schedule. Asks first. Messages that it has published stay."""
    queue = ctx.queue
    ctx.confirm(f"Remove schedule {name} of {queue.path}?")
    queue.remove_schedule(name)
    return {"queue": queue.path, "removed": name}


def _brief(made: ScheduleInfo) -> Pages:
    return Pages([made], lambda schedule: [_facts(schedule)])


def _facts(schedule: ScheduleInfo) -> Mapping[str, Any]:
    facts = {name: getattr(schedule, name) for name in _FACTS}
    return {"schedule": schedule.name, **facts, "jitter": show_duration(schedule.jitter)}
