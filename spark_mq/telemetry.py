"""Say what operations report: sends, receives, settles and work, by the messaging conventions.

This module knows no queue and no product. Operations pass it names and numbers, and an integration
makes spans and metrics of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.util.loading import integration

SYSTEM: Final = "spark_mq"

SEND: Final = "send"
RECEIVE: Final = "receive"
PROCESS: Final = "process"
SETTLE: Final = "settle"

TRACE_HEADERS: Final = ("traceparent", "tracestate")
_HEADERS: Final = pa.map_(pa.string(), pa.string())

MAX_LINKS: Final = 128  # of a span. An SDK's default limit is the same.


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue by name, and the group that reads it."""

    queue: str
    group: str | None = None

    @classmethod
    def of(cls, queue_path: str, group: str | None = None) -> Destination:
        return cls(queue_path.rstrip("/").rpartition("/")[2], group)

    def attributes(self) -> dict[str, Any]:
        attributes = {"messaging.system": SYSTEM, "messaging.destination.name": self.queue}
        if self.group is not None:
            attributes["messaging.consumer.group.name"] = self.group
        return attributes


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
        attributes = destination.attributes()
        attributes["messaging.operation.name"] = self.name
        attributes["messaging.operation.type"] = self.kind
        if self.error is not None:
            attributes["error.type"] = self.error
        return attributes

    def span_attributes(self, destination: Destination) -> dict[str, Any]:
        attributes = {**self.attributes(destination), **(self.details or {})}
        if self.messages != 1:  # the conventions leave it out for a single message
            attributes["messaging.batch.message_count"] = self.messages
        return attributes


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
    for row in column:
        headers = {name: value for name, value in row.as_py() or () if name in TRACE_HEADERS}
        if headers:
            yield headers


def current_reporter() -> Any:
    """Return the integration's ``Reporter`` to the program's SDK, or None without one."""
    return integration("telemetry").current_reporter()


class SendReport:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}  # they carry its context to the consumers
        self.error: BaseException | None = None


class WorkReport:
    """The work on a lease. `end` is called once, with the error that ended the work, or None."""

    def __init__(self, end: Callable[[BaseException | None], None]) -> None:
        self._end: Callable[[BaseException | None], None] | None = end

    def end(self, error: BaseException | None) -> None:
        """End the span. A second call does nothing."""
        end, self._end = self._end, None
        if end is not None:
            end(error)


Watch = Callable[[Any], Sequence[Signal]]  # from an operation's result, or its error


def watched(
    destination: Destination, watches: Sequence[Watch | None], call: Callable[[], list[Any]]
) -> list[Any]:
    """Run operations and report those that have a watch."""
    reporter = current_reporter()
    if reporter is None or not any(watches):
        return call()
    started, results = time.time_ns(), list[Any]()
    try:
        results = call()
    except Exception as error:
        results = [error] * len(watches)
        raise
    finally:
        for watch, result in zip(watches, results, strict=False):
            for signal in () if watch is None else watch(result):
                # A lease that shares the commit of a settle is no part of the settled work.
                root = signal.kind == RECEIVE and len(watches) > 1
                reporter.report(destination, signal, started, root=root)
    return results


def report_gauges(
    destination: Destination, stats: Mapping[str, Any], states: Iterable[str], *, stopped: bool
) -> None:
    """Set the gauges of a group: messages by state, oldest age, and whether it is stopped."""
    if (reporter := current_reporter()) is not None:
        reporter.set_gauges(destination, stats, states, stopped=stopped)
