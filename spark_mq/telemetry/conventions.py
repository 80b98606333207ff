"""The names that spark_mq uses of OpenTelemetry's messaging conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["PROCESS", "RECEIVE", "SEND", "SETTLE", "Destination", "Signal", "error_type"]

SYSTEM: Final = "spark_mq"

SEND: Final = "send"
RECEIVE: Final = "receive"
PROCESS: Final = "process"
SETTLE: Final = "settle"

SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"

# Upper bounds in seconds, as the conventions advise.
DURATION_BUCKETS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue by name, and the group that reads it."""

    queue: str
    group: str | None = None

    def attributes(self) -> dict[str, Any]:
        found = {"messaging.system": SYSTEM, "messaging.destination.name": self.queue}
        if self.group is not None:
            found["messaging.consumer.group.name"] = self.group
        return found


@dataclass(frozen=True, slots=True)
class Signal:
    """An operation that has ended: its name in spark_mq, its kind in the conventions."""

    name: str
    kind: str
    messages: int = 0
    error: str | None = None  # by error_type()
    details: Mapping[str, Any] | None = None  # more attributes of the span

    def attributes(self, destination: Destination) -> dict[str, Any]:
        """Return the attributes that the span and the metrics share."""
        found = destination.attributes()
        found["messaging.operation.name"] = self.name
        found["messaging.operation.type"] = self.kind
        if self.error is not None:
            found["error.type"] = self.error
        return found

    def span_attributes(self, destination: Destination) -> dict[str, Any]:
        found = {**self.attributes(destination), **(self.details or {})}
        if self.messages != 1:  # the conventions leave it out for a single message
            found["messaging.batch.message_count"] = self.messages
        return found


def error_type(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"
