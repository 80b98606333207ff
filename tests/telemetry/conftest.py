"""An OpenTelemetry SDK that keeps its spans and metrics in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq import Queue


class Recorded:
    """What the SDK got."""

    def __init__(self, spans: Any, metrics: Any) -> None:
        self._spans, self._metrics = spans, metrics

    def spans(self, name: str | None = None) -> list[Any]:
        """The finished spans, in order of their end."""
        return [s for s in self._spans.get_finished_spans() if name in (None, s.name)]

    def span(self, name: str) -> Any:
        (found,) = self.spans(name)
        return found

    def metrics(self) -> list[Any]:
        (of,) = self._metrics.get_metrics_data().resource_metrics
        return [metric for scope in of.scope_metrics for metric in scope.metrics]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """A program that has set up an SDK. Afterwards there is none."""
    from support.otel import set_up_sdk

    sdk = set_up_sdk(monkeypatch)
    yield Recorded(sdk.spans, sdk.reader)
    sdk.traces.shutdown()
    sdk.metrics.shutdown()


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "orders", durable=False, retry_delay="0s")
