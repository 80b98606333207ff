"""Define, list, pause, resume and remove the schedules of a queue.

One commit of ``messages/`` changes a schedule for all processes, and a publish that began before it
is computed again. A commit of ``leases/`` then notes the change. A kill between the two leaves a
change that is made, but not noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from spark_mq.delta.state import TableState
from spark_mq.errors import InvalidOption, ScheduleNotFound, UnsupportedTable
from spark_mq.ledger.recurrence import (
    CATCH_UP,
    Recurrence,
    validate_cron,
    validate_every,
    validate_jitter,
    validate_timezone,
)
from spark_mq.message import Message, to_row
from spark_mq.operations.context import QueueContext
from spark_mq.operations.create import note_change
from spark_mq.storage.stored_entries import SCHEDULES, Schedule, schedule_txn
from spark_mq.util.clock import MICROSECOND, Duration, optional_datetime, to_micros
from spark_mq.util.records import Record
from spark_mq.util.show import shell_command, show_duration, show_some
from spark_mq.util.validation import (
    invalid,
    parse_instant,
    short_repr,
    suggest,
    truncate_error,
    validate_choice,
    validate_error,
    validate_name,
)

_MAX_BYTES: Final = 64 * 2**10  # of one entry
_MAX_ALL_BYTES: Final = 2**20  # of all entries, because each change writes them all
_MAX_NAMED: Final = 10
_GIVE_INSTANT: Final = "give an aware datetime, or text with a zone, as 2026-01-31T12:00:00Z"


@dataclass(frozen=True, slots=True)
class ScheduleInfo(Record):
    """A schedule of a queue.

    Attributes
    ----------
    name, cron, every, timezone, starts_at, catch_up, jitter
        The definition, as :meth:`spark_mq.Queue.schedule` gets it.
    value, key, headers, priority
        The message.
    next_at
        The instant of the next message. If it has passed, the message waits for a sweep. None if
        the schedule is paused, or no instant follows.
    last_at
        The instant of the last message, or None before the first.
    paused_at, pause_reason
        Since when and why it is paused, or None.
    """

    name: str
    cron: str | None
    every: timedelta | None
    timezone: str
    starts_at: datetime | None
    catch_up: str
    jitter: timedelta
    value: bytes
    key: str | None
    headers: Mapping[str, str]
    priority: int
    next_at: datetime | None
    last_at: datetime | None
    paused_at: datetime | None
    pause_reason: str | None

    @property
    def rule(self) -> str:
        """Return the rule for people, such as "every 15m" or "0 2 * * * in UTC"."""
        return _show_rule(self.cron, self.every, self.timezone)


def _show_rule(cron: str | None, every: timedelta | None, timezone: str) -> str:
    return f"{cron} in {timezone}" if every is None else f"every {show_duration(every)}"


# -- changes


def set_schedule(
    context: QueueContext,
    name: str,
    message: Any,
    *,
    cron: str | None,
    every: Duration | None,
    timezone: str | None,
    catch_up: str,
    jitter: Duration,
    starts_at: datetime | str | None,
) -> ScheduleInfo:
    """Make or change a schedule, as :meth:`spark_mq.Queue.schedule` describes."""
    validate_name("name", name)
    if context.settings.is_dead_letter_queue:
        raise InvalidOption(
            f"{context.path} is a dead-letter queue, whose sweep publishes no schedule: make the "
            "schedule in another queue",
            option="name",
            value=name,
        )
    rule = _rule(cron, every, timezone, starts_at)
    wanted = replace(
        _message(message),
        cron=rule.cron,
        every=rule.every,
        timezone=rule.timezone,
        starts_at=rule.starts_at,
        catch_up=validate_choice("catch_up", catch_up, CATCH_UP),
        jitter=validate_jitter(jitter, rule.every),
    )
    _check_lifetime(wanted, context.settings.delivery_delay)
    if len(wanted.encode().encode()) > _MAX_BYTES:
        raise invalid(
            "message",
            type(message).__name__,
            f"makes the schedule larger than {_MAX_BYTES:,} bytes: publish a reference to the data",
        )

    period = None if wanted.every is None else wanted.every * MICROSECOND
    shown = _show_rule(wanted.cron, period, wanted.timezone)

    def changed(old: Schedule | None, now: int) -> tuple[Schedule, str]:
        if old is None:
            return replace(wanted, created_at=now, since=now), f"added: {shown}"
        # Instants before a change of the timing are not published. After another change they are.
        since = old.since if old.timing == wanted.timing else max(old.since, now)
        same = replace(
            wanted,
            created_at=old.created_at,
            since=old.since,
            paused_at=old.paused_at,
            pause_reason=old.pause_reason,
        )
        new = same if same == old else replace(same, since=since)
        return new, f"changed: {shown}"

    return _change(context, name, changed, makes=True)


def _rule(
    cron: str | None,
    every: Duration | None,
    timezone: str | None,
    starts_at: datetime | str | None,
) -> Recurrence:
    if (cron is None) == (every is None):
        raise InvalidOption(
            "a schedule has one rule: give cron, such as '0 2 * * *', or every, such as '15m'",
            option="cron",
            value=cron,
        )
    if every is not None and timezone is not None:
        raise invalid("timezone", timezone, "goes with cron: leave it out, or give cron")
    if isinstance(starts_at, str):
        starts_at = parse_instant("starts_at", starts_at)
    if starts_at is not None and not isinstance(starts_at, datetime):
        # A time from now would be another one each time that the schedule is defined.
        raise invalid("starts_at", starts_at, f"is not an instant: {_GIVE_INSTANT}")
    if starts_at is not None and starts_at.tzinfo is None:
        raise invalid("starts_at", starts_at, f"has no time zone: {_GIVE_INSTANT}")
    return Recurrence(
        None if cron is None else validate_cron(cron),
        None if every is None else validate_every(every),
        "UTC" if timezone is None else validate_timezone(timezone),
        None if starts_at is None else to_micros(starts_at),
    )


def _message(message: Any) -> Schedule:
    given = message if isinstance(message, Message) else Message(message)
    try:
        row = to_row(given, "the message", lambda: 0)
    except InvalidOption as error:
        if error.data["option"] == "expires_at":
            raise
        kind = type(message).__name__
        raise InvalidOption(str(error), option="message", value=kind) from None
    refused = {
        "message_id": "each message gets an id of its own, from the name and the instant",
        "dedup_id": "each instant is published once without it",
    }
    for name, why in refused.items():
        if (value := getattr(given, name)) is not None:
            raise invalid(name, value, f"is not for a schedule: leave it out, {why}")
    times = {}
    for name in ("deliver_at", "expires_at"):
        if isinstance(getattr(given, name), datetime):
            why = "would be the same for each message: give a duration from the instant"
            raise invalid(name, getattr(given, name), why)
        times[name] = None if row[name] is None else to_micros(row[name])
    text = _text(row["value"])
    return Schedule(
        0,
        0,
        text=text,
        data=row["value"] if text is None else None,
        key=given.key,
        headers=dict(given.headers),
        priority=given.priority,
        deliver_after=times["deliver_at"],
        expires_after=times["expires_at"],
    )


def _check_lifetime(wanted: Schedule, usual: timedelta | None) -> None:
    """Raise InvalidOption if messages may expire before they are due. `usual` is their delay."""
    delay = wanted.deliver_after
    if delay is None:
        delay = 0 if usual is None else usual // MICROSECOND
    latest = delay + wanted.jitter
    if wanted.expires_after is None or wanted.expires_after > latest:
        return
    shown, least = (show_duration(n * MICROSECOND) for n in (wanted.expires_after, latest))
    raise InvalidOption(
        f"expires_at={shown} is not later than deliver_at and jitter, which are {least} after the "
        f"instant together, so some messages could not be leased. Give more than {least}",
        option="expires_at",
        value=wanted.expires_after * MICROSECOND,
    )


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def pause_schedule(context: QueueContext, name: str, reason: str | None) -> ScheduleInfo:
    given = validate_error(reason, "reason")
    text = None if given is None else truncate_error(given)

    def changed(old: Schedule, now: int) -> tuple[Schedule, str]:
        since = now if old.paused_at is None else old.paused_at
        kept = old.pause_reason if text is None else text
        what = "paused" if kept is None else f"paused: {kept}"
        return replace(old, paused_at=since, pause_reason=kept), what

    return _change(context, name, changed)


def resume_schedule(context: QueueContext, name: str) -> ScheduleInfo:
    """End a pause, whose instants are skipped. Raise ScheduleNotFound."""

    def changed(old: Schedule, now: int) -> tuple[Schedule, str]:
        if old.paused_at is None:
            return old, ""
        since = max(old.since, old.paused_at, now)
        return replace(old, since=since, paused_at=None, pause_reason=None), "resumed"

    return _change(context, name, changed)


def remove_schedule(context: QueueContext, name: str) -> None:
    """Remove a schedule, also one that cannot be read. Raise ScheduleNotFound."""
    validate_name("name", name)

    def removed(state: TableState) -> None:
        if not SCHEDULES.has(state, name):
            raise _not_found(context, state, name)

    context.messages.change_property(SCHEDULES.key(name), removed, "remove schedule")
    note_change(context, f"schedule {name} removed")


def _change(
    context: QueueContext,
    name: str,
    changed: Callable[[Any, int], tuple[Schedule, str]],
    *,
    makes: bool = False,
) -> ScheduleInfo:
    validate_name("name", name)
    notes: list[str] = []  # of the last try

    def text(state: TableState) -> str:
        old = SCHEDULES.find(state, name, context.path)
        if old is None and not makes:
            raise _not_found(context, state, name)
        new, what = changed(old, context.now())
        notes[:] = [] if new == old else [f"schedule {name} {what}"]
        encoded = new.encode()
        if SCHEDULES.size(state, name, encoded) > _MAX_ALL_BYTES:
            raise invalid(
                "name",
                name,
                f"makes the schedules larger than {_MAX_ALL_BYTES:,} bytes together: remove some, "
                "or publish references to the data",
            )
        return encoded

    state = context.messages.change_property(SCHEDULES.key(name), text, "configure schedule")
    for note in notes:
        note_change(context, note)
    return _info(context, state, name)


def _not_found(context: QueueContext, state: TableState, name: str) -> ScheduleNotFound:
    known = SCHEDULES.names(state)
    nearest = suggest(name, known)
    there = f"The queue has {show_some(known, _MAX_NAMED)}. " if known else ""
    hint = f"Did you mean {nearest!r}? " if nearest else there
    command = shell_command("schedule", "add", name, "-q", context.path)
    return ScheduleNotFound(
        f"there is no schedule {short_repr(name)} in {context.path}. {hint}queue.schedule(...) or "
        f"{command} makes one",
        schedule=name,
    )


# -- looks


def list_schedules(context: QueueContext) -> list[ScheduleInfo]:
    state = context.messages.look()
    return [_info(context, state, name) for name in SCHEDULES.names(state)]


def oldest_due(context: QueueContext) -> int | None:
    """Return the oldest instant that waits for a sweep, as of the last look, or None."""
    state, now, due = context.messages.log.state, context.now(), list[int]()
    for name in SCHEDULES.names(state):
        try:
            schedule = SCHEDULES.find(state, name, context.path)
        except UnsupportedTable:  # a sweep names it
            continue
        # With "none" a missed instant is skipped, so it waits for nothing.
        if schedule is None or schedule.paused_at is not None or schedule.catch_up == "none":
            continue
        done = schedule.done(state.txns.get(schedule_txn(name)))
        due += [at for at in islice(schedule.rule.after(done), 1) if at <= now]
    return min(due, default=None)


def _info(context: QueueContext, state: TableState, name: str) -> ScheduleInfo:
    schedule = SCHEDULES.find(state, name, context.path)
    if schedule is None:  # it was removed at this moment
        raise _not_found(context, state, name)
    last, now = state.txns.get(schedule_txn(name)), context.now()
    due = schedule.due(last, now, 1)
    following = None
    if schedule.paused_at is None:
        later = schedule.rule.after(max(schedule.done(last), now))
        following = due[0] if due else next(later, None)
    return ScheduleInfo(
        name,
        schedule.cron,
        None if schedule.every is None else schedule.every * MICROSECOND,
        schedule.timezone,
        optional_datetime(schedule.starts_at),
        schedule.catch_up,
        schedule.jitter * MICROSECOND,
        schedule.value,
        schedule.key,
        schedule.headers,
        schedule.priority,
        optional_datetime(following),
        # The number may be of a schedule of the same name that was removed.
        optional_datetime(last if last is not None and last > schedule.created_at else None),
        optional_datetime(schedule.paused_at),
        schedule.pause_reason,
    )
