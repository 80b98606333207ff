"""Spans of the hooks of the source and of the sink, which Spark calls in processes of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from support.drivers import Runner
from support.harness import make_queue

from spark_mq import Message
from spark_mq.spark import SparkMQDataSource

otel = pytest.importorskip("support.otel")


def test_leases_acks_replays_and_the_sink_have_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, flushed = make_queue(tmp_path / "orders", filter={"key_prefix": "k"}), list[int]()
    queue.publish([Message("x", key="k")] * 5)
    sdk = otel.set_up_sdk(monkeypatch)
    monkeypatch.setattr(sdk.traces, "force_flush", flushed.append)
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
    names = "operation.type", "batch.message_count", "consumer.group.name"
    assert [
        (span.name, *(span.attributes.get(f"messaging.{name}") for name in names))
        for span in sdk.spans.get_finished_spans()
    ] == [
        ("lease orders", "receive", 3, "g"),
        ("replay orders", "receive", 3, "g"),
        ("ack orders", "settle", 3, "g"),
        ("lease orders", "receive", 2, "g"),
        ("ack orders", "settle", 2, "g"),
        ("publish orders", "send", None, None),
    ]  # fmt: skip
    assert flushed, "Spark may end the process at any time"
