"""Spans of the processes in which Spark calls the hooks of the source and of the sink."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_mq import Queue

pytest.importorskip("opentelemetry.sdk")

ROOT = Path(__file__).resolve().parents[2]
SETUP = """
import os
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

class Kept(InMemorySpanExporter):
    def export(self, spans):
        with open(os.environ["SPANS_OF_TEST"], "a") as file:
            for span in spans:
                file.write(span.to_json(indent=None) + "\\n")
        return super().export(spans)

traces = TracerProvider()
traces.add_span_processor(SimpleSpanProcessor(Kept()))
trace.set_tracer_provider(traces)
"""
"""What automatic instrumentation does in each Python process: here with spans in a file."""
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from spark_mq.spark import register

source, target, checkpoints = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)

def read(group, **options):
    reader = spark.readStream.format("spark_mq").options(consumerGroup=group, **options)
    return reader.load(source)

frame = read("g", maxMessagesPerTrigger="3")
died = []

def process(batch, number):
    if not died:
        died.append(batch.count())
        raise RuntimeError("the first run dies")
    batch.collect()

for _ in range(2):
    query = frame.writeStream.foreachBatch(process).trigger(availableNow=True).option(
        "checkpointLocation", checkpoints + "/source").start()
    try:
        query.awaitTermination()
    except Exception as error:
        assert "the first run dies" in str(error), error
assert died == [3]
read("copier").select("value").writeStream.format("spark_mq").trigger(availableNow=True).options(
    checkpointLocation=checkpoints + "/sink", path=target
).start().awaitTermination()
spark.sql("SELECT 'x' AS value").write.format("spark_mq").mode("append").save(target)
"""


def test_leases_acks_replays_and_the_sink_have_spans(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "orders", durable=False, clock_skew="0s", retry_delay="0s")
    Queue.create(tmp_path / "copies", durable=False)
    queue.publish([str(n) for n in range(5)])
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SETUP)
    spans = tmp_path / "spans.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, queue.path, str(tmp_path / "copies"), str(tmp_path / "c")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
            "PYSPARK_PYTHON": sys.executable,
            "SPANS_OF_TEST": str(spans),
        },
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
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
