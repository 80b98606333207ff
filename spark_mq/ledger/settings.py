"""Define the settings of groups, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypedDict

from spark_mq.errors import InvalidOption, UnsupportedTable
from spark_mq.util.advice import CONFIGURE_QUEUE, CREATE_WITH_LANES
from spark_mq.util.clock import SECOND, Duration
from spark_mq.util.validation import (
    suggest,
    validate_choice,
    validate_count,
    validate_duration,
    validate_fraction,
)

__all__ = [
    "DURATION_SETTINGS",
    "SETTINGS_OF_QUEUES",
    "GroupOptions",
    "GroupSettings",
    "GroupSettingsOptions",
]

RETRY_POLICIES: Final = ("exponential", "linear", "constant", "none")
ON_MAX_DELIVERIES: Final = ("dead_letter", "drop", "block")
ON_REJECT: Final = ("dead_letter", "drop")
ORDERS: Final = ("none", "key")

DURATION_SETTINGS: Final = (
    "visibility_timeout",
    "clock_skew",
    "retry_delay",
    "max_retry_delay",
    "max_retry_age",
    "breaker_reset_timeout",
    "breaker_max_wait",
)
"""The settings of a group that are stored in microseconds."""
SETTINGS_OF_QUEUES: Final = frozenset(
    {
        "retention",
        "dead_letter_path",
        "hard_retention",
        "delivery_delay",
        "message_ttl",
        "history_retention",
        "durable",
        "dedup_window",
        "lanes",
        "group_expiry",
        "queue_id",
        "home",
        "former_ids",
    }
)
"""The settings that a queue has and a group lacks, for errors."""
_COUNTS: Final = (
    "max_delivery_attempts",
    "max_failures",
    "max_in_flight",
    "max_tracked_ranges",
    "breaker_threshold",
)
_NONZERO: Final = (
    "visibility_timeout",
    "max_retry_age",
    "breaker_reset_timeout",
    "breaker_max_wait",
)
_CHOICES: Final = {
    "retry": RETRY_POLICIES,
    "on_max_deliveries": ON_MAX_DELIVERIES,
    "on_reject": ON_REJECT,
    "order": ORDERS,
}
_NULLABLE: Final = ("max_delivery_attempts", "breaker_threshold")
"""Settings with a default that may be None all the same."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The delivery settings of a group, see :class:`spark_mq.GroupSettings`, in microseconds."""

    visibility_timeout: int = 60 * SECOND
    max_delivery_attempts: int | None = 5
    on_max_deliveries: str = "dead_letter"
    clock_skew: int = SECOND
    retry: str = "exponential"
    retry_delay: int = 10 * SECOND
    max_retry_delay: int = 900 * SECOND
    retry_jitter: float = 0.1
    max_failures: int | None = None
    max_retry_age: int | None = None
    max_in_flight: int | None = None
    max_tracked_ranges: int = 200_000
    on_reject: str = "dead_letter"
    breaker_threshold: int | None = 5
    breaker_reset_timeout: int = 10 * SECOND
    breaker_max_wait: int = 300 * SECOND
    order: str = "none"

    def check_order(self, lanes: int) -> None:
        """Raise InvalidOption if the order of keys needs lanes, and the queue has none."""
        if self.order == "key" and not lanes:
            raise InvalidOption(
                f"order='key' needs lanes: the queue has none. {CREATE_WITH_LANES} and publish the "
                "messages there.",
                advice=[CREATE_WITH_LANES],
                option="order",
                value="key",
            )

    def delay(self, failures: int, jitter: float = 0.0) -> int:
        """Return the delay after a nack, which `failures` includes, in microseconds.

        `jitter` is the share of the allowed jitter to add, 0 to 1.
        """
        growth = {
            "exponential": 2 ** min(failures - 1, 40),
            "linear": failures,
            "constant": 1,
            "none": 0,
        }[self.retry]
        delay = min(self.max_retry_delay, self.retry_delay * growth)
        return round(delay * (1 + self.retry_jitter * jitter))

    def failure_limit(self, own: bool) -> int | None:
        """Return the number of the failure that is final, or None.

        The first failure of a whole lease is never final, because the lease held innocent messages.
        """
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

    @classmethod
    def validated(cls, base: GroupSettings | None = None, **given: Any) -> GroupSettings:
        """Return `base` or the defaults with a user's values, or raise InvalidOption."""
        checked = {name: cls._validate(name, value) for name, value in given.items()}
        return replace(base or cls(), **checked)

    @classmethod
    def from_stored(cls, data: Any) -> GroupSettings:
        """Create settings from a ledger's header. Raise UnsupportedTable for unknown fields."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or not names.issuperset(data):
            unknown = (
                sorted(map(str, set(data) - names))
                if isinstance(data, dict)
                else type(data).__name__
            )
            raise UnsupportedTable(
                f"cannot read the settings of a group: this version of spark_mq does not know "
                f"{unknown}. To fix this, update spark_mq.",
                path=None,
                features=[],
            )
        return cls(**data)

    @classmethod
    def _validate(cls, name: str, value: Any) -> Any:
        known = {field.name: field.default for field in fields(cls)}
        if name not in known:
            text = _unknown_setting(name, list(known))
            raise InvalidOption(text, advice=[CONFIGURE_QUEUE], option=name, value=value)
        if value is None and (known[name] is None or name in _NULLABLE):
            return None
        if name in DURATION_SETTINGS:
            zero = name not in _NONZERO
            return validate_duration(name, value, zero=zero)
        if name in _COUNTS:
            return validate_count(name, value, most=2**63 - 1)
        if name == "retry_jitter":
            return validate_fraction(name, value)
        return validate_choice(name, value, _CHOICES[name])


def _unknown_setting(name: str, known: list[str]) -> str:
    if name in SETTINGS_OF_QUEUES:
        return (
            f"{name!r} is a setting of the queue: use {CONFIGURE_QUEUE}. "
            f"A group has {', '.join(known)}."
        )
    hint = suggest(name, known)
    fix = f" (did you mean {hint!r}?)" if hint else f". Use {', '.join(known)}."
    return f"{name!r} is not a setting of a queue or a group: the name is unknown{fix}"


class GroupOptions(TypedDict, total=False):
    """A user's settings of a group, without the two most common."""

    on_max_deliveries: str
    clock_skew: Duration
    retry: str
    retry_delay: Duration
    max_retry_delay: Duration
    retry_jitter: float
    max_failures: int | None
    max_retry_age: Duration | None
    max_in_flight: int | None
    max_tracked_ranges: int
    on_reject: str
    breaker_threshold: int | None
    breaker_reset_timeout: Duration
    breaker_max_wait: Duration
    order: str


class GroupSettingsOptions(GroupOptions, total=False):
    """All settings of a group as a user gives them."""

    visibility_timeout: Duration
    max_delivery_attempts: int | None
