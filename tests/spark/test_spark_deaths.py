"""Drivers that die or freeze in mid-batch, and what their successors make of it.

tests/unit/streaming has each step of a batch, without Spark and its JVM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from support import harness
from support.blocks import ROOT
from support.handles import until
from support.harness import (
    PATIENCE,
    Death,
    Sink,
    Stream,
    copy_checkpoint,
    make_queue,
    numbered,
    session_with,
    values,
)
from support.marks import slow
from support.order_checker import check_order_of_queue, keys_of
from support.tables import group_ledger_of

from spark_mq import Message, Queue

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


@pytest.fixture
def mortal(spark: Any, queue: Queue, tmp_path: Path) -> Stream:
    """A stream whose runner can be made to die."""
    return Stream(session_with(spark, die_if_told), queue, tmp_path / "checkpoint")


@pytest.mark.parametrize("moment", ["after lease", slow("before ack")])
def test_a_query_that_dies_and_restarts_loses_nothing_and_doubles_nothing(
    mortal: Stream, queue: Queue, moment: str
) -> None:
    """Each step of such a death, without Spark, is in tests/unit/streaming."""
    queue.publish(numbered(4))
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


QUERY = """
import json, os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from spark_mq import Queue

path, checkpoint, sink = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

def process(batch, lease):
    number = lease.delta_options["txnVersion"]
    rows = [(row.key, row.sequence) for row in batch.select("key", "sequence").collect()]
    Path(sink, number).write_text(json.dumps(rows))
    if number == "2":
        os.killpg(0, signal.SIGKILL)

stream = spark.readStream.format("spark_mq").options(consumerGroup="g", maxMessagesPerTrigger=6)
each = Queue.open(path).group("g").for_each_batch(process, on_error="raise")
writer = stream.load(path).writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
writer.start().awaitTermination()
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_with_its_jvm_keeps_the_order_of_keys(
    spark: Any, tmp_path: Path
) -> None:
    queue = make_queue(tmp_path / "queue", lanes=8, order="key")
    for part in range(2):
        queue.publish([Message(str(n), key=f"k{n % 6}") for n in range(part * 12, part * 12 + 12)])
    stream = Stream(spark, queue, tmp_path / "checkpoint", maxMessagesPerTrigger="6")
    sink = tmp_path / "sink"
    sink.mkdir()
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    code = subprocess.run(
        [sys.executable, "-c", QUERY, queue.path, str(stream.checkpoint), str(sink)],
        check=False, capture_output=True, timeout=150, start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(paths)},
    ).returncode  # fmt: skip
    assert code == -signal.SIGKILL
    assert sorted(path.name for path in sink.iterdir()) == ["1", "2"]
    landed = [tuple(row) for name in "12" for row in json.loads((sink / name).read_text())]
    held = {key for key, _ in json.loads((sink / "2").read_text())}
    other = stream.group.lease("other", max_messages=100)
    assert held.isdisjoint({m.key for m in other.messages})
    landed += [(m.key or "", m.sequence) for m in other.messages]
    other.ack()

    def process(batch: Any, lease: Any) -> None:
        if lease.delta_options["txnVersion"] != "2":  # the sink has it
            landed.extend((row.key, row.sequence) for row in batch.collect())

    stream.settle_with(process)
    slots = keys_of(queue.path)
    assert sorted(seq for _, seq in landed) == sorted(slots), "each one once"
    for key in {key for key, _ in slots.values()}:
        mine = [seq for of, seq in landed if of == key]
        assert mine == sorted(mine)
    assert stream.group.stats().acked == 24
    queue.sweep()
    assert check_order_of_queue(queue.path, ["g"]).wrong == []


# -- frozen drivers


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """It lets a driver go on, at the latest when its test has failed."""
    made = threading.Event()
    yield made
    made.set()


@pytest.mark.slow
def test_a_frozen_driver_that_wakes_after_its_successor_took_over_settles_nothing_and_ends(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path, release: threading.Event
) -> None:
    queue.publish(numbered(3))
    reached, rows = threading.Event(), list[list[str]]()

    def freeze(batch: Any, lease: Any) -> None:
        reached.set()
        assert release.wait(2 * PATIENCE)

    freezing = stream.group.for_each_batch(freeze, on_error="nack")
    woken = stream.start(freezing, available_now=False)
    until(lambda: reached.is_set() or not woken.isActive, "the driver is frozen")
    assert reached.is_set(), woken.exception()
    successor = Stream(spark, queue, copy_checkpoint(stream.checkpoint, tmp_path / "copy"))
    successor.settle_with(lambda batch, lease: rows.append(values(batch)))
    assert rows == [numbered(3)]
    assert stream.group.stats().acked == 3
    before = group_ledger_of(stream.group).current().ranges
    release.set()
    until(lambda: not woken.isActive, "the woken driver's query ended")
    assert "StreamFenced" in str(woken.exception())
    assert group_ledger_of(stream.group).current().ranges.equals(before), (
        "it settled nothing, and leased nothing"
    )


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
