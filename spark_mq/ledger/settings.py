"""Define the settings of groups and of queues: each is one field with its kind and meaning.

To add one, write a field and run ``docs/write_reference.py``. All else follows from the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Final, Self

from spark_mq.errors import InvalidOption
from spark_mq.ledger import setting_checks
from spark_mq.ledger.message_filter import FILTERS
from spark_mq.ledger.slots import MAX_LANES
from spark_mq.util import setting_fields as kinds
from spark_mq.util.clock import MICROSECOND
from spark_mq.util.setting_fields import Rate, Settings, documented, setting, settings_of
from spark_mq.util.show import shell_command, show_duration
from spark_mq.util.validation import invalid, suggest

ITSELF: Final = "."  # the ``dead_letter_path`` of a dead-letter queue
UNTIL_WINDOW, UNTIL_SETTLED, UNTIL_LEASED = "window", "settled", "leased"
"""How long a message holds its dedup id."""


@documented
@dataclass(frozen=True, slots=True)
class GroupSettings(Settings):
    """The delivery settings of a group.

    :meth:`spark_mq.ConsumerGroup.configure` changes them.
    """

    visibility_timeout: timedelta = setting(
        kinds.duration(),
        "60s",
        "How long a lease lasts unless its holder extends it. Its messages are due again after "
        "`clock_skew` more.",
    )
    max_delivery_attempts: int | None = setting(
        kinds.count("deliveries"), 5, "The most deliveries of a message, or None.", optional=True
    )
    on_max_deliveries: str = setting(
        kinds.choice("dead_letter", "drop", "block"),
        "dead_letter",
        'The end of a message past a limit. "drop" settles it. "block" stops deliveries after it '
        "until the owner calls `unblock`.",
    )
    on_reject: str = setting(
        kinds.choice("dead_letter", "drop"),
        "dead_letter",
        'The end of a rejected message. "drop" settles it.',
    )
    on_expired: str = setting(
        kinds.choice("drop", "dead_letter"),
        "drop",
        'The end of a message that is not leased before its `expires_at`. "dead_letter" makes it '
        "dead, with the reason `expired`.",
    )
    retry: str | tuple[timedelta, ...] = setting(
        kinds.growth("exponential", "linear", "constant", "none"),
        "exponential",
        'How the delay after a nack grows with each failure. "exponential" doubles it, "linear" '
        'adds `retry_delay`, "constant" keeps it. With "none" the first failure of a message by '
        "itself is final. A list has the delays one by one, and the last one is kept.",
    )
    retry_delay: timedelta = setting(
        kinds.duration(zero=True),
        "10s",
        "The delay after the first nack. Expired messages are due without a delay.",
    )
    max_retry_delay: timedelta = setting(
        kinds.duration(zero=True), "15m", "The longest delay before jitter, from `retry_delay` on."
    )
    retry_jitter: float = setting(
        kinds.FRACTION,
        0.1,
        "The greatest share of the delay to add. It is drawn once for each settle.",
    )
    max_failures: int | None = setting(
        kinds.count("failures"), None, "The most failures of a message. None for no limit."
    )
    max_retry_age: timedelta | None = setting(
        kinds.duration(), None, "The longest time since the first failure. None for no limit."
    )
    clock_skew: timedelta = setting(
        kinds.duration(zero=True),
        "1s",
        "The margin after a deadline before another clock may expire the lease.",
    )
    max_in_flight: int | None = setting(
        kinds.count("messages"), None, "The most messages under lease. None for no limit."
    )
    max_in_flight_bytes: int | None = setting(
        kinds.SIZE,
        None,
        "The most bytes under lease, as `max_bytes` estimates them. A message that is larger is "
        "leased alone. None for no limit.",
    )
    rate_limit: Rate | None = setting(
        kinds.rate(),
        None,
        "The most messages that are leased in a time. A redelivery counts, a replay of a stream's "
        "batch does not. None for no limit.",
    )
    byte_rate_limit: Rate | None = setting(
        kinds.rate(of_bytes=True),
        None,
        "The most bytes that are leased in a time, as `max_bytes` estimates them. None for no "
        "limit.",
    )
    rate_burst: timedelta = setting(
        kinds.duration(),
        "1s",
        "How long a group that leases nothing saves up its rates, to lease as much at once.",
    )
    max_tracked_ranges: int = setting(
        kinds.count("ranges"), 200_000, "The ledger size that stops leases of unread messages."
    )
    breaker_threshold: int | None = setting(
        kinds.count("leases"),
        5,
        "Leases of different messages that fail in a row until the breaker opens. None for no "
        "breaker.",
        optional=True,
    )
    breaker_reset_timeout: timedelta = setting(
        kinds.duration(),
        "10s",
        "The wait before the first trial of an open breaker. It doubles with each failed trial.",
    )
    breaker_max_wait: timedelta = setting(
        kinds.duration(), "5m", "The longest wait before a trial."
    )
    order: str = setting(
        kinds.choice("none", "key", "fair"),
        "none",
        '"key" delivers the messages of a key in order. "fair" divides each lease between the keys '
        "with due messages. The queue must have `lanes`.",
    )
    weights: Mapping[str, float] | None = setting(
        kinds.WEIGHTS,
        None,
        'The shares of keys with `order="fair"`. A key without a weight has 1. None for equal '
        "shares.",
    )
    max_in_flight_per_key: int | None = setting(
        kinds.count("messages"),
        None,
        "The most messages of a key under lease. Keys of one lane share it. Messages without a key "
        "have no limit. None for no limit.",
    )
    filter: Mapping[str, Any] | None = setting(
        FILTERS,
        None,
        "Which messages the group gets. A lease skips the others. The key must begin with a "
        "`key_prefix`, and each named header must have one of its values. None for all messages.",
    )
    sink: str | None = setting(
        kinds.PATH,
        None,
        "The Delta table or queue to which `lease.append` writes each message once, after any "
        "crash. It is not a default for new groups. None for no sink.",
    )
    sink_key: str | None = setting(
        kinds.TEXT,
        None,
        "The ids of the queue and of its sink when the sink was set, and a new one.",
        argument=False,
    )

    owner: ClassVar[str] = "a group"

    def check_order(self, lanes: int) -> None:
        """Raise InvalidOption if a setting needs lanes, and the queue has none."""
        setting_checks.check_lanes(lanes, self.order, self.max_in_flight_per_key)

    def check_together(self) -> None:
        """Raise InvalidOption if settings do not go together."""
        setting_checks.check_keys(self.order, self.max_in_flight_per_key, self.weights)
        setting_checks.check_delays(self.retry, self.retry_delay, self.max_retry_delay)

    def delay(self, failures: int, jitter: float = 0.0) -> int:
        """Return the delay after a nack, which `failures` includes, in microseconds.

        `jitter` is the share of the allowed jitter to add, 0 to 1.
        """
        if isinstance(self.retry, tuple):
            delay = self.retry[min(failures, len(self.retry)) - 1] // MICROSECOND
        else:
            growth = {
                "exponential": 2 ** min(failures - 1, 40),
                "linear": failures,
                "constant": 1,
                "none": 0,
            }[self.retry]
            longest = self.max_retry_delay // MICROSECOND
            delay = min(longest, self.retry_delay // MICROSECOND * growth)
        return round(delay * (1 + self.retry_jitter * jitter))

    def failure_limit(self, own: bool) -> int | None:
        """Return the number of the failure that is final, or None."""
        # The first failure of a whole lease is never final, because it held innocent messages.
        limit = 1 if self.retry == "none" else self.max_failures
        return limit if limit is None or own else max(2, limit)

    def attempts_before_isolation(self, reserved_attempts: int = 0) -> int | None:
        """Return the delivery on which a failing message must be alone, or None."""
        attempts = self.max_delivery_attempts
        limits = [
            self.failure_limit(own=False),
            None if attempts is None else attempts - reserved_attempts,
        ]
        return min((max(1, limit) for limit in limits if limit is not None), default=None)

    def _unknown(self, name: str, value: Any) -> InvalidOption:
        known = [name for name, of in settings_of(GroupSettings).items() if of.argument]
        if name in settings_of(QueueSettings):
            command = shell_command("queue", "configure", "PATH")
            text = f"{name!r} is a setting of the queue: use queue.configure or {command}. A group "
            text += f"has {', '.join(known)}."
        else:
            hint = suggest(name, known)
            fix = f" (did you mean {hint!r}?)" if hint else f". Use {', '.join(known)}."
            text = f"{name!r} is not a setting of a queue or a group: the name is unknown{fix}"
        return InvalidOption(text, option=name, value=value)


@documented
@dataclass(frozen=True, slots=True)
class QueueSettings(Settings):
    """The settings of a queue. ``group`` has the defaults of new groups.

    The description of ``messages/`` keeps them as JSON, because a property change would fail
    publishers in flight.
    """

    group: GroupSettings = field(default_factory=GroupSettings)
    retention: timedelta = setting(
        kinds.duration(zero=True),
        "7d",
        "How long a message is kept after its publish. It stays longer if a group has not settled "
        "it.",
    )
    hard_retention: timedelta | None = setting(
        kinds.duration(),
        None,
        "How long a message is kept after its publish at most, settled or not. A group that loses "
        "messages gets `DataLossError`. None for no limit.",
    )
    history_retention: timedelta = setting(
        kinds.duration(), "30d", "How long `history/` keeps its rows."
    )
    delivery_delay: timedelta | None = setting(
        kinds.duration(),
        None,
        "The `deliver_at` of messages without their own, counted from the publish. None for no "
        "delay.",
    )
    message_ttl: timedelta | None = setting(
        kinds.duration(),
        None,
        "The `expires_at` of messages without their own, counted from the publish. None for no "
        "expiry.",
    )
    dedup_window: timedelta | None = setting(
        kinds.duration(),
        None,
        "How long a `dedup_id` counts after its publish. With None, and without a `dedup_until`, a "
        "message with one is refused.",
    )
    dedup_until: str = setting(
        kinds.choice(UNTIL_WINDOW, UNTIL_SETTLED, UNTIL_LEASED),
        UNTIL_WINDOW,
        'How long a `dedup_id` counts at least. "settled" is until all groups have settled its '
        'message, "leased" until the first group has leased it, "window" for the `dedup_window`.',
    )
    dedup_replaces: bool = setting(
        kinds.FLAG, False, "Whether a message replaces an unleased one whose `dedup_id` counts."
    )
    group_expiry: timedelta | None = setting(
        kinds.duration(), None, "How long a group without a commit holds back the trim, or None."
    )
    lanes: int = setting(
        kinds.count("lanes", least=0, most=MAX_LANES),
        0,
        'How many lanes the keys are hashed to. Groups need lanes for `order="key"`.',
        fixed="each message has its lane since its publish. Create another queue",
    )
    dead_letter_path: str | None = setting(
        kinds.PATH,
        None,
        'The path of the dead-letter queue. None for `dead_letters/` below the queue. "." is the '
        'queue itself, and "./name" a folder below it, which stays right if the queue moves.',
        fixed="dead letters that are there would be split between two queues. Drain this queue and "
        "create another one",
    )
    durable: bool = setting(
        kinds.FLAG,
        True,
        "Whether local commits are synced to the disk before they are reported. Without it, a "
        "power cut may lose all that the system has not written yet. Object stores always sync.",
        fixed="each open handle chose how it writes when it was opened. Create another queue",
    )
    queue_id: str = setting(
        kinds.TEXT,
        "",
        "The id of the queue. Its dead letters carry it. A copy has the same one until `rehome`.",
        fixed="the dead letters of the queue carry it. Use rehome for a copy",
        argument=False,
    )
    home: str | None = setting(
        kinds.TEXT,
        None,
        "The path at which the queue was created. None in memory.",
        fixed="it is where the queue was created. Use rehome for a queue that was moved",
        argument=False,
    )
    former_ids: tuple[str, ...] = setting(
        kinds.TEXTS,
        (),
        "The ids of the queues that this one is a copy of.",
        fixed="they follow from copies. Use rehome",
        argument=False,
    )

    owner: ClassVar[str] = "the queue"
    nested: ClassVar[Mapping[str, type[Settings]]] = {"group": GroupSettings}
    FORMAT: ClassVar[str] = "spark_mq queue"
    VERSION: ClassVar[int] = 7
    """The format of a queue's tables. It grows if an older version could not read them."""

    @classmethod
    def for_dead_letters(cls, durable: bool = True) -> QueueSettings:
        """Return settings without an attempt limit, a trim, or a dead-letter queue of its own."""
        group, ages = GroupSettings(max_delivery_attempts=None), timedelta(days=36_500)
        return cls(group, retention=ages, dead_letter_path=ITSELF, durable=durable)

    @property
    def is_dead_letter_queue(self) -> bool:
        return self.dead_letter_path == ITSELF

    def changed(self, **given: Any) -> Self:
        """Return the settings with a user's values. Raise InvalidOption."""
        after = Settings.changed(self, **given)
        delay, ttl = after.delivery_delay, after.message_ttl
        if delay is not None and ttl is not None and ttl <= delay:
            why = f"ends before delivery_delay={show_duration(delay)!r}, so every message would "
            why += "expire unread: use a longer message_ttl"
            raise invalid("message_ttl", given.get("message_ttl", show_duration(ttl)), why)
        ids_count = after.dedup_window is not None or after.dedup_until != UNTIL_WINDOW
        setting_checks.check_replaces(after.dedup_replaces, ids_count)
        after.group.check_order(after.lanes)
        after.group.check_together()
        if after.group.sink is not None:
            why = "cannot be a default for new groups: use group.configure(sink=...) for each"
            raise invalid("sink", after.group.sink, why)
        return after

    def default_times(self, now: int) -> dict[str, int]:
        """Return the deliver_at and expires_at that a publish at `now` gets by default, if any."""
        delays = {"deliver_at": self.delivery_delay, "expires_at": self.message_ttl}
        return {name: now + by // MICROSECOND for name, by in delays.items() if by is not None}

    def to_json(self) -> str:
        data = {"format": self.FORMAT, "format_version": self.VERSION, **self.encoded()}
        return json.dumps(data, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None, path: str | None = None) -> QueueSettings | None:
        """Create settings from JSON. Return None if the text does not describe a queue.

        Raise UnsupportedTable, which names `path`, if another version of spark_mq wrote it.
        """
        try:
            data = json.loads(text or "")
        except (ValueError, RecursionError):
            return None
        if not isinstance(data, dict) or data.get("format") != cls.FORMAT:
            return None
        if data.get("format_version") != cls.VERSION:
            raise setting_checks.wrong_format(data.get("format_version"), cls.VERSION, path)
        own = {k: v for k, v in data.items() if k not in ("format", "format_version")}
        return cls.decoded(own, path)


def new_settings(given: Mapping[str, Any]) -> QueueSettings:
    """Return the settings of a new queue, and the defaults of its groups, as a user gives them."""
    known = settings_of(QueueSettings)
    own = {name: given[name] for name in given if name in known and known[name].argument}
    group = GroupSettings().changed(**{n: given[n] for n in given if n not in own})
    return QueueSettings(group).changed(**own)
