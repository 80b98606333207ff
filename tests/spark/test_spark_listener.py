"""SparkMQListener, and the spans of a stream's batches."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.harness import Stream, make_queue, until

from spark_mq.spark import SparkMQListener, StreamProgress

pytest.importorskip("opentelemetry.sdk")


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Any:
    from support.otel import set_up_sdk

    sdk = set_up_sdk(monkeypatch)
    return SimpleNamespace(spans=sdk.spans.get_finished_spans, reader=sdk.reader)


def read(batch: Any, _: Any) -> None:
    batch.collect()  # Spark counts only rows that are read


def gauges(reader: Any) -> dict[tuple[str, str | None], float]:
    data = reader.get_metrics_data()
    return {
        (one.name, point.attributes.get("spark_mq.state")): point.value
        for of in data.resource_metrics
        for scope in of.scope_metrics
        for one in scope.metrics
        for point in one.data.data_points
        if one.name.startswith("spark_mq.")
    }


def test_a_stream_is_seen_by_its_listener_and_in_its_spans(
    spark: Any, tmp_path: Path, sdk: Any
) -> None:
    queue = make_queue(tmp_path / "orders")
    queue.publish([str(n) for n in range(5)])
    stream = Stream(spark, queue, tmp_path / "checkpoint", maxMessagesPerTrigger="3")
    seen: list[StreamProgress] = []
    listener = SparkMQListener(seen.append)
    spark.streams.addListener(listener)
    try:
        stream.run(stream.group.for_each_batch(read))
        until(lambda: sum(one.input_rows for one in seen) == 5, "the listener has both batches")
    finally:
        spark.streams.removeListener(listener)
    first = seen[0]
    assert (first.queue, first.group, first.ready) == (queue.path, "g", 5)
    assert first.oldest_unsettled_age is not None
    assert first.oldest_unsettled_age > timedelta(0)
    assert first.batch_duration > timedelta(0)
    assert gauges(sdk.reader)["spark_mq.messages", "dead"] == 0
    assert ("spark_mq.messages", "ready") in gauges(sdk.reader)
    names = [span.name for span in sdk.spans()]
    assert names.count("process orders") == 2
    assert names.count("ack orders") == 2
    process = next(span for span in sdk.spans() if span.name == "process orders")
    (link,) = process.links
    publish = next(span for span in sdk.spans() if span.name == "publish orders")
    assert link.context.span_id == publish.context.span_id


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


def test_a_source_of_several_queues_reports_each_and_others_are_left_out() -> None:
    listener = SparkMQListener()
    several = json.dumps({"/q/a": stats("/q/a"), "/q/b": stats("/q/b"), "/q/c": {}})
    listener.onQueryProgress(event(several, "17", "not json", None, json.dumps({"0": 12})))
    assert sorted(listener.latest) == [("/q/a", "g"), ("/q/b", "g")]
    assert listener.latest["/q/a", "g"].batch_duration == timedelta(milliseconds=250)


@pytest.mark.parametrize(
    ("why", "stopped"), [("max_in_flight", 0), ("paused since 2026-11-26: repairs", 1), ("", 0)]
)
def test_the_gauge_of_a_stream_is_1_if_its_group_is_stopped(
    why: str, stopped: int, sdk: Any
) -> None:
    SparkMQListener().onQueryProgress(event(json.dumps({**stats("/q/a"), "blocked_because": why})))
    assert gauges(sdk.reader)["spark_mq.blocked", None] == stopped


def test_an_error_of_the_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: StreamProgress) -> None:
        raise ValueError("no dashboard")

    SparkMQListener(fail).onQueryProgress(event(json.dumps(stats("/q/a"))))
    assert "could not be reported" in caplog.text


def test_an_error_of_the_callback_for_one_group_leaves_the_others_reported() -> None:
    called: list[str] = []

    def fail(progress: StreamProgress) -> None:
        called.append(progress.queue)
        raise ValueError("no dashboard")

    listener = SparkMQListener(fail)
    several = json.dumps({"/q/a": stats("/q/a"), "/q/b": stats("/q/b")})
    listener.onQueryProgress(event(several))
    assert called == ["/q/a", "/q/b"]
    assert sorted(listener.latest) == [("/q/a", "g"), ("/q/b", "g")]


PROGRAM = """
import sys

from pyspark.sql import SparkSession

from spark_mq.spark import SparkMQListener

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
listener = SparkMQListener()
spark.streams.addListener(listener)
rows = spark.readStream.schema("a int").json(sys.argv[1])
rows.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
spark.streams.removeListener(listener)
"""


def test_a_program_that_removes_its_listener_ends_quietly(tmp_path: Path) -> None:
    """Although the event of the last batch may still be on its way."""
    (tmp_path / "rows.json").write_text('{"a": 1}')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "threw an exception" not in done.stderr
