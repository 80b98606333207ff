"""The settings of a queue and of its groups, with every default in one place."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

from spark_mq.checks import SECOND, check_count, check_duration, nearest
from spark_mq.errors import InvalidOption, UnsupportedTable

__all__ = ["GroupSettings", "QueueSettings"]


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a group delivers. Durations in microseconds.

    ``visibility_timeout``: how long a lease lasts unless extended (60 s). ``max_delivery_attempts``: how often a message
    reaches user code at most; None: no limit (5). ``clock_skew``: margin past a deadline before another clock may call the lease
    expired (1 s). ``retry_delay`` doubles with each failure of a message, up to ``max_retry_delay``: when a nacked message
    is due again (10 s, 15 min). ``max_in_flight``: messages under lease at a time (no limit). ``max_ledger_ranges``: size of
    the ledger from which on nothing unread is leased (200,000).
    """

    visibility_timeout: int = 60 * SECOND
    max_delivery_attempts: int | None = 5
    clock_skew: int = SECOND
    retry_delay: int = 10 * SECOND
    max_retry_delay: int = 900 * SECOND
    max_in_flight: int | None = None
    max_ledger_ranges: int = 200_000

    def delay(self, failures: int) -> int:
        """When a message that was nacked for the `failures`-th time (from 1) is due again: microseconds from now."""
        return min(self.max_retry_delay, self.retry_delay * 2 ** min(failures - 1, 40))

    @classmethod
    def checked(cls, **given: Any) -> GroupSettings:
        """From what a user gave: durations in any form. Raises InvalidOption."""
        clean: dict[str, Any] = {}
        for name, value in given.items():
            if name in ("visibility_timeout", "clock_skew", "retry_delay", "max_retry_delay"):
                clean[name] = check_duration(name, value, zero=name != "visibility_timeout")
            elif name in ("max_delivery_attempts", "max_in_flight") and value is None:
                clean[name] = None
            elif name in ("max_delivery_attempts", "max_in_flight", "max_ledger_ranges"):
                clean[name] = check_count(name, value, most=2**63 - 1)
            else:
                known = [field.name for field in fields(cls)]
                hint = nearest(name, known)
                told = f"; did you mean {hint!r}?" if hint else f": use {', '.join(known)}"
                raise InvalidOption(f"{name!r} is not a setting of a queue or a group{told}", option=name, value=value)
        return replace(cls(), **clean)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What a queue was created with: the defaults of its groups, how long messages are kept once settled, where its DLQ is.

    Stored as JSON in the description of ``messages/`` (a property change would fail publishers in flight).
    """

    group: GroupSettings = GroupSettings()
    retention: int = 7 * 86_400 * SECOND
    dead_letter_path: str | None = None

    MARK: ClassVar[str] = "spark_mq queue"
    VERSION: ClassVar[int] = 1

    @classmethod
    def of_dead_letters(cls, path: str) -> QueueSettings:
        """Those of the dead-letter queue at `path`: no attempt limit, and so no dead letters of its own; nothing is trimmed."""
        return cls(GroupSettings(max_delivery_attempts=None), 36500 * 86_400 * SECOND, dead_letter_path=path)

    def to_json(self) -> str:
        return json.dumps({"format": self.MARK, "format_version": self.VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> QueueSettings | None:
        """None where the text is no description of a queue. Raises UnsupportedTable for one of another version of spark_mq."""
        try:
            data = json.loads(text or "")
        except ValueError:
            return None
        if not isinstance(data, dict) or data.get("format") != cls.MARK:
            return None
        if data.get("format_version") != cls.VERSION:
            raise UnsupportedTable(
                f"the queue has format {data.get('format_version')!r}, and this version of spark_mq reads {cls.VERSION}: update spark_mq",
                path=None,
                features=[],
            )
        return cls(GroupSettings(**data["group"]), data["retention"], data["dead_letter_path"])
