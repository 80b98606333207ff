"""Spans of the hooks of the source and of the sink, which Spark calls in processes of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from support.drivers import Runner
from support.harness import make_queue

from spark_mq.spark import SparkMQDataSource

otel = pytest.importorskip("support.otel")


def test_leases_acks_replays_and_the_sink_have_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(tmp_path / "orders")
    queue.publish(["x"] * 5)
    sdk = otel.set_up_sdk(monkeypatch)
    dead = Runner(queue, max_messages=3)
    dead.begun()
    successor = Runner(queue, dead.checkpoint, max_messages=3)
    successor.batch()
    successor.batch()
    assert not successor.offer()
    writer: Any = SparkMQDataSource({"path": queue.path}).writer(
        t.StructType().add("value", "string"), False
    )
    writer.commit([writer.write(iter(pa.table({"value": ["x"]}).to_batches()))])
    spans = [(span.name, dict(span.attributes)) for span in sdk.spans.get_finished_spans()]
    assert [
        (name, found["messaging.operation.type"], found.get("messaging.batch.message_count", 1))
        for name, found in spans
    ] == [
        ("lease orders", "receive", 3),
        ("replay orders", "receive", 3),
        ("ack orders", "settle", 3),
        ("lease orders", "receive", 2),
        ("ack orders", "settle", 2),
        ("publish orders", "send", 1),
    ]  # fmt: skip
    groups = [found.get("messaging.consumer.group.name") for _, found in spans]
    assert groups == ["g"] * 5 + [None]
