"""``for_each_batch`` hands over ``batch`` by Spark's own Parquet reader, if that changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Stream, numbered

from spark_mq import Message, Queue
from spark_mq.spark import parquet_read


@pytest.fixture(autouse=True)
def small_batches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark also reads the few bytes of a test."""
    monkeypatch.setattr(parquet_read, "LEAST_BYTES", 1)


def plan(rows: Any) -> str:
    return str(rows._jdf.queryExecution().executedPlan().toString())


def by_spark(rows: Any) -> bool:
    """Whether Spark's Parquet reader gives the rows, and no Python."""
    shown = plan(rows)
    return "FileScan parquet" in shown and "Python" not in shown and "ExistingRDD" not in shown


class Both:
    """Collects each batch as ``process`` gets it, and as the source's own tasks give it."""

    def __init__(self, stream: Stream, **options: Any) -> None:
        self.by_spark: list[bool] = []
        self.batches: list[list[Any]] = []
        self.through_python: list[list[Any]] = []
        self._own: Any = None
        self._each = stream.group.for_each_batch(self._process, on_error="raise", **options)

    def __call__(self, batch: Any, batch_id: int) -> None:
        self._own = batch
        self._each(batch, batch_id)

    def _process(self, batch: Any, lease: Any) -> None:
        assert batch.schema == self._own.schema
        self.by_spark.append(by_spark(batch))
        self.batches.append(batch.collect())
        self.through_python.append(self._own.collect())


def test_the_batch_is_read_by_spark_with_the_rows_and_types_and_order_of_the_source(stream: Stream, queue: Queue) -> None:
    queue.publish([Message(b"\x00\xff", key="k", headers={"a": "b"}, message_id="m-1"), Message("plain")])
    for size in (5, 50, 20):
        queue.publish([Message(text * 200, key=text) for text in numbered(size)])
    stream.options["maxMessagesPerTrigger"] = "60"
    both = Both(stream)
    stream.run(both)
    assert both.by_spark == [True, True]
    assert both.batches == both.through_python
    assert [row.sequence for rows in both.batches for row in rows] == sorted(row.sequence for rows in both.batches for row in rows)
    assert stream.group.stats().acked == 77
