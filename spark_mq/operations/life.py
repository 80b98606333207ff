"""The records of a message's life, as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from spark_mq.util.html import rows_html
from spark_mq.util.records import Record

__all__ = ["Trace", "TraceEvent"]

_BY_OWNER: Final = ("discarded", "made_dead", "retried", "unblocked")
"""The events that the owner of a group makes. A worker only held the message before."""


@dataclass(frozen=True, slots=True)
class TraceEvent(Record):
    """One thing that happened to a message. ``version`` is that of ``leases/``; ``outcome``: how it
    ended, where it did. ``user``: the person who did it, if one did.

    The event "redriven" of a copy is its publish. ``version`` is that of ``messages/``, and
    ``group`` the one in which the message died. All groups get the copy.

    ``error`` is the message's own failure. ``batch_error`` is the failure of its whole lease, which
    held ``batch_size`` messages: any of them may have caused it. Only the event of a failure has an
    error.

    ``detail`` is what a person asked for, such as the target of a seek.
    """

    at: datetime
    version: int
    group: str
    event: str
    state: str
    outcome: str | None
    operation: str | None
    lease_id: str | None
    worker_id: str | None
    delivery_count: int
    failure_count: int
    reason: str | None
    error: str | None
    user: str | None = None
    batch_error: str | None = None
    batch_size: int | None = None
    detail: str | None = None

    def __str__(self) -> str:
        parts = [
            _moment(self.at),
            self.group,
            self.event if self.event == self.state else f"{self.event} -> {self.state}",
        ]
        parts += [self.shown_worker] if self.shown_worker else []
        parts += [f"user {self.user}"] if self.user else []
        parts += [f"lease {self.lease_id}"] if self.lease_id else []
        parts += [f"delivery {self.delivery_count}, failures {self.failure_count}"]
        parts += [
            f"{name}: {text}"
            for name, text in (
                ("reason", self.reason),
                ("error", self.shown_error),
                ("detail", None if self.detail == self.reason else self.detail),
            )
            if text
        ]
        return "  ".join(parts)

    @property
    def shown_worker(self) -> str:
        """The worker for people: who did it, or who lost the message. Else an empty string."""
        if self.worker_id is None or self.event in _BY_OWNER:
            return ""
        return f"{'from' if self.event == 'fenced' else 'by'} {self.worker_id}"

    @property
    def shown_error(self) -> str | None:
        """The error for people. It says if the failure was that of a whole batch."""
        if self.batch_size is None:
            return self.error
        why = f": {self.batch_error}" if self.batch_error else ""
        return f"its batch of {self.batch_size:,} failed{why}"


@dataclass(frozen=True, slots=True)
class Trace(Record):
    """A message's whole life: when and where it was published, and what happened to it in each
    group, in order. Prints well.

    ``message_id`` is None and ``retained`` False where the payload has been trimmed. ``blocked``
    names the groups that are paused or whose breaker is open while they hold the message, each
    with the reason.
    """

    sequence: int
    version: int
    published_at: datetime
    message_id: str | None
    retained: bool
    events: tuple[TraceEvent, ...]
    blocked: tuple[tuple[str, str], ...] = ()
    earlier: Trace | None = None
    """The message that this one was before a redrive."""
    later: tuple[Trace, ...] = ()
    """The messages that redrives made of this one."""
    redriven_at: datetime | None = None
    """When a redrive published this copy. ``published_at`` stays that of the first publish."""
    priority: int = 0
    lane: int | None = None
    """The lane of its key. None without a key, or if the queue has no lanes."""

    def __str__(self) -> str:
        blocks = ["\n".join(one.lines()) for one in self.chain()]
        return "\nredriven as\n".join(blocks)

    def chain(self) -> tuple[Trace, ...]:
        """Return this message and those before and after it by redrives, the oldest first."""
        before = () if self.earlier is None else self.earlier.chain()
        return (*before, self, *(found for one in self.later for found in one.chain()))

    def lines(self) -> list[str]:
        """Return the text of this message alone, without those of its redrives."""
        lines = [str(event) for event in self.events]
        lines += [f"group {group} leases nothing now: {why}" for group, why in self.blocked]
        return [self._head(), *(f"  {line}" for line in lines)]

    def _head(self) -> str:
        named = self.message_id if self.retained else "payload trimmed"
        when = f"published {_moment(self.published_at)}"
        if self.redriven_at is not None:  # a redrive keeps the time of the publish
            when = f"first {when}, redriven {_moment(self.redriven_at)}"
        place = f", priority {self.priority}" if self.priority else ""
        place += f", lane {self.lane}" if self.lane is not None else ""
        by = f"by version {self.version} of messages/"
        return f"message {self.sequence} ({named}), {when} {by}{place}"

    def _rows(self) -> Sequence[TraceEvent]:
        return self.events

    def _repr_html_(self) -> str:
        return "<p>redriven as</p>".join(one._own_html() for one in self.chain())

    def _own_html(self) -> str:
        blocked = [{"group": group, "leases nothing": why} for group, why in self.blocked]
        return rows_html(self.events, title=self._head()) + (rows_html(blocked) if blocked else "")


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S.%f}Z"
