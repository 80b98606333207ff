"""Tasks whose first attempt is slow, frozen or killed, wherever spark_mq runs on executors: another
does it, and it counts once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gates import PATIENCE, Gate, rows_at
from pyspark.sql import functions as F
from spark_cluster import Cluster, kill
from support.checker import published
from support.handles import take_all, until
from support.harness import Stream, finish, make_queue, numbered, start
from support.having import having
from support.marks import slow
from support.tables import group_ledger_of, messages_of

from spark_mq import Queue

ROWS = 40
FATES = ("slow", slow("frozen"), slow("worker killed"), "executor killed")


@dataclass(frozen=True)
class Here:
    """What each test needs: the cluster, a session on it, a queue, a gate and a directory."""

    cluster: Cluster
    spark: Any
    queue: Queue
    gate: Gate
    home: Path


@pytest.fixture(scope="module", params=FATES)
def fate(request: pytest.FixtureRequest) -> str:
    """Of the module: so tests of one fate follow each other, and the executors killed are started
    while the next is killed.
    """
    return str(request.param)


@pytest.fixture
def here(cluster: Cluster, spark: Any, tmp_path: Path) -> Here:
    (tmp_path / "gate").mkdir()
    return Here(cluster, spark, make_queue(tmp_path / "queue"), Gate(tmp_path / "gate"), tmp_path)


def meets(here: Here, fate: str, job: Callable[[], Any]) -> Any:
    """Runs a job whose first task meets its fate at the gate, and returns what the job did.

    A second attempt has run then.
    """
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(job)
        until(lambda: here.gate.seen() or done.done(), "the task came to the gate")
        assert here.gate.seen() or done.result()
        worker = here.gate.seen()[0]
        executor = here.cluster.executor_of(worker)
        assert executor is not None
        if fate == "worker killed":
            kill(worker)
        elif fate == "executor killed":
            kill(executor)
        elif fate == "frozen":
            kill(executor, signal.SIGSTOP)
        try:
            result = done.result(PATIENCE)
        finally:
            here.gate.open()
            kill(executor, signal.SIGCONT)
    assert len(here.gate.seen()) > 1, "a second attempt did the work"
    return result


def test_a_task_that_reads_is_run_again_and_each_row_comes_once(here: Here, fate: str) -> None:
    receipt = here.queue.publish(numbered(ROWS))
    stream = Stream(here.spark, here.queue, here.home / "checkpoint", minPartitions="4")
    batches: list[list[tuple[int, str, str]]] = []

    def process(batch: Any, lease: Any) -> None:
        batches.append(batch.rdd.mapPartitions(rows_at(here.gate)).collect())

    meets(here, fate, lambda: stream.settle_with(process))
    (rows,) = batches
    published = list(zip(receipt.sequences, numbered(ROWS), strict=True))
    assert sorted((sequence, value) for sequence, _, value in rows) == published
    assert len({lease for _, lease, _ in rows}) == 1
    assert stream.group.stats() == having(acked=ROWS, leased=0)


def test_rows_are_settled_once_whatever_becomes_of_the_task_that_names_them(
    here: Here, fate: str
) -> None:
    receipt = here.queue.publish(numbered(ROWS))
    stream = Stream(here.spark, here.queue, here.home / "checkpoint", minPartitions="4")
    gate = here.gate
    odd = F.udf(lambda sequence: gate.arrive() or sequence % 2 == 1, "boolean")
    settled: list[int] = []

    def process(batch: Any, lease: Any) -> None:
        settled.append(lease.reject(batch.where(odd("sequence")), error="odd").settled)

    meets(here, fate, lambda: stream.settle_with(process))
    assert settled == [ROWS // 2]
    ranges = [r for r in group_ledger_of(stream.group).current() if r.state == "dead"]
    dead = {seq for r in ranges for seq in range(r.first, r.last + 1)}
    assert dead == {seq for seq in receipt.sequences if seq % 2}
    assert stream.group.stats().acked == ROWS // 2


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_a_publish_lands_once_whatever_becomes_of_a_task_that_has_written_its_file(
    here: Here, streaming: bool, fate: str
) -> None:
    def job() -> None:
        publish(here, here.gate, streaming)

    meets(here, fate, job)
    assert len(published(here.queue.path)) == ROWS
    assert taken(here.queue) == numbered(ROWS)
    known = messages_of(here.queue).index().files
    assert len(files(here.queue)) > len(known), "the first attempt's file lies there, unpublished"


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_a_publish_whose_task_dies_each_time_publishes_nothing(here: Here, streaming: bool) -> None:
    before = messages_of(here.queue).index().version
    always = Gate(here.gate.home, attempts=100)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(publish, here, always, streaming)
        killed: set[int] = set()
        while not done.done():
            until(lambda: done.done() or set(here.gate.seen()) - killed, "another attempt")
            for worker in set(here.gate.seen()) - killed:
                kill(worker)
                killed.add(worker)
        assert done.exception() is not None
    assert len(killed) >= 4, "as often as Spark tries a task"
    assert files(here.queue)
    assert messages_of(here.queue).index().version == before
    assert taken(here.queue) == []
    here.gate.open()
    publish(here, always, streaming)
    assert taken(here.queue) == numbered(ROWS), "the same call once more, with the same checkpoint"


def publish(here: Here, gate: Gate, streaming: bool) -> None:
    """Publishes numbered(ROWS) in four tasks."""
    # Makes the session this thread's: elsewhere Spark does not find the format of a write.
    here.spark.createDataFrame([], "none INT")
    options = {"gate": str(gate.home), "attempts": str(gate.attempts)}
    if not streaming:
        rows = here.spark.range(ROWS, numPartitions=4)
        rows = rows.select(F.format_string("%03d", "id").alias("value"))
        rows.write.format("gated").mode("append").options(**options).save(here.queue.path)
        return
    lines = here.home / "lines"
    if not lines.exists():
        lines.mkdir()
        for part in range(4):
            (lines / f"{part}").write_text("\n".join(numbered(ROWS)[part::4]))
    frame = here.spark.readStream.text(str(lines)).repartition(4)
    writer = frame.writeStream.format("gated").options(**options).option("path", here.queue.path)
    finish(start(writer, here.home / "publishing"))


def files(queue: Queue) -> list[Path]:
    """The data files that lie in messages/, published or not."""
    return list(Path(queue.path, "messages").glob("*.parquet"))


def taken(queue: Queue) -> list[str]:
    return sorted(take_all(queue.group("check")))
