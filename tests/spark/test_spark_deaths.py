"""Drivers that die or freeze at any step of a batch, and what their successors make of it (DESIGN
section 6).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from support import harness
from support.blocks import ROOT
from support.harness import (
    Death,
    Freezer,
    Sink,
    Stream,
    copy_checkpoint,
    finish,
    forget_last_commit,
    make_queue,
    numbered,
    session_with,
    until,
    values,
)
from support.marks import slow, slow_but
from support.order_checker import check_order_of_queue, keys_of
from support.tables import context_of, group_ledger_of

from spark_mq import Message, Queue
from spark_mq.ledger.ranges import LEASED
from spark_mq.spark.stream_reader import LeaseReader

# These classes go to Spark's Python workers, which cannot import test modules.
cloudpickle.register_pickle_by_value(__import__(__name__))
cloudpickle.register_pickle_by_value(harness)


class MortalReader(LeaseReader):
    """The source's reader, in a runner that dies where a file beside the queue says so.

    Once for each file.
    """

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        self._die("before lease")
        found = super().partitions(start, end)
        self._die("after lease")
        return found

    def _die(self, moment: str) -> None:
        marker = Path(self.options.paths[0] + "." + moment)
        if marker.exists():
            marker.unlink()
            raise RuntimeError(f"died {moment}")


@pytest.fixture(scope="session")
def mortal_spark(spark: Any) -> Any:
    """A session in which the source's runner can be made to die."""
    return session_with(spark, MortalReader)


@pytest.fixture
def mortal(mortal_spark: Any, queue: Queue, tmp_path: Path) -> Stream:
    return Stream(mortal_spark, queue, tmp_path / "checkpoint")


def die(queue: Queue, moment: str) -> None:
    """The next runner that comes to this moment dies there."""
    Path(queue.path + "." + moment).touch()


def killed(stream: Stream, each: Callable[[Any, int], None]) -> str:
    """Runs a query that is killed; returns what killed it."""
    query = stream.start(each)
    with pytest.raises(StreamingQueryException) as caught:
        finish(query)
    return str(caught.value)


DEATHS = ("before lease", "after lease", "before ack", "after ack")


@pytest.mark.parametrize("moment", slow_but({"after lease", "before ack"}, DEATHS))
def test_a_query_that_dies_and_restarts_loses_nothing_and_doubles_nothing(
    mortal: Stream, queue: Queue, moment: str
) -> None:
    queue.publish(numbered(4))
    sink, dying = Sink(), {moment}

    def process(batch: Any, lease: Any) -> None:
        sink.write(batch, lease)
        if "before ack" in dying:
            dying.clear()
            raise Death("between the sink and the ack")

    settling = mortal.group.for_each_batch(process, on_error="raise")

    def each(batch: Any, batch_id: int) -> None:
        settling(batch, batch_id)
        if "after ack" in dying:
            dying.clear()
            raise Death("after the ack")

    if moment.endswith("lease"):
        die(queue, moment)
    killed(mortal, each)
    states = {
        "before lease": (4, 0, 0),
        "after lease": (0, 4, 0),
        "before ack": (0, 4, 0),
        "after ack": (0, 0, 4),
    }
    stats = mortal.group.stats()
    assert (stats.ready, stats.leased, stats.acked) == states[moment], "died where it should"

    queue.publish(["004"])
    mortal.run(each)
    assert sink.values == numbered(5), "nothing lost, nothing twice"
    counts = {value: count for rows in sink.batches.values() for value, count in rows}
    # Only a lease that was taken over before the sink was written shows a second delivery there.
    assert counts == {**dict.fromkeys(numbered(4), 2 if moment == "after lease" else 1), "004": 1}
    assert sink.skipped == (1 if moment == "before ack" else 0)
    stats = mortal.group.stats()
    assert (stats.acked, stats.ready, stats.leased) == (5, 0, 0)


