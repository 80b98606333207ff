"""What SparkMQListener makes of the progress that Spark reports."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from spark_mq.spark import SparkMQListener, StreamProgress

otel = pytest.importorskip("support.otel")


def event(*offsets: Any) -> Any:
    sources = [{"latestOffset": offset, "numInputRows": 1} for offset in offsets]
    progress = {"id": "q", "batchId": 1, "batchDuration": 250, "sources": sources}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress)))


def stats(queue: str) -> dict[str, Any]:
    counts = dict.fromkeys(("ready", "delayed", "leased", "dead", "blocked"), 2)
    return {
        **counts, "source": "spark_mq", "queue": queue, "group": "g",
        "oldest_unsettled_age": None, "isolating": 2, "isolation_leases": 1,
        "blocked_because": "", "breaker": "closed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("why", "stopped"), [("max_in_flight", 0), ("paused since 2026-11-26: repairs", 1), ("", 0)]
)
def test_the_gauge_of_a_stream_is_1_if_its_group_is_stopped(
    why: str, stopped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = otel.set_up_sdk(monkeypatch)
    SparkMQListener().onQueryProgress(event(json.dumps({**stats("/q/a"), "blocked_because": why})))
    assert otel.gauges(sdk.reader)["spark_mq.blocked", None] == stopped


def test_each_queue_of_a_source_is_reported_although_the_callback_fails_for_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called: list[str] = []

    def fail(progress: StreamProgress) -> None:
        called.append(progress.queue)
        raise ValueError("no dashboard")

    listener = SparkMQListener(fail)
    several = json.dumps({"/q/a": stats("/q/a"), "/q/b": stats("/q/b"), "/q/c": {}})
    of_others = ("17", "not json", None, json.dumps({"0": 12}))
    listener.onQueryProgress(event(several, *of_others))
    assert called == ["/q/a", "/q/b"]
    assert caplog.text.count("could not be reported") == 2
    assert sorted(listener.latest) == [("/q/a", "g"), ("/q/b", "g")]
    assert listener.latest["/q/a", "g"].batch_duration == timedelta(milliseconds=250)
