"""Keep the schedules of a queue in the table configuration of ``messages/``, one entry for each.

The number of a schedule's transaction there is the last instant that it has published. So the
schedules and these instants are of one log, and the commits to them are in one order.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from spark_mq.ledger.recurrence import CATCH_UP, Recurrence, due_instants
from spark_mq.storage.stored_entries import Entries, decode_entry, encode_entry


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as ``messages/`` has it. Times are in microseconds."""

    created_at: int
    since: int  # an instant up to here is not published
    cron: str | None = None
    every: int | None = None
    timezone: str = "UTC"
    starts_at: int | None = None
    catch_up: str = "latest"
    jitter: int = 0
    text: str | None = None  # the payload, or None if it is no UTF-8
    data: str | None = None  # such a payload in base64
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    deliver_after: int | None = None  # from the instant
    expires_after: int | None = None  # from the instant
    paused_at: int | None = None
    pause_reason: str | None = None

    @property
    def rule(self) -> Recurrence:
        return Recurrence(self.cron, self.every, self.timezone, self.starts_at)

    @property
    def timing(self) -> tuple[Recurrence, str]:
        """Return what decides on the instants to publish."""
        return self.rule, self.catch_up

    @property
    def value(self) -> bytes:
        if self.text is not None:
            return self.text.encode()
        return base64.b64decode(self.data or "")

    def encode(self) -> str:
        """Return the JSON of an entry, without fields that have their default."""
        default = Schedule(0, 0)
        given = {
            name: value
            for name, value in asdict(self).items()
            if name in ("created_at", "since") or value != getattr(default, name)
        }
        return encode_entry(given)

    @classmethod
    def decode(cls, text: str) -> Schedule | None:
        """Return the schedule in an entry, or None if it cannot be read."""
        schedule = decode_entry(text, cls)
        if schedule is None:
            return None
        try:
            base64.b64decode(schedule.data or "", validate=True)
        except ValueError:
            return None
        one_rule = (schedule.cron is None) != (schedule.every is None)
        return schedule if one_rule and schedule.catch_up in CATCH_UP else None

    def due(self, last: int | None, now: int, most: int) -> list[int]:
        """Return the instants to publish now. `last` is the last one published, or None."""
        if self.paused_at is not None:
            return []
        return due_instants(self.rule, self.catch_up, self.done(last), now, most)

    def done(self, last: int | None) -> int:
        """Return the instant up to which all are published or skipped."""
        return self.since if last is None else max(self.since, last)


def schedule_txn(name: str) -> str:
    """Return the app id of a schedule's instants in ``messages/``. No producer has such an id."""
    return f"spark_mq.schedule:{name}"


SCHEDULES: Final = Entries(
    "schedule", Schedule.decode, "Update spark_mq, or remove the schedule and make it again"
)
"""The schedules of a queue by name."""
