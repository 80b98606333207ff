"""Spark over queues in an object store: executors write and read there, the driver commits there.

Also where the store fails or lags.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from faulty_store import AFTER, BEFORE, RESET, SLOW, FaultyStore
from support.blocks import ROOT
from support.checker import check_queue
from support.harness import (
    Stream,
    finish,
    look,
    make_queue,
    numbered,
    publish,
    start,
    storage_options,
    values,
)
from support.marks import slow
from support.stores import RemoteStore
from support.tables import context_of, messages_of

from spark_mq import Queue, errors

pytestmark = pytest.mark.spark

ROWS = 40

HANDLER = """
def process(batch, lease):
    lease.reject(batch.where("CAST(value AS STRING) = '007'"), error="never")
"""


@pytest.fixture
def queue(remote: RemoteStore) -> Queue:
    return make_queue(remote.new_path(), storage_options=remote.options)


def through(queue: Queue, proxy: FaultyStore) -> Queue:
    return Queue.open(queue.path, storage_options=proxy.options)


def publish_rows(spark: Any, queue: Queue) -> None:
    rows = spark.range(ROWS, numPartitions=2).selectExpr("format_string('%03d', id) AS value")
    publish(rows, queue.path, **storage_options(queue))


def check(queue: Queue) -> None:
    queue.sweep()
    found = check_queue(
        queue.path, context_of(queue).storage_options, skew=timedelta(0), drained=["g"]
    )
    assert found.wrong == []
    assert found.counts["leased"] == found.counts["messages"], "each message was delivered once"


def test_executors_write_and_read_there_and_batches_are_settled(
    spark: Any, remote: RemoteStore, queue: Queue, tmp_path: Path
) -> None:
    publish_rows(spark, queue)
    queue.group("g").ensure()
    peek = look(spark, queue, **storage_options(queue), consumerGroup="g")
    assert values(peek) == numbered(ROWS)
    sizes = {"minPartitions": "2", "maxMessagesPerTrigger": "25"}
    stream = Stream(spark, queue, tmp_path / "checkpoint", **sizes)
    seen: list[str] = []

    def process(batch: Any, lease: Any) -> Any:
        seen.extend(values(batch))
        with pytest.raises(errors.StorageError, match="Spark uses its own settings"):
            lease.read()
        lease.reject(batch.where("CAST(value AS STRING) = '007'"), error="never")
        return batch.where("CAST(value AS STRING) = '030'").selectExpr(
            "sequence", "'reject' AS outcome"
        )

    stream.settle_with(process)
    assert seen == numbered(ROWS)
    stats = stream.group.stats()
    assert (stats.acked, stats.dead) == (ROWS - 2, 2)
    check(queue)
    secret = remote.secret.encode()
    written = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if secret in path.read_bytes()], (
        "no secret is in a checkpoint"
    )


def test_a_stream_moves_messages_from_one_queue_there_to_another(
    spark: Any, queue: Queue, remote: RemoteStore, tmp_path: Path
) -> None:
    target = make_queue(remote.new_path(), storage_options=remote.options)
    queue.publish(numbered(ROWS))
    stream = Stream(spark, queue, tmp_path / "checkpoint")
    writer = (
        stream.frame()
        .select("value")
        .writeStream.format("spark_mq")
        .options(**storage_options(target))
        .option("path", target.path)
    )
    finish(start(writer, stream.checkpoint))
    lease = target.group().lease("w", max_messages=2 * ROWS)
    assert sorted(bytes(m.value).decode() for m in lease.messages) == numbered(ROWS)
    check(queue)


@pytest.mark.parametrize("fault", [AFTER, slow(BEFORE), RESET, slow(SLOW)])
@pytest.mark.parametrize("part", ["messages/_delta_log", slow("messages/part-")])
def test_a_publish_lands_once_if_the_store_fails(
    spark: Any, queue: Queue, proxy: FaultyStore, part: str, fault: str
) -> None:
    proxy.once(fault, "PUT", part)
    publish_rows(spark, through(queue, proxy))
    assert proxy.met() == 1
    assert messages_of(queue).index().total == ROWS
    lease = queue.group().lease("w", max_messages=2 * ROWS)
    assert sorted(bytes(m.value).decode() for m in lease.messages) == numbered(ROWS)


def test_a_stream_over_a_store_that_fails_often_delivers_each_message_once(
    spark: Any, queue: Queue, proxy: FaultyStore, tmp_path: Path
) -> None:
    """In several batches, which it settles here and there."""
    proxy.often(0.03, 1)
    queue.publish(numbered(ROWS))
    seen: list[str] = []
    sizes = {"maxMessagesPerTrigger": "16", "minPartitions": "2"}
    stream = Stream(spark, through(queue, proxy), tmp_path / "checkpoint", **sizes)

    def process(batch: Any, lease: Any) -> None:
        seen.extend(values(batch))
        lease.ack(batch.where("sequence % 2 = 0"))

    stream.settle_with(process)
    assert sorted(seen) == numbered(ROWS)
    assert queue.group("g").stats().acked == ROWS
    check(queue)
    assert proxy.met() > 0


def run_worker(path: str, home: Path, variables: Mapping[str, str]) -> str:
    """Run ``jobs/worker.py`` with the handler in mine.py on what is due. Return what it says."""
    (home / "conf").mkdir()  # without the packages of the repository's conf/
    own = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "SPARK_CONF_DIR": str(home / "conf"),
    }
    done = subprocess.run(
        [
            sys.executable, ROOT / "jobs" / "worker.py", "--queue", path, "--group", "g",
            "--handler", "mine:process", "--checkpoint", home / "checkpoint",
            "--trigger", "available-now",
        ],
        cwd=home, env={**os.environ, **own, **variables}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout + done.stderr


@pytest.mark.only_on("versitygw")
def test_credentials_come_from_the_environment_of_the_driver(
    remote: RemoteStore, queue: Queue, tmp_path: Path
) -> None:
    """A job as people start it: neither the queue's path nor an option holds a secret, and its
    executors have them all the same.
    """
    queue.publish(numbered(ROWS))
    (tmp_path / "mine.py").write_text(HANDLER)
    said = run_worker(queue.path, tmp_path, context_of(queue).storage_options)
    stats = queue.group("g").stats()
    assert (stats.acked, stats.dead) == (ROWS - 1, 1)
    assert remote.secret not in said
