"""From queue to queue: each message lands once across a crash of its batch at any point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from support.harness import Death, Stream, forget_last_commit, make_queue, numbered
from support.marks import slow_but
from support.tables import messages_of

from spark_mq import Queue
from spark_mq.errors import InvalidOption

PLACES = ("before the write", "after the write", "after the publish", "after the ack")


@pytest.fixture
def target(tmp_path: Path) -> Queue:
    return make_queue(tmp_path / "target")


def landed(target: Queue) -> list[str]:
    index = messages_of(target).index()
    slices = index.slices(0, index.last_sequence)
    tables = [table for _, table in messages_of(target).read(slices, ["value"])]
    return sorted(value.decode() for table in tables for value in table["value"].to_pylist())


def write(batch: Any, lease: Any, target: Queue, **options: str) -> None:
    writer = batch.select("value").write.format("spark_mq").mode("append")
    writer.options(**lease.publish_options, **options).save(target.path)


@pytest.mark.parametrize("moment", slow_but({"after the write", "after the publish"}, PLACES))
def test_a_crash_at_any_point_publishes_each_message_once(
    stream: Stream, queue: Queue, target: Queue, moment: str
) -> None:
    queue.publish(numbered(5))
    receipts: list[Any] = []

    def process(batch: Any, lease: Any) -> None:
        dies = len(receipts) == 0
        if dies and moment == "before the write":
            receipts.append(None)
            raise Death(moment)
        write(batch, lease, target)
        if dies and moment == "after the write":
            receipts.append(None)
            raise Death(moment)
        receipts.append(lease.publish(target, ["done"]))
        if dies and moment == "after the publish":
            raise Death(moment)

    if moment == "after the ack":
        stream.settle_with(process)
        forget_last_commit(stream.checkpoint)
    else:
        with pytest.raises(StreamingQueryException):
            stream.settle_with(process)
    stream.settle_with(process)
    assert landed(target) == [*numbered(5), "done"]
    assert stream.group.stats().acked == 5
    if moment == "after the publish":
        assert [receipt.duplicate for receipt in receipts] == [False, True]
        assert receipts[0].sequences == receipts[1].sequences


def test_batches_and_streams_have_numbers_of_their_own(
    spark: Any, queue: Queue, target: Queue, tmp_path: Path
) -> None:
    for number in range(2):
        for _ in range(2):
            queue.publish(numbered(2))
        relay = Stream(spark, queue, tmp_path / f"checkpoint-{number}", maxMessagesPerTrigger="2")
        relay.settle_with(lambda batch, lease: write(batch, lease, target))
    assert landed(target) == sorted(4 * numbered(2))


def test_a_second_write_of_a_batch_is_an_error_unless_it_is_another_part(
    stream: Stream, queue: Queue, target: Queue
) -> None:
    """Else the target would take it for a replay, and the messages would be acked unpublished."""
    queue.publish(numbered(2))

    def process(batch: Any, lease: Any) -> None:
        write(batch, lease, target)
        with pytest.raises(
            Exception, match=r"this batch has published to .* already.*producerPart"
        ):
            write(batch, lease, target)
        write(batch, lease, target, producerPart="copy")
        lease.publish(target, ["one"])
        with pytest.raises(InvalidOption, match=r"this batch has published to .* already.*part="):
            lease.publish(target, ["two"])
        lease.publish(target, ["two"], part="two")

    stream.settle_with(process)
    assert landed(target) == sorted([*numbered(2), *numbered(2), "one", "two"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"producerId": "p"}, "producerId needs 'producerSequence' too"),
        ({"producerId": "p", "producerSequence": "-1"}, "producerSequence='-1' is not a number"),
        ({"producerId": "a b", "producerSequence": "1"}, "producerId"),
    ],
)
def test_bad_numbers_are_refused_before_any_job(
    spark: Any, target: Queue, options: dict[str, str], message: str
) -> None:
    writer = spark.range(1).selectExpr("CAST(id AS STRING) AS value").write.format("spark_mq")
    with pytest.raises(Exception, match=message):
        writer.mode("append").options(**options).save(target.path)
    assert landed(target) == []
