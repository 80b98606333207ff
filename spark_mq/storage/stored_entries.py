"""Keep schedules and closed message batches in the table configuration of ``messages/``.

Each has one entry there. So they are of one log with the publishes, and a change of one conflicts
with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

import msgspec

from spark_mq.delta.state import TableState
from spark_mq.errors import BatchClosed, UnsupportedTable
from spark_mq.ledger.recurrence import CATCH_UP, Recurrence, due_instants

_FORMAT: Final = 1


class StoredEntry(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag=_FORMAT,
):
    """What an entry has. Times are in microseconds."""

    def encode(self) -> str:
        return msgspec.json.encode(self, order="sorted").decode()

    @classmethod
    def decode(cls, text: str) -> Self | None:
        """Return what an entry has, or None if it cannot be read."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None


class StoredBatch(StoredEntry, frozen=True):
    """A closed batch. An open one has no entry: only the files of its messages name it.

    A publish that began before the close is computed again, and refused.
    """

    id: str  # the producer that publishes the completion message, so that a new batch has another
    to: str  # the queue of the completion message
    groups: tuple[str, ...]
    closed_at: int
    completed_at: int | None = None  # when the counts were fixed
    messages: int = 0
    counts: Mapping[str, Mapping[str, int]] = {}  # by group and outcome
    published: bool = False  # the completion message is in its queue


class Schedule(StoredEntry, frozen=True):
    """A schedule. The number of its transaction is the last instant that it has published."""

    created_at: int
    since: int  # an instant up to here is not published
    cron: str | None = None
    every: int | None = None
    timezone: str = "UTC"
    starts_at: int | None = None
    catch_up: str = "latest"
    jitter: int = 0
    text: str | None = None  # the payload, or None if it is no UTF-8
    data: bytes | None = None  # such a payload, in base64
    key: str | None = None
    headers: Mapping[str, str] = {}
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
        return (self.data or b"") if self.text is None else self.text.encode()

    @classmethod
    def decode(cls, text: str) -> Self | None:
        schedule = super().decode(text)
        if schedule is None or schedule.catch_up not in CATCH_UP:
            return None
        has_one_rule = (schedule.cron is None) != (schedule.every is None)
        return schedule if has_one_rule else None

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


T = TypeVar("T", bound=StoredEntry)


@dataclass(frozen=True, slots=True)
class Entries(Generic[T]):
    """The entries of one kind by name."""

    kind: str
    record: type[T]
    fix: str  # for an entry that cannot be read

    def key(self, name: str) -> str:
        """Return the key of an entry in the table configuration."""
        return f"spark_mq.{self.kind}.{name}"

    def names(self, state: TableState) -> list[str]:
        """Return the names in a state of ``messages/``, in order."""
        prefix = self.key("")
        return sorted(key.removeprefix(prefix) for key in _given(state) if key.startswith(prefix))

    def has(self, state: TableState, name: str) -> bool:
        """Return whether a state has an entry, even one that cannot be read."""
        return self.key(name) in _given(state)

    def find(self, state: TableState, name: str, path: str) -> T | None:
        """Return what a name has in a state of ``messages/``, or None. Raise UnsupportedTable."""
        text = _given(state).get(self.key(name))
        if text is None:
            return None
        entry = self.record.decode(text)
        if entry is None:
            raise UnsupportedTable(
                f"{self.kind} {name!r} of {path} cannot be read: another version of spark_mq wrote "
                f"it, or it was changed by hand. {self.fix}",
                path=path,
                features=[self.key(name)],
            )
        return entry

    def size(self, state: TableState, name: str, text: str) -> int:
        """Return the bytes of all entries of a state, with `text` as that of one name."""
        prefix, given = self.key(""), {**_given(state), self.key(name): text}
        return sum(len(text.encode()) for key, text in given.items() if key.startswith(prefix))


def _given(state: TableState) -> Mapping[str, str]:
    return state.metadata.get("configuration") or {}


BATCHES: Final = Entries("batch", StoredBatch, "Update spark_mq")
SCHEDULES: Final = Entries(
    "schedule", Schedule, "Update spark_mq, or remove the schedule and make it again"
)


def check_open(state: TableState, name: str, path: str) -> None:
    """Raise BatchClosed if a batch is closed in a state of ``messages/``."""
    if BATCHES.has(state, name):
        raise BatchClosed(
            f"batch {name!r} of {path} is closed, so nothing more is published to it: publish "
            "under another batch_id",
            batch_id=name,
        )
