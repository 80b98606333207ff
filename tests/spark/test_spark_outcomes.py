"""The option ``outcomes``: settled messages as a DataFrame, each with how and when it ended."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from support.harness import look, make_queue

from spark_mq import Message, Queue


@pytest.fixture
def settled(tmp_path: Path) -> Queue:
    """Six messages: four acked in two commits, one a dead letter, one unread."""
    queue = make_queue(tmp_path / "orders")
    queue.publish([Message(f'{{"n": {n}}}', key=f"k{n}") for n in range(5)])
    group = queue.group("billing")
    lease = group.lease("w", max_messages=5)
    first = [message.sequence for message in lease.messages]
    lease.reject(first[1:2], error="no customer")
    lease.ack(first[:1])
    lease.ack()
    queue.sweep()
    queue.publish("unread")
    return queue


def test_settled_messages_have_their_outcomes_as_the_python_api_says(
    spark: Any, settled: Queue
) -> None:
    options = {"consumerGroup": "billing", "outcomes": "true", "valueSchema": "n INT"}
    frame = look(spark, settled, **options)
    found = [row.asDict() for row in frame.orderBy("sequence").collect()]
    finished = settled.finished("billing")
    for name in ("sequence", "outcome", "settled_at", "delivery_count", "failure_count", "error"):
        values = [row[name] for row in found]
        if name == "settled_at":
            values = [at.astimezone(UTC) for at in values]
        assert values == finished[name].to_pylist()
    assert [(row["key"], row["data"].n) for row in found] == [(f"k{n}", n) for n in range(5)]
    assert [row["state"] for row in found] == [row["outcome"] for row in found]
    dead = frame.where("outcome = 'dead_lettered' AND settled_at IS NOT NULL").collect()
    assert [(row["key"], row["error"]) for row in dead] == [("k1", "no customer")]
