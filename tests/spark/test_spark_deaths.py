"""Drivers that die in mid-batch, and what their successors make of it.

tests/unit/streaming has each step of a batch, without Spark and its JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from support import harness
from support.handles import until
from support.harness import Death, Sink, Stream, numbered, session_with
from support.marks import slow

from spark_mq import Queue

# These functions go to Spark's Python workers, which cannot import test modules.
cloudpickle.register_pickle_by_value(__import__(__name__))
cloudpickle.register_pickle_by_value(harness)


def die_if_told(path: str, call: str, run: Callable[[], Any]) -> Any:
    """Let a runner die after a lease, once for each file beside the queue that says so."""
    found, marker = run(), Path(f"{path}.die")
    if call == "partitions" and marker.exists():
        marker.unlink()
        raise RuntimeError("died after the lease")
    return found


@pytest.mark.parametrize("moment", ["after lease", slow("before ack")])
def test_a_query_that_dies_and_restarts_loses_nothing_and_doubles_nothing(
    spark: Any, queue: Queue, tmp_path: Path, moment: str
) -> None:
    """Each step of such a death, without Spark, is in tests/unit/streaming."""
    queue.publish(numbered(4))
    mortal = Stream(session_with(spark, die_if_told), queue, tmp_path / "checkpoint")
    sink, dying = Sink(), {moment}

    def process(batch: Any, lease: Any) -> None:
        sink.write(batch, lease)
        if "before ack" in dying:
            dying.clear()
            raise Death("between the sink and the ack")

    if moment == "after lease":
        Path(f"{queue.path}.die").touch()
    with pytest.raises(StreamingQueryException):
        mortal.settle_with(process)
    stats = mortal.group.stats()
    assert (stats.ready, stats.leased, stats.acked) == (0, 4, 0), "died where it should"

    queue.publish(["004"])
    mortal.settle_with(process)
    assert sink.values == numbered(5), "nothing lost, nothing twice"
    counts = {value: count for rows in sink.batches.values() for value, count in rows}
    # Only a lease that was taken over before the sink was written shows a second delivery there.
    assert counts == {**dict.fromkeys(numbered(4), 2 if moment == "after lease" else 1), "004": 1}
    assert sink.skipped == (1 if moment == "before ack" else 0)
    stats = mortal.group.stats()
    assert (stats.acked, stats.ready, stats.leased) == (5, 0, 0)


@pytest.mark.slow
def test_a_lease_outlives_its_timeout_while_its_batch_is_worked_on(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(numbered(2))
    stream = Stream(spark, queue, tmp_path / "checkpoint", visibilityTimeout="1s")
    taken: list[Any] = []

    def process(batch: Any, lease: Any) -> None:
        at_first = batch.first().lease_expires_at.astimezone()

        def is_extended() -> bool:
            (held,) = stream.group.leases()
            return datetime.now(UTC) > at_first and held.until > at_first

        until(is_extended, "past its first deadline")
        taken.append(stream.group.lease("other"))

    stream.settle_with(process)
    assert taken == [None]
    assert stream.group.stats().acked == 2
