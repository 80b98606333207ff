"""Make OpenTelemetry's traces and metrics of what operations report (extra ``otel``).

OpenTelemetry is imported only if the program has set up an SDK. Otherwise an operation looks up two
names in ``sys.modules`` and nothing else.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from spark_mq.telemetry import (
    MAX_LINKS,
    PROCESS,
    RECEIVE,
    SEND,
    SYSTEM,
    Destination,
    SendReport,
    Signal,
    WorkReport,
    error_type,
)
from spark_mq.util.failures import describe_error, safe_text, traceable

if TYPE_CHECKING:
    from opentelemetry.trace import Span

SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"

# Upper bounds in seconds, as the conventions advise.
DURATION_BUCKETS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip

_NANOS: Final = 1e9
_FLUSH_MILLISECONDS: Final = 5_000
MESSAGES: Final = "spark_mq.messages"
OLDEST_AGE: Final = "spark_mq.oldest_unsettled_age"
BLOCKED: Final = "spark_mq.blocked"


def _provider(name: str) -> Any:
    """Return the provider of an SDK, or None. Without an SDK the API's own providers do nothing."""
    module = sys.modules.get(f"opentelemetry.{name}")
    if module is None:
        return None
    getter = "get_tracer_provider" if name == "trace" else "get_meter_provider"
    provider = getattr(module, getter)()
    return None if type(provider).__module__.startswith(f"opentelemetry.{name}") else provider


def current_reporter() -> Reporter | None:
    """Return the reporter to the program's SDK, or None without one."""
    traces, metrics = _provider("trace"), _provider("metrics")
    if traces is None and metrics is None:
        return None
    return _reporter_to(traces, metrics)


@lru_cache(maxsize=1)  # a program rarely sets up another SDK
def _reporter_to(traces: Any, metrics: Any) -> Reporter:
    return Reporter(traces, metrics)