@pytest.mark.parametrize("moment", slow_but({"after lease"}, DEATHS[1:]))
def test_a_killed_query_of_an_ordered_group_keeps_its_keys_and_their_order(
    mortal_spark: Any, tmp_path: Path, moment: str
) -> None:
    queue = make_queue(tmp_path / "queue", lanes=8, order="key")
    mortal = Stream(mortal_spark, queue, tmp_path / "checkpoint", minPartitions="2")
    for part in range(2):
        queue.publish([Message(str(n), key=f"k{n % 6}") for n in range(part * 12, part * 12 + 12)])
    landed: list[tuple[str, int]] = []
    sink, dying = Sink(), {moment}

    def process(batch: Any, lease: Any) -> None:
        before = len(sink.batches)
        sink.write(batch, lease)
        if len(sink.batches) > before:
            landed.extend(
                (row.key, row.sequence) for row in batch.select("key", "sequence").collect()
            )
        if "before ack" in dying:
            dying.clear()
            raise Death("between the sink and the ack")

    settling = mortal.group.for_each_batch(process, on_error="raise")

    def each(batch: Any, batch_id: int) -> None:
        settling(batch, batch_id)
        if "after ack" in dying:
            dying.clear()
            raise Death("after the ack")

    if moment == "after lease":
        die(queue, moment)
    killed(mortal, each)
    held = [r for r in group_ledger_of(mortal.group).current() if r.state == LEASED]
    assert bool(held) == (moment != "after ack")
    other = mortal.group.lease("other", max_messages=100)
    landed.extend((m.key or "", m.sequence) for m in other.messages)
    other.ack()
    mortal.run(each)

    keys = {seq: key for seq, (key, _) in keys_of(queue.path).items()}
    assert sorted(landed) == sorted((key, seq) for seq, key in keys.items()), "each one once"
    for key in set(keys.values()):
        mine = [seq for of, seq in landed if of == key]
        assert mine == sorted(mine)
    assert mortal.group.stats().acked == 24
    queue.sweep()
    found = check_order_of_queue(queue.path, ["g"])
    assert found.wrong == []
    assert found.counts["holds"] >= 24


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


def test_a_replay_counts_as_a_delivery_before_its_rows_reach_user_code(
    mortal: Stream, queue: Queue
) -> None:
    queue.publish("a")
    die(queue, "after lease")
    killed(mortal, lambda batch, _: None)
    reported: list[tuple[int, int]] = []

    def process(batch: Any, lease: Any) -> None:
        (held,) = [
            r for r in group_ledger_of(mortal.group).current() if r.lease_id == lease.lease_id
        ]
        reported.extend((row.delivery_count, held.delivery_count) for row in batch.collect())

    mortal.settle_with(process)
    assert reported == [(2, 2)]


@pytest.mark.slow
def test_a_second_death_of_the_same_batch_isolates_its_messages(
    mortal: Stream, queue: Queue
) -> None:
    queue.publish(numbered(8))
    mortal.options["maxMessagesPerTrigger"] = "16"
    for _ in range(2):
        die(queue, "after lease")
        killed(mortal, lambda batch, _: None)
    sizes: list[tuple[int, set[int]]] = []
    sink = Sink()

    def process(batch: Any, lease: Any) -> None:
        sink.write(batch, lease)
        sizes.append((batch.count(), {row.delivery_count for row in batch.collect()}))

    mortal.settle_with(process)
    assert sum(size for size, _ in sizes) == 8
    assert max(size for size, _ in sizes) < 8, (
        "in pieces, so that one that kills its driver ends up alone"
    )
    assert {count for _, counts in sizes for count in counts} == {3}
    assert sink.values == numbered(8)
    assert mortal.group.stats().acked == 8


