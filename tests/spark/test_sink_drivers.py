"""Two Spark drivers that append to one sink, killed at random with their JVM: it has all once.

They take over from each other by a replay and by expiry. ``make fault`` kills more of them, by the
variable DRIVER_KILLS. With ``--store=versitygw`` queue and sink are on an S3 server, where Spark
writes by Hadoop's S3A.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.handles import until
from support.harness import storage_options
from support.processes import SPAWN
from support.queues import Place
from support.sinks import make_sink, table_of, values
from support.spark_session import new_session, s3_settings

from spark_mq import ConsumerGroup, Queue

# Spark gets no file system for other stores.
pytestmark = [pytest.mark.slow, pytest.mark.only_on("versitygw")]
KILLS = int(os.environ.get("DRIVER_KILLS", "1"))
PATIENCE = 240.0
"""Seconds for a driver to start and do something, and from the last kill to the end."""
BAD = "7"  # a message that ends so is rejected


def drive(path: str, options: Mapping[str, str], folder: Path, settings: Mapping[str, str]) -> None:
    """Append batches to the sink until the parent kills this process group."""
    os.setsid()
    session = new_session(folder / "warehouse", settings)
    queue = Queue.open(path, storage_options=options)

    def process(batch: Any, lease: Any) -> None:
        rows = batch.selectExpr("*", "CAST(value AS STRING) AS text").persist()
        lease.reject(rows.where(f"text LIKE '%{BAD}'"), error="bad")
        lease.append(rows.where(f"text NOT LIKE '%{BAD}'").selectExpr("text AS value"))
        rows.unpersist()

    frame = (
        session.readStream.format("spark_mq")
        .options(**storage_options(queue))
        .options(consumerGroup="billing", maxMessagesPerTrigger="40")
    )
    writer = frame.load(path).writeStream.foreachBatch(
        queue.group("billing").for_each_batch(process, on_error="nack")
    )
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


class Drivers:
    """Two drivers, each with a folder of its own for its checkpoint."""

    def __init__(self, start: Callable[[Path], Any], folder: Path) -> None:
        self._start, self._folder = start, folder
        self._count = 0
        self.running = [self._begin() for _ in range(2)]

    def _begin(self, folder: Path | None = None) -> tuple[Any, Path]:
        self._count += 1
        own = folder or self._folder / f"driver-{self._count}"
        own.mkdir(exist_ok=True)
        return self._start(own), own

    def kill(self, at: int) -> None:
        process, _ = self.running[at]
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has no group of its own yet, and so no JVM
            process.kill()
        process.join()

    def replace(self, at: int, *, same_checkpoint: bool) -> None:
        self.kill(at)
        self.running[at] = self._begin(self.running[at][1] if same_checkpoint else None)


@pytest.mark.parametrize(
    "kind",
    [
        "table",
        pytest.param(
            "queue",
            marks=pytest.mark.skipif(KILLS == 1, reason="in make fault: it takes minutes"),
        ),
    ],
)
def test_drivers_that_are_killed_append_each_message_once(
    place: Place, tmp_path: Path, kind: str
) -> None:
    given, sink = place(), place()["path"]
    path, options = given["path"], given.get("storage_options", {})
    make_sink(sink, kind, options)
    queue = Queue.create(
        **given, visibility_timeout="10s", clock_skew="500ms",
        max_delivery_attempts=None, breaker_threshold=None,
    )  # fmt: skip
    group = queue.group("billing")
    group.configure(sink=sink)
    settings = s3_settings(options) if options else {}
    draw, count, seen = random.Random(KILLS), 0, 0
    drivers = Drivers(lambda folder: begin(path, options, folder, settings), tmp_path)
    try:
        for kill in range(KILLS):
            queue.publish([f"{count + n}" for n in range(200)])
            count += 200
            seen = wait(group, lambda settled, seen=seen: settled > seen)
            drivers.running[0][0].join(draw.random() * 3)  # so long they work
            drivers.replace(draw.randrange(2), same_checkpoint=kill % 2 == 0)
        wait(group, lambda settled: settled == count)
    finally:
        for at in range(2):
            drivers.kill(at)
    queue.sweep()
    texts = [str(n) for n in range(count)]
    assert values(sink, options) == sorted(t for t in texts if t[-1] != BAD)
    letters = queue.list_dead_letters()["value"].to_pylist()
    assert sorted(letters) == sorted(t.encode() for t in texts if t[-1] == BAD)
    key = str(group.settings.sink_key).split("/")
    second = (
        f"spark_mq/{'/'.join(key)}/1"
        if kind == "table"
        else (f"spark_mq.producer:sink-{key[0]}.{key[3]}.1")
    )
    number = table_of(sink, options).transaction_version(second)
    assert number is not None, "two leases were open at the same time"


def begin(path: str, options: Mapping[str, str], folder: Path, settings: Mapping[str, str]) -> Any:
    process = SPAWN.Process(target=drive, args=(path, options, folder, settings))
    process.start()
    return process


def wait(group: ConsumerGroup, enough: Callable[[int], bool]) -> int:
    """Wait until enough messages are settled. Return how many are."""

    def settled() -> int:
        stats = group.stats()
        return int(stats.acked + stats.dead + stats.dead_lettered)

    until(lambda: enough(settled()), "enough are settled", PATIENCE)
    return settled()
