"""What a batch read gives to Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.handles import again, housekeep
from support.harness import make_queue
from support.limits import Limits
from support.tables import ledgers_of

from spark_mq import InvalidSchema, Message, Queue
from spark_mq.spark import SparkMQDataSource
from spark_mq.testing import ManualClock


def reader_of(queue: Queue | list[Queue], **options: Any) -> Any:
    path = json.dumps([one.path for one in queue]) if isinstance(queue, list) else queue.path
    given = {name: str(value) for name, value in options.items()}
    source = SparkMQDataSource({"path": path, "consumerGroup": "billing", **given})
    return source.reader(source.schema())  # type: ignore[arg-type]


def pieces_read(reader: Any) -> list[list[Any]]:
    """Return the slices that each task would read."""
    return [[piece for piece, _ in part.pieces] for part in reader.partitions()]


def rows_of(reader: Any) -> list[dict[str, Any]]:
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_batch_has_at_least_min_partitions_of_nearly_equal_size_in_order(tmp_path: Path) -> None:
    sizes = {"one": [1, 40, 7], "two": [13], "none": []}
    queues = [make_queue(tmp_path / name) for name in sizes]
    for queue, counts in zip(queues, sizes.values(), strict=True):
        queue.group("billing").ensure()
        for count in counts:
            queue.publish([f"{n}" for n in range(count)])
    for at_least in (*range(1, 31), 60, 61, 62, 100):
        parts = reader_of(queues, minPartitions=at_least).partitions()
        assert min(at_least, 61) <= len(parts) <= at_least + 1
        for queue, counts in zip(queues, sizes.values(), strict=True):
            mine = [part.pieces for part in parts if part.queue == queue.path]
            rows = [sum(piece.rows for piece, _ in pieces) for pieces in mine]
            assert not rows or max(rows) - min(rows) <= 1
            assert 0 not in rows
            read = [piece.first + n for pieces in mine for piece, _ in pieces
                    for n in range(piece.rows)]  # fmt: skip
            published = [(version << 32) + n for version, count in enumerate(counts, 1)
                         for n in range(count)]  # fmt: skip
            assert read == published


def test_a_large_batch_has_partitions_of_limited_rows_and_bytes(
    tmp_path: Path, limits: Limits
) -> None:
    queue = make_queue(tmp_path / "orders")
    queue.group("billing").ensure()
    queue.publish(["x"] * 40)
    ((whole,),) = pieces_read(reader_of(queue))
    limits(partition_rows=10)
    assert len(pieces_read(reader_of(queue))) == 4
    limits(partition_rows=100, partition_bytes=-(-whole.size // 8))
    assert len(pieces_read(reader_of(queue))) == 8


def test_a_task_reads_a_large_partition_in_small_batches(tmp_path: Path) -> None:
    queue = make_queue(tmp_path / "orders")
    queue.group("billing").ensure()
    queue.publish([f"{n}" for n in range(25_000)])
    reader = reader_of(queue)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert max(batch.num_rows for batch in batches) <= 10_000
    read = [int(value) for batch in batches for value in batch["value"].to_pylist()]
    assert read == list(range(25_000))


# -- messages that have ended


ENDED = {
    "acked": (1, 0, None, None),
    "dead_lettered": (2, 1, "rejected", "no customer"),
    "dropped": (1, 0, "requested", None),
    "skipped": (0, 0, None, None),
    "expired": (0, 0, None, None),
}
"""The deliveries, failures, reason and error of a message that ended in each way."""


@pytest.fixture
def ended(tmp_path: Path) -> Queue:
    """A queue with a message for each outcome, and two that are waiting and unread."""
    clock = ManualClock(datetime.now(UTC))
    queue = make_queue(tmp_path / "orders", clock=clock, retry_delay=0)
    group = queue.group("billing")
    for name in ("acked", "dead_lettered", "dropped"):
        queue.publish(name)
    lease = group.lease("w", max_messages=3)
    acked, bad, dropped = (message.sequence for message in lease.messages)
    lease.nack([bad], error="first")
    lease.ack([acked])
    group.discard([dropped], force=True)
    group.lease("w").reject(error="no customer")
    queue.sweep()  # a seek skips messages that are dead, too
    queue.publish(Message("expired", expires_at=timedelta(seconds=5)))
    clock.advance("1m")
    group.expire()
    queue.publish("skipped")
    group.seek("latest")
    queue.publish(["available", "unread"])
    group.lease("w").nack(delay="1h")
    return queue


COLUMNS = ("state", "delivery_count", "failure_count", "reason", "error")


def seen(queue: Queue) -> dict[str, tuple[Any, ...]]:
    """Return the state of each message by its value, with the counts, the reason and the error."""
    return {
        row["value"].decode(): tuple(row[name] for name in COLUMNS)
        for row in rows_of(reader_of(queue))
    }


def test_a_read_shows_how_each_message_ended_also_once_a_sweep_has_cleaned(ended: Queue) -> None:
    expected = {name: (name, *kept) for name, kept in ENDED.items()}
    expected["available"] = ("available", 1, 1, None, None)
    expected["unread"] = ("unread", 0, 0, None, None)
    for _ in range(2):
        assert seen(ended) == expected
        # A sweep archives the events. Its cleaning drops the commits that had them.
        for _ in range(20):
            ended.group("other").configure(max_in_flight=1)
            ended.group("other").configure(max_in_flight=2)
        housekeep(ended, keep_versions=1, keep_seconds=0)
    assert list(ledgers_of(again(ended)).commits(1, 10)) == []
    assert seen(again(ended)) == expected


def test_a_seek_back_makes_ended_messages_unread_again(ended: Queue) -> None:
    ended.group("billing").seek("earliest")
    ended.group("billing").lease("w").ack()
    shown = seen(ended)
    assert shown["acked"][:2] == ("acked", 1)
    assert {shown[name][0] for name in ("dead_lettered", "dropped", "skipped")} == {"unread"}


def test_a_group_of_the_same_name_does_not_show_the_ends_of_the_one_before(ended: Queue) -> None:
    ended.sweep()
    ended.drop_group("billing")
    ended.group("billing", start="latest").ensure()
    assert {state for state, *_ in seen(ended).values()} == {"settled"}


def test_neighbours_that_ended_alike_are_one_range_across_commits(tmp_path: Path) -> None:
    queue = make_queue(tmp_path / "orders")
    sequences = [s for n in range(4) for s in queue.publish([f"{n}a", f"{n}b"]).sequences]
    group = queue.group("billing", start=sequences[1])
    for _ in range(4):
        group.lease("w").ack()
    group.discard(sequences[5])
    group.lease("w")
    pieces = [r for part in reader_of(queue).partitions() for _, r in part.pieces]
    assert [(r.state, r.message_count) for r in sorted(set(pieces))] == [
        ("settled", 1), ("acked", 4), ("dropped", 1), ("leased", 1), ("unread", 1),
    ]  # fmt: skip


# -- the option outcomes


def test_messages_without_a_known_outcome_are_among_the_outcomes(ended: Queue) -> None:
    ended.group("late", start="latest").ensure()
    rows = rows_of(reader_of(ended, outcomes=True))
    assert {row["outcome"] for row in rows} == set(ENDED), "and no others"
    rows = rows_of(reader_of(ended, consumerGroup="late", outcomes=True))
    shown = [(row["state"], row["outcome"], row["settled_at"]) for row in rows]
    assert shown == [("settled", None, None)] * 7


def test_the_outcomes_of_several_queues_are_read_together(tmp_path: Path) -> None:
    queues = [make_queue(tmp_path / name) for name in ("orders", "returns")]
    for queue in queues:
        queue.publish("a")
        queue.group("billing").lease("w").ack()
    reader = reader_of(queues, outcomes=True)
    assert reader.schema.names[-3:] == ["queue", "outcome", "settled_at"]
    ends = [(row["queue"], row["outcome"]) for row in rows_of(reader)]
    assert sorted(ends) == sorted((queue.path, "acked") for queue in queues)


def test_the_columns_of_outcomes_need_the_option(tmp_path: Path) -> None:
    given = {"path": str(tmp_path), "consumerGroup": "billing"}
    schema: Any = SparkMQDataSource({**given, "outcomes": "true"}).schema()
    with pytest.raises(InvalidSchema, match=r"'outcome' to read.*The option outcomes"):
        SparkMQDataSource(given).reader(schema)
