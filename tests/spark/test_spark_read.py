"""``lease.read()``: what a batch's lease holds, read by Spark itself, is what the stream gives
through Python.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from both_readers import read_twice
from pyspark.errors import StreamingQueryException
from support.harness import Stream, add_foreign_file, configured, make_queue, numbered, values
from support.limits import Limits
from support.marks import slow
from support.tables import messages_of

from spark_mq import Message, Queue
from spark_mq.errors import CorruptLog


def foreign(queue: Queue, name: str, texts: list[str]) -> None:
    values = pa.array([text.encode() for text in texts])
    add_foreign_file(queue, name, pa.table({"value": values}))


def test_it_gives_the_rows_that_the_batch_gives(spark: Any, tmp_path: Path) -> None:
    """Of our own files and of foreign ones, of whole files and of scattered messages.

    At a path that a glob would take for others.
    """
    queue = make_queue(tmp_path / ".a" / "_b {queue}, of all? éè*", visibility_timeout="1h")
    own = Message(b"\x00\xff", key="k", headers={"a": "b", "n": ""}, message_id="m-1")
    queue.publish([own, Message("plain")])
    queue.publish([Message(f"n{i}", key=str(i)) for i in range(300)])
    foreign(queue, "part-1.parquet", ["x", "", "z"])
    options = {"maxMessagesPerTrigger": "200", "workerId": "w", "visibilityTimeout": "45m"}
    stream = Stream(spark, queue, tmp_path / "checkpoint", **options)
    first = stream.group.lease("other", max_messages=305)
    first.nack([m.sequence for m in first.messages[::7]], error='it\'s "bad"\n')
    first.release()
    batches = read_twice(stream, by_spark=True, read=True)
    assert len(batches) > 1
    rows = [row for batch in batches for row in batch]
    assert len(rows) == 305
    assert {row.delivery_count for row in rows} == {1, 2}
    assert {row.error for row in rows} == {None, 'it\'s "bad"\n'}
    assert stream.group.stats().acked == 305


@pytest.mark.slow
@pytest.mark.parametrize(("settled", "acked"), [(3, 6), (10, 0)], ids=["some", "all"])
def test_what_is_settled_by_then_is_not_in_it_and_returned_rows_of_it_settle(
    stream: Stream, queue: Queue, settled: int, acked: int
) -> None:
    queue.publish(numbered(10))
    seen: list[list[str]] = []

    def process(batch: Any, lease: Any) -> Any:
        lease.reject(batch.where(f"CAST(value AS STRING) < '{settled:03}'"), error="never")
        mine = lease.read()
        seen.append(values(mine))
        return mine.where("CAST(value AS STRING) = '009'").selectExpr(
            "sequence", "'reject' AS outcome", "'late' AS error"
        )

    stream.settle_with(process)
    assert seen == [numbered(10)[settled:]]
    assert (stream.group.stats().acked, stream.group.stats().dead) == (acked, 10 - acked)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        *([name] for name in ("a b.parquet", "ü.parquet", "50%20.parquet", "_a", ".a")),
        ["a._COPYING_"],
        ["x/a.parquet", "y/a.parquet"],
    ],
)
def test_files_that_spark_would_tell_by_other_names_are_read_through_python(
    stream: Stream, queue: Queue, names: list[str]
) -> None:
    """A name that is not found again would be messages lost."""
    for at, name in enumerate(names):
        Path(messages_of(queue).path, name).parent.mkdir(exist_ok=True)
        foreign(queue, name, numbered(6)[3 * at : 3 * at + 3])
    (rows,) = read_twice(stream, by_spark=False, read=True)
    assert len(rows) == 3 * len(names)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["read_slices", "read_slices_of_file"])
def test_a_lease_in_very_many_pieces_is_read_through_python(
    stream: Stream, queue: Queue, limit: str, limits: Limits
) -> None:
    queue.publish(numbered(20))
    taken = stream.group.lease("other", max_messages=20)
    taken.nack([m.sequence for m in taken.messages[::2]])
    taken.ack()
    limits(**{limit: 9})
    (rows,) = read_twice(stream, by_spark=False, read=True)
    assert len(rows) == 10


@pytest.mark.parametrize("damage", ["missing", slow("shorter")])
def test_a_file_that_is_not_as_its_commit_says_is_an_error_whatever_the_session_would_skip(
    spark: Any, stream: Stream, queue: Queue, damage: str
) -> None:
    queue.publish(numbered(5))
    errors: list[Exception] = []

    def process(batch: Any, lease: Any) -> None:
        (path,) = Path(messages_of(queue).path).glob("*.parquet")
        if damage == "missing":
            path.unlink()
        else:
            pq.write_table(pq.read_table(path, partitioning=None).slice(0, 4), path)
        try:
            lease.read()
        except CorruptLog as error:
            errors.append(error)

    with configured(spark, "spark.sql.files.ignoreMissingFiles", "true"):
        stream.settle_with(process)
    assert ("is missing" if damage == "missing" else "fewer than its commit says") in str(errors[0])


def test_a_flipped_bit_is_found_not_delivered(spark: Any, stream: Stream, queue: Queue) -> None:
    queue.publish(["rich", "poor"])
    seen: list[str] = []

    def process(batch: Any, lease: Any) -> None:
        (path,) = Path(messages_of(queue).path).glob("*.parquet")
        path.write_bytes(path.read_bytes().replace(b"poor", b"pOor"))
        seen.extend(values(lease.read()))

    with (
        configured(spark, "spark.sql.files.ignoreCorruptFiles", "true"),
        pytest.raises(StreamingQueryException),
    ):
        stream.settle_with(process)
    assert not seen
    assert stream.group.stats().acked == 0
