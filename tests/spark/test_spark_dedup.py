"""A DataFrame with dedup ids: the commit leaves out the duplicates of all tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.harness import make_queue, publish
from support.sinks import values

from spark_mq import Message


def test_a_write_leaves_out_what_was_published_and_what_it_repeats(
    spark: Any, tmp_path: Path
) -> None:
    target = make_queue(tmp_path / "target", dedup_window="1h")
    target.publish(Message("first", dedup_id="3"))
    frame = spark.range(8, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS value", "IF(id = 7, NULL, CAST(id % 6 AS STRING)) AS dedup_id"
    )
    publish(frame, target.path)
    assert values(target.path) == ["0", "1", "2", "4", "5", "7", "first"]  # 6 has the id of 0
    publish(frame, target.path)
    assert values(target.path) == ["0", "1", "2", "4", "5", "7", "7", "first"]
    known = {message.value: message.sequence for message in target.peek(10)}
    repeated = target.publish([Message("", dedup_id=str(n)) for n in (0, 4, 5)])
    assert repeated.duplicate_of == {0: known[b"0"], 1: known[b"4"], 2: known[b"5"]}
