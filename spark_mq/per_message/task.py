"""Handle one message of a lease in a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from spark_mq.lease import Lease
from spark_mq.message import ReceivedMessage

__all__ = ["HeldLease", "MessageTask"]


class _Runner(Protocol):
    """The feed of a message."""

    @property
    def handler(self) -> Callable[[ReceivedMessage], Any]: ...

    def claim(self, task: MessageTask) -> bool:
        """Return whether a handler may have a message: its lease lasts, and nobody has it."""

    def finish(self, task: MessageTask, result: Any, error: BaseException | None) -> float:
        """Note how a handler ended. Return the seconds that its slot has to pause."""


@dataclass(eq=False, slots=True)
class HeldLease:
    """A lease with messages that are being handled."""

    lease: Lease
    messages: int


@dataclass(eq=False, slots=True)
class MessageTask:
    """The handling of one message by a pool."""

    feed: _Runner
    held: HeldLease
    message: ReceivedMessage
    started: float = 0.0

    @property
    def lease_id(self) -> str:
        return self.held.lease.lease_id

    def has_expired(self, now: int) -> bool:
        """Return whether its lease has expired by `now` in microseconds."""
        return now > self.held.lease._held.expires_at

    def is_among(self, places: Iterable[tuple[str, int, int]]) -> bool:
        """Return whether the message is in an interval, given as (lease id, first, last)."""
        sequence = self.message.sequence
        return any(
            lease_id == self.lease_id and first <= sequence <= last
            for lease_id, first, last in places
        )

    def claim(self) -> bool:
        return self.feed.claim(self)

    def call(self) -> Any:
        return self.feed.handler(self.message)

    def finish(self, result: Any = None, error: BaseException | None = None) -> float:
        return self.feed.finish(self, result, error)
