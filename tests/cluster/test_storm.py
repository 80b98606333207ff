"""Two stream workers on a cluster whose executors and Python workers are killed in mid-task, beside
processes good and bad.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from spark_cluster import Cluster, kill
from support.checker import between, check_queue, history, published
from support.handles import until
from support.harness import Stream
from support.processes import SHORT, SPAWN, chores, consume, crash, idle, never_ack, publish
from support.processes import start as start_process

from spark_mq import Queue

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WORK = 0.02
"""Seconds that a message takes: what a killed executor is in the middle of."""


def working(home: Path) -> Callable[[Iterator[Any]], Iterator[tuple[str, int, int]]]:
    """A function for ``rdd.mapPartitions`` that takes its time.

    While it runs, a file is named after its process.
    """

    def work(rows: Iterator[Any]) -> Iterator[tuple[str, int, int]]:
        me = home / str(os.getpid())
        me.touch()
        try:
            for row in rows:
                time.sleep(WORK)
                yield row.lease_id, row.sequence, row.delivery_count
        finally:
            me.unlink(missing_ok=True)

    return work


class Worker:
    """One streaming query, and what its batches were made of."""

    def __init__(self, spark: Any, queue: Queue, home: Path, name: str) -> None:
        self.at_work = home / f"{name} at work"
        self.at_work.mkdir()
        self.batches = 0
        self.seen: list[tuple[str, int, int]] = []
        options = {"minPartitions": "4", "maxMessagesPerTrigger": "60", "visibilityTimeout": "2s"}
        stream = Stream(spark, queue, home / name, group="default", workerId=name, **options)
        each = stream.group.for_each_batch(self.process)
        self.query = stream.start(each, available_now=False)

    def process(self, batch: Any, lease: Any) -> None:
        rows = batch.rdd.mapPartitions(working(self.at_work)).collect()
        self.seen += rows
        self.batches += 1
        lease.reject(batch.where("sequence % 17 = 0"), error="of no use")


def kill_in_mid_task(cluster: Cluster, workers: list[Worker], times: int) -> None:
    """SIGKILL to executors and to Python workers in turn, each while it works on a task of a batch,
    and no batch twice.
    """
    for n in range(times):
        victim, of_executor = workers[n // 2 % len(workers)], n % 2 == 0
        batches = victim.batches

        def killed(
            victim: Worker = victim, of_executor: bool = of_executor, batches: int = batches
        ) -> bool:
            # Spark gives a task up after some failures, and that is not what is looked for.
            if victim.batches == batches:
                return False
            for path in victim.at_work.iterdir():
                pid = int(path.name)
                path.unlink(missing_ok=True)  # what is killed leaves it behind
                executor = cluster.executor_of(pid)
                if executor is not None and kill(executor if of_executor else pid):
                    return True
            return False

        until(killed, "a task to kill")


@pytest.mark.parametrize(
    "kills", [pytest.param(4, id="short"), pytest.param(14, id="long", marks=pytest.mark.slow)]
)
def test_nothing_is_lost_or_owned_twice_while_executors_are_killed(
    cluster: Cluster, spark: Any, tmp_path: Path, kills: int
) -> None:
    settings = {**SHORT, "retry_delay": "0s", "max_tracked_ranges": 10_000}
    queue = Queue.create(tmp_path / "queue", **settings)
    stop, enough = SPAWN.Event(), SPAWN.Event()
    processes = [start_process(publish, queue.path, {}, size, enough) for size in (7, 12)]
    processes += [start_process(target, queue.path, {}, stop) for target in (chores, consume)]
    bad = [start_process(never_ack, queue.path, {}, 3), start_process(crash, queue.path, {})]
    workers = [Worker(spark, queue, tmp_path, name) for name in ("one", "two")]
    try:
        kill_in_mid_task(cluster, workers, kills)
        for process in bad:
            process.join(120)
        enough.set()
        until(lambda: idle(queue), "all is settled")
        ended = [worker for worker in workers if not worker.query.isActive]
        assert not ended, "a killed executor is no reason for a query to end"
    finally:
        enough.set()
        stop.set()
        for worker in workers:
            worker.query.stop()
        for process in processes:
            process.join(60)
    queue.sweep()
    found = check_queue(queue.path, skew=timedelta(seconds=0.1), drained=["default"])
    assert found.wrong == []
    print(kills, "kills:", dict(found.counts))
    check_rows(queue, workers)


def check_rows(queue: Queue, workers: list[Worker]) -> None:
    """What reached a batch's function is what its lease holds, each message once, with its count,
    however often its tasks were run.
    """
    rows = [row for worker in workers for row in worker.seen]
    assert rows, "the stream workers had a share of the work"
    distinct = {(lease, sequence) for lease, sequence, _ in rows}
    assert len(distinct) == len(rows), "a message came twice in one batch"
    sequences = published(queue.path)
    leased: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for event in history(queue.path):
        if event["event"] == "leased":
            held = between(sequences, event["first"], event["last"])
            leased[event["lease_id"]] |= {(seq, event["delivery_count"]) for seq in held}
    for lease in {lease for lease, _, _ in rows}:
        assert {(seq, count) for id_, seq, count in rows if id_ == lease} == leased[lease]
