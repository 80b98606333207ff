"""The names that spark_mq uses of OpenTelemetry's conventions, and the headers of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "PROCESS",
    "RECEIVE",
    "SEND",
    "SETTLE",
    "Destination",
    "Signal",
    "add_headers",
    "error_type",
    "trace_headers",
]

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

TRACE_HEADERS: Final = ("traceparent", "tracestate")
_HEADERS: Final = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue by name, and the group that reads it."""

    queue: str
    group: str | None = None

    @classmethod
    def of(cls, queue_path: str, group: str | None = None) -> Destination:
        return cls(queue_path.rstrip("/").rpartition("/")[2], group)

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


def add_headers(column: pa.ChunkedArray, extra: Mapping[str, str]) -> pa.Array:
    """Add `extra` to the headers (null or a map) of each message without ``traceparent``."""
    rows = column.combine_chunks()
    if isinstance(rows, pa.ChunkedArray):
        rows = pa.concat_arrays(rows.chunks) if rows.num_chunks else pa.array([], _HEADERS)
    own = rows.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    parents, pairs = pc.list_parent_indices(own), pc.list_flatten(own)
    keys, values = pairs.field("key"), pairs.field("value")
    traced = pc.unique(parents.filter(pc.is_in(keys, value_set=pa.array(TRACE_HEADERS[:1]))))
    every = pa.array(range(len(rows)), parents.type)
    new = every.filter(pc.invert(pc.is_in(every, value_set=traced)))
    for name, value in extra.items():
        parents = pa.concat_arrays([parents, new])
        keys = pa.concat_arrays([keys, pa.repeat(name, len(new))])
        values = pa.concat_arrays([values, pa.repeat(value, len(new))])
    order = pc.sort_indices(parents)  # stable, so the own headers of a row stay first
    # In the order of the rows, because `every` names each of them first.
    sizes = pc.value_counts(pa.concat_arrays([every, parents])).field("counts")
    ends = pc.cumulative_sum(pc.subtract(sizes, 1))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    return pa.MapArray.from_arrays(offsets, keys.take(order), values.take(order))


def trace_headers(column: pa.ChunkedArray) -> Iterator[dict[str, str]]:
    """Yield the trace headers of each message that has some."""
    for row in column:
        found = {name: value for name, value in row.as_py() or () if name in TRACE_HEADERS}
        if found:
            yield found
