"""Queues and streams of one Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.harness import Stream, make_queue
from support.marks import slow
from support.queues import place
from support.sinks import make_sink
from support.spark_session import no_query_survives, spark

from spark_mq import Queue

__all__ = ["no_query_survives", "place", "queue", "sink", "spark", "stream"]


@pytest.fixture
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Queue:
    """A queue whose leases last as long as any test: what comes again does so for another reason
    than time. With --store it is in an object store.
    """
    if not request.config.getoption("--store"):
        return make_queue(tmp_path / "queue")
    store = request.getfixturevalue("remote")
    return make_queue(store.new_path(), storage_options=store.options)


@pytest.fixture(params=["table", slow("queue")])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A sink of a group. `make test` takes a queue only where the test is about queues."""
    return make_sink(tmp_path / "sink", request.param)


@pytest.fixture
def stream(spark: Any, queue: Queue, tmp_path: Path) -> Stream:
    return Stream(spark, queue, tmp_path / "checkpoint")
