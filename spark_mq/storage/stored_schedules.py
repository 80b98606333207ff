"""Keep the schedules of a queue in the table configuration of ``messages/``, one entry for each.

The number of a schedule's transaction there is the last instant that it has published. So the
schedules and these instants are of one log, and the commits to them are in one order.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Final

import msgspec

from spark_mq.delta.state import TableState
from spark_mq.errors import UnsupportedTable
from spark_mq.ledger.recurrence import CATCH_UP, Recurrence, due_instants

__all__ = [
    "Schedule",
    "entry_of",
    "schedule_in",
    "schedule_names",
    "schedule_txn",
    "schedules_size",
]

_PREFIX: Final = "spark_mq.schedule."  # of the entries
_FORMAT: Final = 1


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
        return json.dumps({"format": _FORMAT, **given}, sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> Schedule | None:
        """Return the schedule in an entry, or None if it cannot be read."""
        try:
            data = json.loads(text)
            if data.pop("format") != _FORMAT or not data.keys() <= {
                one.name for one in fields(cls)
            }:
                return None
            found = msgspec.convert(data, cls)
            base64.b64decode(found.data or "", validate=True)
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            return None
        one_rule = (found.cron is None) != (found.every is None)
        return found if one_rule and found.catch_up in CATCH_UP else None

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


def schedule_names(state: TableState) -> list[str]:
    """Return the names of the schedules in a state of ``messages/``, in order."""
    given = state.metadata.get("configuration") or {}
    return sorted(key.removeprefix(_PREFIX) for key in given if key.startswith(_PREFIX))


def schedule_in(state: TableState, name: str, path: str) -> Schedule | None:
    """Return a schedule in a state of ``messages/``, or None. Raise UnsupportedTable."""
    text = (state.metadata.get("configuration") or {}).get(_PREFIX + name)
    if text is None:
        return None
    found = Schedule.decode(text)
    if found is None:
        raise UnsupportedTable(
            f"schedule {name!r} of {path} cannot be read: another version of spark_mq wrote it, or "
            "it was changed by hand. Update spark_mq, or remove the schedule and make it again",
            path=path,
            features=[_PREFIX + name],
        )
    return found


def entry_of(name: str) -> str:
    """Return the key of a schedule in the table configuration."""
    return _PREFIX + name


def schedules_size(state: TableState, name: str, text: str) -> int:
    """Return the bytes of all entries of a state, with `text` as that of one schedule."""
    given = {**(state.metadata.get("configuration") or {}), entry_of(name): text}
    return sum(len(one.encode()) for key, one in given.items() if key.startswith(_PREFIX))
