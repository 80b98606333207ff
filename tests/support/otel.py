"""OpenTelemetry's SDK in memory. Import this only where the SDK is installed."""

from __future__ import annotations

from typing import NamedTuple

import opentelemetry.metrics
import opentelemetry.trace
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

__all__ = ["Sdk", "gauges", "set_up_sdk"]


class Sdk(NamedTuple):
    traces: TracerProvider
    metrics: MeterProvider
    spans: InMemorySpanExporter
    reader: InMemoryMetricReader


def set_up_sdk(patch: pytest.MonkeyPatch) -> Sdk:
    """Set up an SDK for one test. The API lets a process set a provider only once."""
    spans, reader, traces = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    metrics = MeterProvider([reader])
    patch.setattr(opentelemetry.trace, "get_tracer_provider", lambda: traces)
    patch.setattr(opentelemetry.metrics, "get_meter_provider", lambda: metrics)
    return Sdk(traces, metrics, spans, reader)


def gauges(reader: InMemoryMetricReader) -> dict[tuple[str, str | None], float]:
    """Return the values of spark_mq's gauges by their name and the state of messages."""
    data = reader.get_metrics_data()
    return {
        (metric.name, point.attributes.get("spark_mq.state")): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if metric.name.startswith("spark_mq.")
    }
