"""The settings of a queue and of its groups, with every default in one place."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Final, TypedDict

from spark_mq.errors import InvalidOption, UnsupportedTable
from spark_mq.util.clock import Duration
from spark_mq.util.validation import SECOND, check_choice, check_count, check_duration, check_share, nearest

__all__ = ["GroupOptions", "GroupSettings", "GroupSettingsOptions", "QueueSettings"]


RETRIES: Final = ("exponential", "linear", "constant", "none")
EXHAUSTED: Final = ("dead_letter", "drop", "block")

_DURATIONS: Final = ("visibility_timeout", "clock_skew", "retry_delay", "max_retry_delay", "max_retry_age")
_COUNTS: Final = ("max_delivery_attempts", "max_failures", "max_in_flight", "max_ledger_ranges")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a group delivers. Durations in microseconds. Every default of a group stands here.

    ``visibility_timeout``: how long a lease lasts unless extended (60 s). ``clock_skew``: margin past a deadline before another clock may
    call the lease expired (1 s). ``max_in_flight``: messages under lease at a time (no limit). ``max_ledger_ranges``: size of the ledger
    from which on nothing unread is leased (200,000).

    ``max_delivery_attempts``: how often a message reaches user code at most (5; None: no limit). ``on_exhausted``: what becomes of a
    message past a limit: "dead_letter" (default), "drop", or "block" (nothing past it is leased until someone acts).

    ``retry``: when a nacked message is due again: after ``retry_delay`` (10 s), which doubles with each failure ("exponential", the
    default), grows by itself ("linear") or stays ("constant"), up to ``max_retry_delay`` (15 min), and a share of at most ``retry_jitter``
    (0.1) more. "none": a message's first failure of its own is final. ``max_failures``, ``max_retry_age`` (since the first failure): limits
    besides that of the attempts (None: none). What expired is due at once, for its timeout was the wait.
    """

    visibility_timeout: int = 60 * SECOND
    max_delivery_attempts: int | None = 5
    on_exhausted: str = "dead_letter"
    clock_skew: int = SECOND
    retry: str = "exponential"
    retry_delay: int = 10 * SECOND
    max_retry_delay: int = 900 * SECOND
    retry_jitter: float = 0.1
    max_failures: int | None = None
    max_retry_age: int | None = None
    max_in_flight: int | None = None
    max_ledger_ranges: int = 200_000

    def delay(self, failures: int, jitter: float = 0.0) -> int:
        """When a message that was nacked for the `failures`-th time (from 1) is due again: microseconds from now.

        ``jitter``: 0 to 1, the part taken of what ``retry_jitter`` allows.
        """
        growth = {"exponential": 2 ** min(failures - 1, 40), "linear": failures, "constant": 1, "none": 0}[self.retry]
        return round(min(self.max_retry_delay, self.retry_delay * growth) * (1 + self.retry_jitter * jitter))

    def failures_allowed(self, own: bool) -> int | None:
        """The failure that is final. One of a whole lease, its culprit unknown, is never the only one: innocents were in it."""
        limit = 1 if self.retry == "none" else self.max_failures
        return limit if limit is None or own else max(2, limit)

    def attempts(self, spare: int = 0) -> int | None:
        """On which delivery a message must be isolated, if it fails each time; `spare` deliveries are kept back for replays."""
        limits = [self.failures_allowed(own=False), None if self.max_delivery_attempts is None else self.max_delivery_attempts - spare]
        return min((max(1, limit) for limit in limits if limit is not None), default=None)

    @classmethod
    def checked(cls, base: GroupSettings | None = None, **given: Any) -> GroupSettings:
        """From what a user gave, durations in any form, over a base (the defaults). Raises InvalidOption."""
        return replace(base or cls(), **{name: cls._check(name, value) for name, value in given.items()})

    @classmethod
    def stored(cls, data: Any) -> GroupSettings:
        """As :func:`dataclasses.asdict` told them. Raises UnsupportedTable for what this version of spark_mq does not know."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or not names.issuperset(data):
            unknown = sorted(map(str, set(data) - names)) if isinstance(data, dict) else type(data).__name__
            raise UnsupportedTable(
                f"the settings of a group hold {unknown}, which this version of spark_mq does not know: update spark_mq",
                path=None,
                features=[],
            )
        return cls(**data)

    @classmethod
    def _check(cls, name: str, value: Any) -> Any:
        known = {field.name: field.default for field in fields(cls)}
        if name in {field.name for field in fields(QueueSettings)} - {"group"}:
            raise InvalidOption(f"{name!r} is a setting of the queue, fixed when the queue is made; a group has {', '.join(known)}",
                                option=name, value=value)  # fmt: skip
        if name not in known:
            hint = nearest(name, known)
            told = f"; did you mean {hint!r}?" if hint else f": use {', '.join(known)}"
            raise InvalidOption(f"{name!r} is not a setting of a queue or a group{told}", option=name, value=value)
        if value is None and (known[name] is None or name == "max_delivery_attempts"):
            return None
        if name in _DURATIONS:
            return check_duration(name, value, zero=name not in ("visibility_timeout", "max_retry_age"))
        if name in _COUNTS:
            return check_count(name, value, most=2**63 - 1)
        if name == "retry_jitter":
            return check_share(name, value)
        return check_choice(name, value, RETRIES if name == "retry" else EXHAUSTED)


class GroupOptions(TypedDict, total=False):
    """Settings of a group as a user gives them, besides the two most common ones."""

    on_exhausted: str
    clock_skew: Duration
    retry: str
    retry_delay: Duration
    max_retry_delay: Duration
    retry_jitter: float
    max_failures: int | None
    max_retry_age: Duration | None
    max_in_flight: int | None
    max_ledger_ranges: int


class GroupSettingsOptions(GroupOptions, total=False):
    """All settings of a group as a user gives them."""

    visibility_timeout: Duration
    max_delivery_attempts: int | None


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What a queue was created with: the defaults of its groups, how long messages are kept once settled, where its DLQ is.

    ``hard_retention``: how long messages are kept at most, settled or not (None: until every group has settled them).
    ``history_retention``: how long ``history/`` tells what was done (30 days).
    ``delivery_delay``, ``message_ttl``: deliver_at and expires_at, counted from the publish, of messages without their own (None: none).

    Stored as JSON in the description of ``messages/`` (a property change would fail publishers in flight).
    """

    group: GroupSettings = GroupSettings()
    retention: int = 7 * 86_400 * SECOND
    dead_letter_path: str | None = None
    hard_retention: int | None = None
    delivery_delay: int | None = None
    message_ttl: int | None = None
    history_retention: int = 30 * 86_400 * SECOND

    MARK: ClassVar[str] = "spark_mq queue"
    VERSION: ClassVar[int] = 1

    @classmethod
    def of_dead_letters(cls, path: str) -> QueueSettings:
        """Those of the dead-letter queue at `path`: no attempt limit, and so no dead letters of its own; nothing is trimmed."""
        return cls(GroupSettings(max_delivery_attempts=None), 36500 * 86_400 * SECOND, dead_letter_path=path)

    @classmethod
    def checked(
        cls,
        group: GroupSettings,
        *,
        retention: Any = "7d",
        hard_retention: Any = None,
        delivery_delay: Any = None,
        message_ttl: Any = None,
        history_retention: Any = "30d",
        dead_letter_path: str | None = None,
    ) -> QueueSettings:
        """From what a user gave, durations in any form. Raises InvalidOption."""

        def optional(name: str, value: Any) -> int | None:
            return None if value is None else check_duration(name, value)

        delay, ttl = optional("delivery_delay", delivery_delay), optional("message_ttl", message_ttl)
        if delay is not None and ttl is not None and ttl <= delay:
            raise InvalidOption(
                f"message_ttl={message_ttl!r} ends before delivery_delay={delivery_delay!r}: every message would expire unread",
                option="message_ttl",
                value=message_ttl,
            )
        kept = check_duration("retention", retention, zero=True)
        told = check_duration("history_retention", history_retention)
        return cls(group, kept, dead_letter_path, optional("hard_retention", hard_retention), delay, ttl, told)

    def times(self, now: int) -> dict[str, int]:
        """What a message published at `now` has as deliver_at and expires_at if it has none of its own: microseconds, or left out."""
        after = {"deliver_at": self.delivery_delay, "expires_at": self.message_ttl}
        return {name: now + duration for name, duration in after.items() if duration is not None}

    def to_json(self) -> str:
        return json.dumps({"format": self.MARK, "format_version": self.VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> QueueSettings | None:
        """None where the text is no description of a queue. Raises UnsupportedTable for one of another version of spark_mq."""
        try:
            data = json.loads(text or "")
        except (ValueError, RecursionError):
            return None
        if not isinstance(data, dict) or data.get("format") != cls.MARK:
            return None
        if data.get("format_version") != cls.VERSION:
            raise UnsupportedTable(
                f"the queue has format {data.get('format_version')!r}, and this version of spark_mq reads {cls.VERSION}: update spark_mq",
                path=None,
                features=[],
            )
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        return cls(**{**known, "group": GroupSettings.stored(data.get("group"))})
