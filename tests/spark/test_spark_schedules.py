"""The tables of a queue with schedules, as Spark and a stream read and write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.harness import Stream

from spark_mq import Queue
from spark_mq.testing import ManualClock


@pytest.mark.slow
def test_spark_reads_and_writes_a_queue_with_schedules(spark: Any, tmp_path: Path) -> None:
    clock = ManualClock()
    queue = Queue.create(tmp_path / "scheduled", clock=clock)
    queue.schedule("tick", every="1m", message="tick")
    clock.advance("1m")
    assert queue.sweep().scheduled == 1
    row = spark.createDataFrame([(b"mine",)], "value BINARY")
    row.write.format("delta").mode("append").save(f"{queue.path}/messages")
    values: list[bytes] = []

    def process(batch: Any, lease: Any) -> None:
        values.extend(bytes(one.value) for one in batch.select("value").collect())

    Stream(spark, queue, tmp_path / "checkpoint").settle_with(process)
    assert sorted(values) == [b"mine", b"tick"]
    assert [one.name for one in Queue.open(queue.path, clock=clock).schedules()] == ["tick"]
    clock.advance("1m")
    assert queue.sweep().scheduled == 1, "Spark's commit has kept the schedule"
