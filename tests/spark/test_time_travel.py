"""Spark's time travel and DESCRIBE HISTORY in the tables of a queue, within what the sweep
keeps.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.harness import configured, make_queue
from support.tables import fresh_log

from spark_mq import Queue

pytestmark = pytest.mark.delta
TABLES = ("messages", "leases", "commits", "history")


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """A queue whose leases/ has 40 versions, each an hour older than the next, and then was
    swept.
    """
    queue = make_queue(tmp_path / "queue", durable=False)
    group = queue.group("g")
    for number in range(10):
        queue.publish(str(number))
    while version(queue, "leases") < 39:
        group.lease("w", max_messages=1).release()
    queue.sweep()
    for name in TABLES:
        make_old(Path(queue.path, name))
    queue.sweep()
    return queue


def make_old(table: Path) -> None:
    """Let a month lie between two commits: far more than the last seconds that a sweep keeps."""
    commits = sorted(table.glob("_delta_log/*.json"), reverse=True)
    for age, path in enumerate(commits):
        then = commits[0].stat().st_mtime - age * 30 * 86_400
        os.utime(path, (then, then))


def version(queue: Queue, name: str) -> int:
    return fresh_log(queue, name).refresh().version


def read(spark: Any, queue: Queue, name: str, at: int) -> list[Any]:
    return spark.sql(f"SELECT * FROM delta.`{queue.path}/{name}` VERSION AS OF {at}").collect()


@pytest.mark.slow
def test_after_a_vacuum_spark_reads_every_kept_version_however_old_and_who_wrote_it(
    spark: Any, queue: Queue
) -> None:
    """Spark's own limit is the age of the commit.

    It must not be lower than what the sweep keeps.
    """
    # VACUUM lists the folders in 10,000 tasks otherwise.
    with configured(spark, "spark.sql.sources.parallelPartitionDiscovery.parallelism", "2"):
        for name in TABLES:
            spark.sql(f"VACUUM delta.`{queue.path}/{name}`")
    for name in TABLES:
        read(spark, queue, name, 0)
        read(spark, queue, name, version(queue, name))
    rows = spark.sql(f"DESCRIBE HISTORY delta.`{queue.path}/leases`").collect()
    assert [row.version for row in rows] == list(range(version(queue, "leases"), -1, -1))
    notes = {row.version: json.loads(row.userMetadata or "{}") for row in rows}
    for at in (5, 12, 20, 38):
        found = read(spark, queue, "leases", at)
        leased = [row for row in found if row.state == "leased"]
        assert found
        assert len(leased) == (notes[at]["operation"] == "lease")
        assert {row.lease_id for row in leased} <= {notes[at].get("lease_id")}
    leases = [note for note in notes.values() if note.get("operation") == "lease"]
    assert len(leases) > 10
    assert {(note["group"], note["worker_id"]) for note in leases} == {("g", "w")}
    assert queue.group("g").stats().ready == 10
    row = spark.createDataFrame([(b"more",)], "value BINARY")
    row.write.format("delta").mode("append").save(f"{queue.path}/messages")
    assert queue.group("g").stats().ready == 11
