"""Spark over queues whose paths change their spelling: streams, settles and sinks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.harness import Death, finish, make_queue, numbered, start, storage_options, values
from support.stores import RemoteStore

from spark_mq import Queue
from spark_mq.errors import InvalidOption
from spark_mq.spark import for_each_batch

pytestmark = pytest.mark.spark


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["one queue", "two"])
def paths(request: pytest.FixtureRequest, remote: RemoteStore) -> list[str]:
    return [remote.new_path() for _ in range(request.param)]


def make(remote: RemoteStore, paths: Sequence[str]) -> list[Queue]:
    return [make_queue(path, storage_options=remote.options) for path in paths]


def spelled(remote: RemoteStore, paths: Sequence[str]) -> list[str]:
    """Return the paths in another spelling, which on Azure also names the account."""
    return [remote.spellings(path)[-2] for path in paths]


def frame(spark: Any, remote: RemoteStore, paths: Sequence[str]) -> Any:
    options = storage_options(Queue.open(paths[0], storage_options=remote.options))
    path = paths[0] if len(paths) == 1 else json.dumps(paths)
    return spark.readStream.format("spark_mq").options(**options, consumerGroup="g").load(path)


def test_a_stream_continues_from_its_checkpoint_under_another_spelling(
    spark: Any, remote: RemoteStore, paths: list[str], tmp_path: Path
) -> None:
    queues = make(remote, paths)
    for queue in queues:
        queue.publish(numbered(3))
    seen: list[list[str]] = []

    def dies(batch: Any, number: int) -> None:
        seen.append(values(batch))
        raise Death

    def lives(batch: Any, number: int) -> None:
        seen.append(values(batch))

    first = frame(spark, remote, paths).writeStream.foreachBatch(dies)
    with pytest.raises(Exception, match="Death"):
        finish(start(first, tmp_path / "checkpoint"))
    for queue in queues:
        queue.publish(["later"])
    again = frame(spark, remote, spelled(remote, paths)).writeStream.foreachBatch(lives)
    finish(start(again, tmp_path / "checkpoint"))
    assert seen[:2] == [sorted(numbered(3) * len(paths))] * 2, "the batch ran again, as it was"
    assert seen[2:] == [["later"] * len(paths)]
    assert [queue.group("g").stats().acked for queue in queues] == [4] * len(paths)


@pytest.mark.slow
def test_a_function_settles_by_another_spelling_than_the_stream_s(
    spark: Any, remote: RemoteStore, paths: list[str], tmp_path: Path
) -> None:
    queues = make(remote, paths)
    target = make_queue(remote.new_path(), storage_options=remote.options)
    for queue in queues:
        queue.publish(numbered(4))
    open_ = [Queue.open(path, storage_options=remote.options) for path in spelled(remote, paths)]
    group, *others = (queue.group("g") for queue in open_)
    (same,) = spelled(remote, [target.path])

    def process(batch: Any, lease: Any) -> None:
        lease.ack(batch.where("CAST(value AS STRING) < '002'"))
        lease.publish(target, ["copy"])
        with pytest.raises(InvalidOption, match="has published to"):
            lease.publish(Queue.open(same, storage_options=remote.options), ["copy"])

    each = for_each_batch(group, process, more_groups=others, ack="manual")
    stream = frame(spark, remote, paths).writeStream.foreachBatch(each)
    finish(start(stream, tmp_path / "checkpoint"))
    stats = [queue.group("g").stats() for queue in queues]
    assert [(one.acked, one.leased) for one in stats] == [(2, 2)] * len(paths), (
        "what the function left is not acked by the commit"
    )
    assert target.describe().published == 1
