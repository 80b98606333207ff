"""A DataFrame with dedup ids: the commit leaves out the duplicates of all tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.harness import make_queue, publish
from support.sinks import values

from spark_mq import Message, Queue


@pytest.fixture
def target(tmp_path: Path) -> Queue:
    return make_queue(tmp_path / "target", dedup_window="1h")


def numbered(spark: Any, count: int, ids: str) -> Any:
    return spark.range(count, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS value", f"{ids} AS dedup_id"
    )


def test_a_write_leaves_out_what_was_published_and_what_it_repeats(
    spark: Any, target: Queue
) -> None:
    target.publish(Message("first", dedup_id="3"))
    frame = numbered(spark, 8, "IF(id = 7, NULL, CAST(id % 6 AS STRING))")
    publish(frame, target.path)
    assert values(target.path) == ["0", "1", "2", "4", "5", "7", "first"]  # 6 has the id of 0
    publish(frame, target.path)
    assert values(target.path) == ["0", "1", "2", "4", "5", "7", "7", "first"]
    known = {message.value: message.sequence for message in target.peek(10)}
    repeated = target.publish([Message("", dedup_id=str(n)) for n in (0, 4, 5)])
    assert repeated.duplicate_of == {0: known[b"0"], 1: known[b"4"], 2: known[b"5"]}


def test_a_queue_without_a_window_refuses_the_column_before_any_job(
    spark: Any, queue: Queue
) -> None:
    with pytest.raises(Exception, match="no dedup_window"):
        publish(numbered(spark, 2, "'a'"), queue.path)
