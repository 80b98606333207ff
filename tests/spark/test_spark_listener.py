"""SparkMQListener, and the spans of a stream's batches."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from support.handles import until
from support.harness import Stream, make_queue
from support.limits import Limits
from support.marks import slow

from spark_mq.spark import SparkMQListener, StreamProgress

otel = pytest.importorskip("support.otel")


def read(batch: Any, _: Any) -> None:
    batch.collect()  # Spark counts only rows that are read


@pytest.mark.parametrize(("reader", "by_spark_itself"), [("python", 5), slow("spark", 0)])
def test_a_stream_is_seen_by_its_listener_and_in_its_spans(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
    *,
    reader: Literal["python", "spark"],
    by_spark_itself: int,
) -> None:
    """Spark counts no rows of its own Parquet reader, so the listener does."""
    limits(plan_bytes=1)  # Spark also reads the few bytes of a test
    sdk = otel.set_up_sdk(monkeypatch)
    queue = make_queue(tmp_path / "orders")
    queue.publish([str(n) for n in range(5)])
    stream = Stream(spark, queue, tmp_path / "checkpoint", maxMessagesPerTrigger="3")
    seen: list[StreamProgress] = []
    listener = SparkMQListener(seen.append)
    spark.streams.addListener(listener)
    try:
        query = stream.run(stream.group.for_each_batch(read, reader=reader))
        until(lambda: sum(one.input_rows for one in seen) == 5, "the listener has both batches")
    finally:
        spark.streams.removeListener(listener)
    assert sum(one.numInputRows for one in query.recentProgress) == by_spark_itself
    first = seen[0]
    assert (first.queue, first.group, first.ready) == (queue.path, "g", 5)
    assert first.oldest_unsettled_age is not None
    assert first.oldest_unsettled_age > timedelta(0)
    assert first.batch_duration > timedelta(0)
    gauges = otel.gauges(sdk.reader)
    assert gauges["spark_mq.messages", "dead"] == 0
    assert ("spark_mq.messages", "ready") in gauges
    spans = sdk.spans.get_finished_spans()
    names = [span.name for span in spans]
    assert names.count("process orders") == 2
    assert names.count("ack orders") == 2
    process = next(span for span in spans if span.name == "process orders")
    (link,) = process.links
    publish = next(span for span in spans if span.name == "publish orders")
    assert link.context.span_id == publish.context.span_id


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


@pytest.mark.slow
def test_a_program_that_removes_its_listener_ends_quietly(tmp_path: Path) -> None:
    """Although the event of the last batch may still be on its way."""
    (tmp_path / "rows.json").write_text('{"a": 1}')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "threw an exception" not in done.stderr
