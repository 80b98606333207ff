"""A stream of a group that shares its batches between keys."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from support.harness import Stream

from spark_mq import Message, Queue


def test_a_batch_has_a_share_of_each_key_and_no_more_than_its_limit(
    spark: Any, tmp_path: Path
) -> None:
    queue = Queue.create(tmp_path / "queue", lanes=64)
    group = queue.group("g")
    group.configure(order="fair", max_in_flight_per_key=15)
    for n in range(4):
        queue.publish([Message(str(n), key="large") for _ in range(15)])
    queue.publish([Message(str(n), key="small") for n in range(10)])
    batches: list[Counter[str]] = []

    def process(batch: Any, lease: Any) -> None:
        batches.append(Counter(row.key for row in batch.select("key").collect()))

    options = {"maxMessagesPerTrigger": 20}
    Stream(spark, queue, tmp_path / "checkpoint", **options).settle_with(process)
    assert batches[0] == {"large": 10, "small": 10}
    assert max(batch["large"] for batch in batches) <= 15
    assert sum(batches, Counter()) == {"large": 60, "small": 10}
    assert group.stats().acked == 70
