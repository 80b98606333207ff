"""The filters that SQL pushes into a batch read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.harness import busy_queue

from spark_mq import Queue


@pytest.fixture
def busy(tmp_path: Path) -> Queue:
    return busy_queue(tmp_path / "orders")


@pytest.fixture
def pushing(spark: Any) -> Iterator[Any]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


QUERIES = {
    "state = 'leased'": 2,
    "state = 'dead'": 1,
    "state IN ('leased', 'dead')": 3,
    "state = 'unread' AND sequence > 4 * 4294967296": 3,
    "worker_id = 'worker-2'": 2,
    "failure_count >= 1": 0,
    "lease_expires_at > current_timestamp()": 2,
    "lease_expires_at < current_timestamp()": 0,
    "state <> 'acked'": 9,
    "delivery_count >= 1": 4,
    "state = 'settled'": 0,
    "state IN ('acked', 'leased') AND delivery_count = 1": 3,
    "cast(value AS string) = '0a' AND state = 'dead'": 1,
}


@pytest.mark.slow
def test_filters_change_no_result(pushing: Any, busy: Queue) -> None:
    def count(where: str) -> int:
        frame = pushing.read.format("spark_mq").option("consumerGroup", "billing").load(busy.path)
        return int(frame.where(where).count())

    pushed = {where: count(where) for where in QUERIES}
    assert pushed == QUERIES
    pushing.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert {where: count(where) for where in QUERIES} == pushed