def test_a_replay_of_a_batch_that_was_empty_stays_empty(stream: Stream, queue: Queue) -> None:
    batches: list[tuple[int, list[str]]] = []
    stream.run(lambda batch, number: batches.append((number, values(batch))))
    queue.publish(numbered(3))
    forget_last_commit(stream.checkpoint)
    stream.run(lambda batch, number: batches.append((number, values(batch))))
    assert [rows for number, rows in batches if number == 0] == [[], []]
    assert [rows for number, rows in batches if number > 0] == [numbered(3)]
    assert stream.group.stats().acked == 3


@pytest.mark.slow
def test_a_replay_of_a_batch_that_another_worker_emptied_stays_empty(
    mortal: Stream, queue: Queue
) -> None:
    queue.publish(numbered(3))
    die(queue, "before lease")
    killed(mortal, lambda batch, _: None)
    rows: list[list[str]] = []
    mortal.run(lambda batch, _: rows.append(values(batch)))
    assert rows == [[], numbered(3)], "the logged batch is empty, the next one has it all"


def test_a_replay_whose_lease_was_taken_over_is_empty_and_fails_nothing(
    mortal_spark: Any, tmp_path: Path
) -> None:
    queue = make_queue(tmp_path / "queue", visibility_timeout="1s")
    stream = Stream(mortal_spark, queue, tmp_path / "checkpoint")
    queue.publish(numbered(3))
    die(queue, "after lease")
    killed(stream, lambda batch, _: None)
    other = until(
        lambda: stream.group.lease("other", max_messages=10, visibility_timeout="5m"),
        "the dead query's lease expired",
    )
    rows: list[list[str]] = []
    stream.settle_with(lambda batch, lease: rows.append(values(batch)))
    assert rows == []
    assert other.ack().settled == 3


@pytest.mark.slow
def test_a_row_that_was_nacked_before_the_sink_is_never_acked_by_a_replay(
    stream: Stream, queue: Queue
) -> None:
    queue.publish(numbered(3))
    sink, dying = Sink(), {"now"}

    def process(batch: Any, lease: Any) -> None:
        batch.persist()
        if dying:  # an API that fails this time, and not the next
            lease.nack(batch.where("CAST(value AS STRING) = '001'"), delay="1h")
            sink.write(batch.where("CAST(value AS STRING) <> '001'"), lease)
            dying.clear()
            raise Death("before the ack")
        sink.write(batch, lease)

    with pytest.raises(StreamingQueryException):
        stream.settle_with(process)
    stream.settle_with(process)
    assert sink.values == ["000", "002"]
    stats = stream.group.stats()
    assert (stats.acked, stats.delayed) == (2, 1)