class Reporter:
    """Makes the spans and metrics of spark_mq. Thread-safe."""

    def __init__(self, traces: Any, metrics: Any) -> None:
        from opentelemetry import metrics as metrics_api
        from opentelemetry import propagate, trace
        from opentelemetry.context import Context

        self.providers = (traces, metrics)
        self._trace, self._propagate, self._root = trace, propagate, Context()
        self._tracer = (traces or trace.NoOpTracerProvider()).get_tracer(SYSTEM)
        meter = (metrics or metrics_api.NoOpMeterProvider()).get_meter(SYSTEM)
        buckets = {"explicit_bucket_boundaries_advisory": DURATION_BUCKETS}
        self._sent = meter.create_counter(
            SENT_MESSAGES, "{message}", "Number of messages producer attempted to send."
        )
        self._consumed = meter.create_counter(
            CONSUMED_MESSAGES,
            "{message}",
            "Number of messages that were delivered to the application.",
        )
        self._operation = meter.create_histogram(
            OPERATION_DURATION, "s", "Duration of messaging operation.", **buckets
        )
        self._process = meter.create_histogram(
            PROCESS_DURATION, "s", "Duration of processing operation.", **buckets
        )
        self._messages = meter.create_gauge(MESSAGES, "{message}", "Messages of a group by state.")
        self._age = meter.create_gauge(OLDEST_AGE, "s", "Age of the first unsettled message.")
        self._blocked = meter.create_gauge(BLOCKED, "1", "1 if the group is stopped.")

    def flush(self) -> None:
        """Send the data that the SDK has collected. A slow receiver delays it by some seconds."""
        for provider in self.providers:
            if (flush := getattr(provider, "force_flush", None)) is not None:
                flush(_FLUSH_MILLISECONDS)

    def set_gauges(
        self,
        destination: Destination,
        stats: Mapping[str, Any],
        states: Iterable[str],
        *,
        stopped: bool,
    ) -> None:
        attributes = destination.attributes()
        for state in states:
            self._messages.set(stats.get(state) or 0, {**attributes, "spark_mq.state": state})
        self._age.set(stats.get("oldest_unsettled_age") or 0.0, attributes)
        self._blocked.set(int(stopped), attributes)

    # -- receive and settle

    def report(
        self, destination: Destination, signal: Signal, started: int, *, root: bool = False
    ) -> None:
        """Make the span and the metrics of an operation that began at `started` (``time_ns``)."""
        ended = time.time_ns()
        span = self._tracer.start_span(
            f"{signal.name} {destination.queue}",
            context=self._root if root else None,
            kind=self._trace.SpanKind.CLIENT,
            attributes=signal.span_attributes(destination),
            start_time=started,
        )
        if signal.error is not None:
            span.set_status(self._trace.StatusCode.ERROR, signal.error)
        span.end(ended)
        self._measure(destination, signal, (ended - started) / _NANOS)

    def _measure(self, destination: Destination, signal: Signal, seconds: float) -> None:
        attributes = signal.attributes(destination)
        self._operation.record(seconds, attributes)
        del attributes["messaging.operation.type"]
        if signal.kind == SEND:
            self._sent.add(signal.messages, attributes)
        elif signal.kind == RECEIVE:
            self._consumed.add(signal.messages, attributes)

    # -- send

    @contextmanager
    def sending(
        self,
        destination: Destination,
        messages: int,
        *,
        message_id: str | None = None,
        created: Iterable[Mapping[str, str]] = (),
    ) -> Iterator[SendReport]:
        """Report a send around its commit. `created` has headers of messages with own contexts."""
        details = {} if message_id is None else {"messaging.message.id": message_id}
        links = self._links(created)
        kind = self._trace.SpanKind
        signal = Signal("publish", SEND, messages, None, details)
        started = time.time_ns()
        with self._tracer.start_as_current_span(
            f"publish {destination.queue}",
            # A producer's span is the context in which its messages were created.
            kind=kind.CLIENT if len(links) >= messages else kind.PRODUCER,
            attributes=signal.span_attributes(destination),
            links=links,
            start_time=started,
        ) as span:
            report = SendReport()
            self._propagate.inject(report.headers)
            try:
                yield report
            except BaseException as error:
                report.error = error
                raise
            finally:
                if report.error is not None:
                    signal = replace(signal, error=error_type(report.error))
                    span.set_attribute("error.type", signal.error or "")
                    span.set_status(self._trace.StatusCode.ERROR, safe_text(report.error))
                self._measure(destination, signal, (time.time_ns() - started) / _NANOS)

    def context_headers(self) -> dict[str, str]:
        """Return the headers of the caller's span, empty without one."""
        if not self._trace.get_current_span().get_span_context().is_valid:
            return {}
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier)
        return carrier

    # -- process

    @contextmanager
    def processing(
        self,
        destination: Destination,
        messages: int,
        *,
        client_id: str | None,
        created: Iterable[Mapping[str, str]],
    ) -> Iterator[WorkReport]:
        """Report the work on a lease around a block, with links to its messages' contexts."""
        details = {} if client_id is None else {"messaging.client.id": client_id}
        links = self._links(created)
        alone = messages == 1 and len(links) == 1
        has_parent = self._trace.get_current_span().get_span_context().is_valid
        parent = None
        if alone and not has_parent:
            parent = self._trace.set_span_in_context(
                self._trace.NonRecordingSpan(links[0].context), self._root
            )
        started = time.time_ns()
        span = self._tracer.start_span(
            f"process {destination.queue}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            attributes=Signal("process", PROCESS, messages, None, details).span_attributes(
                destination
            ),
            links=links,
            start_time=started,
        )
        report = WorkReport(partial(self._end_work, span, destination, started))
        with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                yield report
            finally:
                report.end(None)

    def _end_work(
        self, span: Span, destination: Destination, started: int, error: BaseException | None
    ) -> None:
        ended = time.time_ns()
        signal = Signal("process", PROCESS, error=None if error is None else error_type(error))
        if error is not None:
            span.set_attribute("error.type", error_type(error))
            span.add_event("exception", _exception_attributes(error))
            span.set_status(self._trace.StatusCode.ERROR, describe_error(error))
        span.end(ended)
        attributes = signal.attributes(destination)
        del attributes["messaging.operation.type"]
        self._process.record((ended - started) / _NANOS, attributes)

    def _links(self, created: Iterable[Mapping[str, str]]) -> list[Any]:
        links: list[Any] = []
        seen = set()
        for headers in islice(created, MAX_LINKS):
            context = self._propagate.extract(headers, self._root)
            at = self._trace.get_current_span(context).get_span_context()
            if at.is_valid and (at.trace_id, at.span_id) not in seen:
                seen.add((at.trace_id, at.span_id))
                links.append(self._trace.Link(at))
        return links


def _exception_attributes(error: BaseException) -> dict[str, str]:
    """Return what ``Span.record_exception`` notes, which fails if the text of an error does."""
    return {
        "exception.type": error_type(error),
        "exception.message": safe_text(error),
        "exception.stacktrace": "".join(traceback.format_exception(traceable(error))),
        "exception.escaped": "False",
    }
