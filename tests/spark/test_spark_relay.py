"""From queue to queue: each message lands once across a crash of its batch at any point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from support.harness import Death, Stream, make_queue, numbered
from support.marks import slow
from support.sinks import values

from spark_mq import Queue
from spark_mq.errors import InvalidOption


@pytest.fixture
def target(tmp_path: Path) -> Queue:
    return make_queue(tmp_path / "target")


def write(batch: Any, lease: Any, target: Queue, **options: str) -> None:
    writer = batch.select("value").write.format("spark_mq").mode("append")
    writer.options(**lease.publish_options, **options).save(target.path)


@pytest.mark.parametrize("moment", ["after the write", slow("after the publish")])
def test_a_crash_at_any_point_publishes_each_message_once(
    stream: Stream, queue: Queue, target: Queue, moment: str
) -> None:
    queue.publish(numbered(5))
    receipts: list[Any] = []

    def process(batch: Any, lease: Any) -> None:
        dies = len(receipts) == 0
        write(batch, lease, target)
        if dies and moment == "after the write":
            receipts.append(None)
            raise Death(moment)
        receipts.append(lease.publish(target, ["done"]))
        if dies:
            raise Death(moment)

    with pytest.raises(StreamingQueryException):
        stream.settle_with(process)
    stream.settle_with(process)
    assert values(target.path) == [*numbered(5), "done"]
    assert stream.group.stats().acked == 5
    if moment == "after the publish":
        assert [receipt.duplicate for receipt in receipts] == [False, True]
        assert receipts[0].sequences == receipts[1].sequences


@pytest.mark.slow
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
        with pytest.raises(InvalidOption, match="of type object"):
            lease.publish(target, [object()])  # so this call has published nothing
        lease.publish(target, ["one"])
        with pytest.raises(InvalidOption, match=r"this batch has published to .* already.*part="):
            lease.publish(target, ["two"])
        lease.publish(target, ["two"], part="two")

    stream.settle_with(process)
    assert values(target.path) == sorted([*numbered(2), *numbered(2), "one", "two"])