@pytest.mark.delta
@pytest.mark.slow
def test_a_crash_between_a_delta_sink_and_the_ack_leaves_each_message_there_once(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(numbered(5))
    out, dying = str(tmp_path / "out"), {"now"}

    def process(batch: Any, lease: Any) -> None:
        batch.select("value", "delivery_count").write.format("delta").mode("append").options(
            **lease.delta_options
        ).save(out)
        if dying:
            dying.clear()
            raise Death("between the sink and the ack")

    with pytest.raises(StreamingQueryException):
        stream.settle_with(process)
    stream.settle_with(process)
    assert values(spark.read.format("delta").load(out)) == numbered(5)
    assert stream.group.stats().acked == 5


def test_a_query_that_was_stopped_acks_its_last_batch_when_it_starts_again(
    stream: Stream, queue: Queue
) -> None:
    queue.publish(numbered(3))
    freezer, seen = Freezer(), []

    def each(batch: Any, batch_id: int) -> None:
        seen.append(values(batch))
        freezer()

    query = stream.start(each, available_now=False)
    freezer.wait(query)
    assert stream.group.stats().leased == 3
    freezer.release.set()
    # Stopped right after Spark committed the batch: whether it has come to ask for the next is
    # chance.
    until(
        lambda: (
            (stream.checkpoint / "commits" / "0").exists()
            or (stream.checkpoint / "commits" / "1").exists()
        ),
        "the commit",
    )
    query.stop()
    stream.run(each)
    assert seen == [numbered(3)]
    assert stream.group.stats().acked == 3


# -- frozen drivers


@pytest.mark.parametrize(
    "successor_ends", [slow(False), True], ids=["successor at work", "successor done"]
)
def test_a_frozen_driver_that_wakes_after_its_successor_took_over_settles_nothing_and_ends(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path, successor_ends: bool
) -> None:
    queue.publish(numbered(3))
    frozen, at_work = Freezer(), Freezer()
    woken = stream.start(
        stream.group.for_each_batch(lambda batch, lease: frozen(), on_error="nack"),
        available_now=False,
    )
    frozen.wait(woken)

    successor = Stream(spark, queue, copy_checkpoint(stream.checkpoint, tmp_path / "copy"))
    rows: list[list[str]] = []

    def process(batch: Any, lease: Any) -> None:
        rows.append(values(batch))
        at_work()

    query = successor.start(successor.group.for_each_batch(process), available_now=False)
    at_work.wait(query)
    if successor_ends:
        at_work.release.set()
        until(lambda: stream.group.stats().acked == 3, "the successor acked")
    before = group_ledger_of(stream.group).current().ranges
    frozen.release.set()
    until(lambda: not woken.isActive, "the woken driver's query ended")
    assert "StreamFenced" in str(woken.exception())
    assert group_ledger_of(stream.group).current().ranges.equals(before), (
        "it settled nothing, and leased nothing"
    )
    at_work.release.set()
    until(lambda: stream.group.stats().acked == 3, "the successor acked")
    assert query.isActive
    assert rows == [numbered(3)]
    query.stop()


@pytest.mark.slow
def test_a_frozen_driver_leases_nothing_once_its_successor_is_ahead(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    """Its batch went well, but the successor has leased the next one meanwhile: there is only one
    owner of a checkpoint.
    """
    queue.publish(numbered(2))
    stream.options["maxMessagesPerTrigger"] = "1"
    frozen, at_work = Freezer(), Freezer()
    numbers = itertools.count()

    def each(batch: Any, batch_id: int) -> None:
        if next(numbers) == 0:
            frozen()

    woken = stream.start(each, available_now=False)
    frozen.wait(woken)
    successor = Stream(
        spark,
        queue,
        copy_checkpoint(stream.checkpoint, tmp_path / "copy"),
        maxMessagesPerTrigger="1",
    )
    batches: list[str] = []

    def process(batch: Any, lease: Any) -> None:
        batches.append(lease.lease_id)
        if len(batches) == 2:
            at_work()

    query = successor.start(successor.group.for_each_batch(process), available_now=False)
    at_work.wait(query)
    queue.publish("more to lease")
    before = group_ledger_of(stream.group).current().ranges
    frozen.release.set()
    until(lambda: not woken.isActive, "the woken driver's query ended")
    assert "StreamFenced" in str(woken.exception())
    assert group_ledger_of(stream.group).current().ranges.equals(before)


def test_a_frozen_driver_loses_its_lease_and_is_reported_so(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    """Its runner lives and extends the lease, but not for ever.

    That others have its messages is no reason to end.
    """
    receipt = queue.publish(numbered(3))
    stream = Stream(
        spark, queue, tmp_path / "checkpoint", visibilityTimeout="1s", maxLeaseDuration="2s"
    )
    frozen = Freezer()
    query = stream.start(
        stream.group.for_each_batch(lambda batch, lease: frozen()), available_now=False
    )
    frozen.wait(query)
    other = until(
        lambda: stream.group.lease("other", max_messages=10, visibility_timeout="5m"),
        "the lease ran out",
    )
    assert [message.sequence for message in other.messages] == list(receipt.sequences)
    assert {message.delivery_count for message in other.messages} == {2}
    frozen.release.set()
    queue.publish("after that")
    until(lambda: stream.group.ensure().stats().acked == 1, "the query went on")
    assert query.isActive
    assert other.ack().settled == 3
    query.stop()


# -- several workers


def test_a_lease_outlives_its_timeout_while_its_batch_is_worked_on(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(numbered(2))
    stream = Stream(spark, queue, tmp_path / "checkpoint", visibilityTimeout="1s")
    extended: list[bool] = []

    def process(batch: Any, lease: Any) -> None:
        at_first = batch.first().lease_expires_at
        until(
            lambda: (
                context_of(queue).clock() > at_first.astimezone()
                and _deadline(stream, lease) > _micros(at_first)
            ),
            "past its first deadline",
        )
        extended.append(stream.group.lease("other") is None)

    stream.settle_with(process)
    assert extended == [True]
    assert stream.group.stats().acked == 2


def _deadline(stream: Stream, lease: Any) -> int:
    return max(
        [
            r.expires_at or 0
            for r in group_ledger_of(stream.group).current()
            if r.lease_id == lease.lease_id
        ],
        default=0,
    )


def _micros(at: Any) -> int:
    return int(at.astimezone().timestamp() * 1_000_000)


@pytest.mark.slow
def test_two_workers_never_see_one_message_under_two_live_leases(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    for part in range(2):
        queue.publish(numbered(24)[part * 12 : part * 12 + 12])
    seen: list[str] = []
    live: list[set[str]] = []
    clashes: list[set[str]] = []
    met = threading.Barrier(2)

    def process(batch: Any, lease: Any) -> None:
        rows = set(values(batch))
        clashes.extend(rows & other for other in live if rows & other)
        live.append(rows)
        seen.extend(rows)
        if len(seen) <= 10:
            met.wait(harness.PATIENCE)  # the first batch of each: both leases are live now
        live.remove(rows)

    workers = [
        Stream(spark, queue, tmp_path / name, workerId=name, maxMessagesPerTrigger="5")
        for name in ("one", "two")
    ]
    for query in [
        worker.start(worker.group.for_each_batch(process, on_error="raise")) for worker in workers
    ]:
        finish(query)
    assert clashes == []
    assert sorted(seen) == numbered(24), "each one once"
    stats = queue.group("g").stats()
    assert (stats.acked, stats.leased) == (24, 0)


@pytest.mark.delta
@pytest.mark.slow
def test_two_workers_on_one_delta_sink_lose_no_batch_to_its_idempotence(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    """Both count their batches from 1: with a constant app id Delta would skip the second worker's,
    and they would be acked.
    """
    queue.publish(numbered(8))
    out = str(tmp_path / "out")
    workers = [
        Stream(spark, queue, tmp_path / name, maxMessagesPerTrigger="4") for name in ("one", "two")
    ]
    batches: list[dict[str, str]] = []

    def process(batch: Any, lease: Any) -> None:
        batches.append(lease.delta_options)
        batch.select("value").write.format("delta").mode("append").options(
            **lease.delta_options
        ).save(out)
        if len(batches) == 1:  # so that each of them has a batch 1
            finish(workers[1].start(workers[1].group.for_each_batch(process, on_error="raise")))

    workers[0].settle_with(process)
    assert [o["txnVersion"] for o in batches] == ["1", "1"]
    assert values(spark.read.format("delta").load(out)) == numbered(8)
    assert queue.group("g").stats().acked == 8


def test_a_checkpoint_that_was_rolled_back_ends_the_query_and_changes_nothing(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(numbered(2))
    stream.run(lambda batch, _: None)
    backup = copy_checkpoint(stream.checkpoint, tmp_path / "backup")
    queue.publish(["next"])
    stream.run(lambda batch, _: None)
    queue.publish(["and next"])
    before = harness.versions(queue)
    restored = Stream(spark, queue, backup)
    with pytest.raises(StreamingQueryException, match="StreamFenced"):
        restored.run(lambda batch, _: None)
    assert harness.versions(queue) == before
    assert queue.group("g").stats().ready == 1
