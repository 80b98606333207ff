"""Spans of the processes in which Spark calls the hooks of the source and of the sink."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from support.harness import make_queue, start

from spark_mq.spark import SparkMQDataSource

pytest.importorskip("opentelemetry.sdk")

# These classes go to Spark's Python workers, which cannot import test modules.
cloudpickle.register_pickle_by_value(__import__(__name__))


def set_up_sdk(spans: Path) -> None:
    """Do what automatic instrumentation does in each Python process: here with spans in a file."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Kept(SpanExporter):
        def export(self, found: Any) -> SpanExportResult:
            # Spark uses a process again, also for a later test.
            with contextlib.suppress(FileNotFoundError), spans.open("a") as file:
                file.writelines(span.to_json(indent=None) + "\n" for span in found)
            return SpanExportResult.SUCCESS

    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        traces = TracerProvider()
        traces.add_span_processor(SimpleSpanProcessor(Kept()))
        trace.set_tracer_provider(traces)


def traced(spark: Any, spans: Path) -> Any:
    """Return a session whose source sets up an SDK in each process that calls its hooks."""

    class Source(SparkMQDataSource):
        def streamReader(self, schema: Any) -> Any:
            set_up_sdk(spans)
            return super().streamReader(schema)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            set_up_sdk(spans)
            return super().streamWriter(schema, overwrite)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            writer: Any = super().writer(schema, overwrite)

            class Writer(type(writer)):  # type: ignore[misc]
                def commit(self, messages: Any) -> None:
                    set_up_sdk(spans)
                    super().commit(messages)

            writer.__class__ = Writer
            return writer

    session = spark.newSession()
    session.dataSource.register(Source)
    return session


@pytest.mark.slow
def test_leases_acks_replays_and_the_sink_have_spans(spark: Any, tmp_path: Path) -> None:
    queue, copies = make_queue(tmp_path / "orders"), make_queue(tmp_path / "copies")
    queue.publish([str(n) for n in range(5)])
    spans = tmp_path / "spans.jsonl"
    session = traced(spark, spans)

    def read(group: str, **options: str) -> Any:
        reader = session.readStream.format("spark_mq").options(consumerGroup=group, **options)
        return reader.load(queue.path)

    frame, died = read("g", maxMessagesPerTrigger="3"), list[int]()

    def process(batch: Any, number: int) -> None:
        if not died:
            died.append(batch.count())
            raise RuntimeError("the first run dies")
        batch.collect()

    def run() -> None:
        start(frame.writeStream.foreachBatch(process), tmp_path / "source").awaitTermination()

    with pytest.raises(StreamingQueryException, match="the first run dies"):
        run()
    run()
    assert died == [3]
    writer = read("copier").select("value").writeStream.format("spark_mq")
    start(writer.option("path", copies.path), tmp_path / "sink").awaitTermination()
    one = session.sql("SELECT 'x' AS value")
    one.write.format("spark_mq").mode("append").save(copies.path)
    found = [json.loads(line) for line in spans.read_text().splitlines()]
    assert _brief(found, "g") == [
        ("lease orders", "receive", 3),
        ("replay orders", "receive", 3),
        ("ack orders", "settle", 3),
        ("lease orders", "receive", 2),
        ("ack orders", "settle", 2),
    ]
    assert _brief(found, "copier")[0] == ("lease orders", "receive", 5)
    assert _brief(found, None) == [("publish copies", "send", 5), ("publish copies", "send", 1)]


def _brief(spans: list[dict[str, Any]], group: str | None) -> list[tuple[str, str, int]]:
    """The name, the type and the messages of each span of a group."""
    attributes = [(span["name"], span["attributes"]) for span in spans]
    return [
        (
            name,
            found["messaging.operation.type"],
            found.get("messaging.batch.message_count", 1),
        )
        for name, found in attributes
        if found.get("messaging.consumer.group.name") == group
    ]
