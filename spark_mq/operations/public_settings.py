"""Define the settings of queues and groups for users, with timedeltas."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any, Final

from spark_mq.ledger import queue_settings as stored_queue
from spark_mq.ledger import settings as stored
from spark_mq.util.records import Record
from spark_mq.util.show import show_duration

__all__ = [
    "GroupSettings",
    "QueueSettings",
    "public_group_settings",
    "public_queue_settings",
    "settings_changed",
    "settings_refused",
]


@dataclass(frozen=True, slots=True)
class GroupSettings(Record):
    """The delivery settings of a group.

    :meth:`spark_mq.ConsumerGroup.configure` changes them.

    Attributes
    ----------
    visibility_timeout
        How long a lease lasts unless its holder extends it. Default 60 s. Its messages are due
        again after ``clock_skew`` more.
    max_delivery_attempts
        The most deliveries of a message. None for no limit. Default 5.
    on_max_deliveries
        The end of a message past a limit. Default "dead_letter". "drop" settles it.
        "block" stops deliveries after it until the owner calls ``unblock``.
    clock_skew
        The margin after a deadline before another clock may expire the lease. Default 1 s.
    retry
        How the delay after a nack grows with each failure. Default "exponential", which doubles
        it. "linear" adds ``retry_delay``. "constant" keeps it. With "none" the first failure of
        a message by itself is final.
    retry_delay
        The delay after the first nack. Default 10 s. Expired messages are due without a delay.
    max_retry_delay
        The longest delay before jitter. Default 15 min.
    retry_jitter
        The greatest share of the delay to add. Default 0.1.
    max_failures
        The most failures of a message. None for no limit, the default.
    max_retry_age
        The longest time since the first failure. None for no limit, the default.
    max_in_flight
        The most messages under lease. None for no limit, the default.
    max_tracked_ranges
        The ledger size that stops leases of unread messages. Default 200,000 ranges.
    on_reject
        The end of a rejected message. Default "dead_letter". "drop" settles it.
    breaker_threshold
        Leases of different messages that fail in a row until the breaker opens. None for no
        breaker. Default 5.
    breaker_reset_timeout
        The wait before the first trial of an open breaker. It doubles with each failed trial.
        Default 10 s.
    breaker_max_wait
        The longest wait before a trial. Default 5 min.
    order
        "key" delivers the messages of a key in order. The queue must have lanes. Default "none".
    """

    visibility_timeout: timedelta
    max_delivery_attempts: int | None
    on_max_deliveries: str
    clock_skew: timedelta
    retry: str
    retry_delay: timedelta
    max_retry_delay: timedelta
    retry_jitter: float
    max_failures: int | None
    max_retry_age: timedelta | None
    max_in_flight: int | None
    max_tracked_ranges: int
    on_reject: str
    breaker_threshold: int | None
    breaker_reset_timeout: timedelta
    breaker_max_wait: timedelta
    order: str


@dataclass(frozen=True, slots=True)
class QueueSettings(Record):
    """The settings of a queue.

    Attributes
    ----------
    group
        The defaults of new groups.
    retention
        How long messages are kept after their publish, if all groups have settled them. Default
        7 days.
    dead_letter_path
        The path of the dead-letter queue. None for ``dead_letters/`` below the queue. "." is the
        queue itself, and "./name" a folder below it. Such a path stays right if the queue moves.
    hard_retention
        How long any message is kept after its publish at most. None for no limit, the default.
    delivery_delay
        The default deliver_at, counted from the publish. None for no delay, the default.
    message_ttl
        The default expires_at, counted from the publish. None for no expiry, the default.
    history_retention
        How long ``history/`` is kept. Default 30 days.
    durable
        Whether local commits are synced to the disk before they are reported. Default True. Without
        it, a power cut may lose the last second. Object stores always sync.
    dedup_window
        How long a dedup id counts after its publish. None for queues without them, the default.
    lanes
        The number of lanes that keys are hashed to. Default 0, none.
    group_expiry
        How long a group without a commit holds back the trim. None for no end, the default.
    queue_id
        The id of the queue. Its dead letters carry it. A copy has the same one until ``rehome``.
    home
        The path at which the queue was created. None in memory.
    former_ids
        The ids of the queues that this one is a copy of.
    """

    group: GroupSettings
    retention: timedelta
    dead_letter_path: str | None
    hard_retention: timedelta | None
    delivery_delay: timedelta | None
    message_ttl: timedelta | None
    history_retention: timedelta
    durable: bool
    dedup_window: timedelta | None
    lanes: int
    group_expiry: timedelta | None
    queue_id: str
    home: str | None
    former_ids: tuple[str, ...]


_DURATIONS: Final = frozenset((*stored.DURATION_SETTINGS, *stored_queue.QUEUE_DURATIONS))


def public_group_settings(settings: stored.GroupSettings) -> GroupSettings:
    return GroupSettings(**_shown(settings))


def public_queue_settings(settings: stored_queue.QueueSettings) -> QueueSettings:
    shown = {**_shown(settings), "group": public_group_settings(settings.group)}
    return QueueSettings(**shown)


def _shown(settings: stored.GroupSettings | stored_queue.QueueSettings) -> dict[str, Any]:
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {
        name: timedelta(microseconds=value) if name in _DURATIONS and value is not None else value
        for name, value in values.items()
    }


def settings_changed(
    before: GroupSettings | QueueSettings, after: GroupSettings | QueueSettings
) -> str:
    """Return the changed settings with their new values, for people."""
    old, new = asdict(before), asdict(after)
    return ", ".join(f"{name}={_show(value)}" for name, value in new.items() if value != old[name])


def settings_refused(
    found: stored_queue.QueueSettings,
    wanted: stored_queue.QueueSettings,
    given: Collection[str] | None,
) -> str:
    """Return the settings that a queue does not have as they were given, for people.

    `given` are the names that count, or None for all but the queue's identity.
    """
    old, new = _by_name(found), _by_name(wanted)
    return ", ".join(
        f"{name}={_show(old[name])}, not {_show(value)}"
        for name, value in new.items()
        if value != old[name] and (given is None or name in given)
    )


def _by_name(settings: stored_queue.QueueSettings) -> dict[str, Any]:
    """Return the settings of a queue and of its groups, without the queue's identity."""
    names = (field.name for field in fields(settings) if field.compare and field.name != "group")
    public = public_queue_settings(settings)
    return {**asdict(public.group), **{name: getattr(public, name) for name in names}}


def _show(value: object) -> object:
    return show_duration(value) if isinstance(value, timedelta) else value
