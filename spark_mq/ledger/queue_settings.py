"""Define the settings of queues, with their defaults."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Final, TypedDict

from spark_mq.errors import InvalidOption, UnsupportedTable
from spark_mq.ledger.bands import MAX_LANES
from spark_mq.ledger.settings import GroupSettings, GroupSettingsOptions
from spark_mq.util.clock import SECOND, Duration
from spark_mq.util.validation import validate_count, validate_duration

__all__ = [
    "ITSELF",
    "QUEUE_DURATIONS",
    "CreateOptions",
    "NewQueueOptions",
    "QueueOptions",
    "QueueSettings",
]

QUEUE_DURATIONS: Final = (
    "retention",
    "hard_retention",
    "delivery_delay",
    "message_ttl",
    "history_retention",
    "dedup_window",
    "group_expiry",
)
"""The settings of a queue that are stored in microseconds."""
_GROUP_DEFAULTS: Final = GroupSettings()
ITSELF: Final = "."  # the ``dead_letter_path`` of a dead-letter queue


class QueueOptions(TypedDict, total=False):
    """Settings of a queue that may change, as a user gives them."""

    retention: Duration
    hard_retention: Duration | None
    delivery_delay: Duration | None
    message_ttl: Duration | None
    history_retention: Duration
    dedup_window: Duration | None
    group_expiry: Duration | None


class NewQueueOptions(QueueOptions, total=False):
    """All settings of a queue, as a user gives them."""

    dead_letter_path: str | os.PathLike[str] | None
    durable: bool
    lanes: int


class CreateOptions(NewQueueOptions, GroupSettingsOptions, total=False):
    """All settings of a queue and the defaults of its groups, as a user gives them."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue, see :class:`spark_mq.QueueSettings`, in microseconds.

    The description of ``messages/`` keeps them as JSON, because a property change would fail
    publishers in flight.
    """

    group: GroupSettings = _GROUP_DEFAULTS
    retention: int = 7 * 86_400 * SECOND
    dead_letter_path: str | None = None
    hard_retention: int | None = None
    delivery_delay: int | None = None
    message_ttl: int | None = None
    history_retention: int = 30 * 86_400 * SECOND
    durable: bool = True
    dedup_window: int | None = None
    lanes: int = 0
    group_expiry: int | None = None
    queue_id: str = field(default="", compare=False)
    home: str | None = field(default=None, compare=False)
    former_ids: tuple[str, ...] = field(default=(), compare=False)

    FORMAT: ClassVar[str] = "spark_mq queue"
    VERSION: ClassVar[int] = 5
    """The format of a queue's tables. It grows if an older version could not read them."""

    @classmethod
    def for_dead_letters(cls, durable: bool = True) -> QueueSettings:
        """Return settings without an attempt limit, a trim, or a dead-letter queue of its own."""
        group = GroupSettings(max_delivery_attempts=None)
        return cls(group, 36500 * 86_400 * SECOND, dead_letter_path=ITSELF, durable=durable)

    @property
    def is_dead_letter_queue(self) -> bool:
        return self.dead_letter_path == ITSELF

    @classmethod
    def validated(
        cls,
        group: GroupSettings,
        *,
        retention: Any = "7d",
        hard_retention: Any = None,
        delivery_delay: Any = None,
        message_ttl: Any = None,
        history_retention: Any = "30d",
        dead_letter_path: str | None = None,
        durable: bool = True,
        dedup_window: Any = None,
        lanes: int = 0,
        group_expiry: Any = None,
    ) -> QueueSettings:
        """Create settings from a user's values. Raise InvalidOption if one is invalid."""

        def optional(name: str, value: Any) -> int | None:
            return None if value is None else validate_duration(name, value)

        delay = optional("delivery_delay", delivery_delay)
        ttl = optional("message_ttl", message_ttl)
        if delay is not None and ttl is not None and ttl <= delay:
            raise InvalidOption(
                f"message_ttl={message_ttl!r} ends before delivery_delay={delivery_delay!r}: "
                "every message would expire unread. Use a longer message_ttl.",
                option="message_ttl",
                value=message_ttl,
            )
        lanes = validate_count("lanes", lanes, least=0, most=MAX_LANES)
        group.check_order(lanes)
        return cls(
            group,
            validate_duration("retention", retention, zero=True),
            dead_letter_path,
            optional("hard_retention", hard_retention),
            delay,
            ttl,
            validate_duration("history_retention", history_retention),
            _checked_flag("durable", durable),
            optional("dedup_window", dedup_window),
            lanes,
            optional("group_expiry", group_expiry),
        )

    def default_times(self, now: int) -> dict[str, int]:
        """Return the deliver_at and expires_at that a publish at `now` gets by default, if any."""
        after = {"deliver_at": self.delivery_delay, "expires_at": self.message_ttl}
        return {name: now + duration for name, duration in after.items() if duration is not None}

    def to_json(self) -> str:
        data = {"format": self.FORMAT, "format_version": self.VERSION, **asdict(self)}
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
            raise _wrong_format(data.get("format_version"), cls.VERSION, path)
        names = {field.name for field in fields(cls)}
        if unknown := sorted(set(data) - names - {"format", "format_version"}):
            raise UnsupportedTable(
                f"cannot read the settings of {_queue_at(path)}: this version of spark_mq does not "
                f"know {', '.join(unknown)}. Update spark_mq.",
                path=path,
                features=unknown,
            )
        known = {name: data[name] for name in names if name in data}
        known["former_ids"] = tuple(known.get("former_ids", ()))
        return cls(**{**known, "group": GroupSettings.from_stored(data.get("group"))})


def _checked_flag(option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(
            f"{option}={value!r} is not a flag: use True or False", option=option, value=value
        )
    return value


def _queue_at(path: str | None) -> str:
    return f"the queue at {path}" if path else "the queue"


def _wrong_format(found: Any, known: int, path: str | None) -> UnsupportedTable:
    older = isinstance(found, int) and found < known
    fix = (
        "create a new queue with this version and publish its messages there; read the old queue "
        "with the version that created it"
        if older
        else "update spark_mq"
    )
    return UnsupportedTable(
        f"{_queue_at(path)} has format {found!r}, and this version of spark_mq reads {known}: "
        f"{fix}",
        path=path,
        features=[],
    )
