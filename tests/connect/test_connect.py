"""Over Spark Connect: publishing, looking, the stream, and settling from foreachBatch, whose
function runs beside the server.

What a function does shows in files and in the queue: it is a copy in another process.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import SessionNotSameException, StreamingQueryException
from support.handles import take_all, until
from support.harness import Stream, copy_checkpoint, look, make_queue, numbered, publish
from support.tables import group_ledger_of, messages_of

from spark_mq import Queue
from spark_mq import spark as of_spark
from spark_mq.spark import stop_query

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 12


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return make_queue(tmp_path / "queue")


@pytest.fixture
def stream(spark: Any, queue: Queue, tmp_path: Path) -> Stream:
    return Stream(spark, queue, tmp_path / "checkpoint")


def rows_of(batch: Any) -> list[tuple[str, int]]:
    return sorted(
        (bytes(row.value).decode(), row.delivery_count)
        for row in batch.select("value", "delivery_count").collect()
    )


def note(home: Path, what: Any) -> None:
    with (home / "noted").open("a") as file:
        file.write(json.dumps(what) + "\n")


def noted(home: Path) -> list[Any]:
    file = home / "noted"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < deadline, "it was never let go"
        time.sleep(0.05)


def test_a_dataframe_is_published_and_looked_at(spark: Any, queue: Queue) -> None:
    rows = spark.range(ROWS, numPartitions=3)
    publish(rows.selectExpr("format_string('%03d', id) AS value"), queue.path)
    queue.group("g").ensure()
    peek = look(spark, queue, consumerGroup="g")
    assert [row.state for row in peek.collect()] == ["unread"] * ROWS
    assert sorted(take_all(queue.group("check"))) == numbered(ROWS)
    assert len(messages_of(queue).index().files) == 3


def test_a_batch_is_settled_by_what_its_function_does_and_returns(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    receipt = queue.publish(numbered(ROWS))
    stream.options["maxMessagesPerTrigger"] = "6"

    def process(batch: Any, lease: Any) -> Any:
        assert rows_of(lease.read()) == rows_of(batch)
        note(tmp_path, [rows_of(batch), lease.lease_id, lease.delta_options])
        lease.reject(batch.where("CAST(value AS STRING) = '001'"), error="never")
        lease.nack(batch.where("CAST(value AS STRING) = '002'"), delay="1h", error="not now")
        return batch.where("CAST(value AS STRING) IN ('003', '009')").selectExpr(
            "sequence", "'reject' AS outcome", "'bad' AS error"
        )

    stream.settle_with(process)
    first, second = noted(tmp_path)
    assert [value for rows, _, _ in (first, second) for value, _ in rows] == numbered(ROWS)
    assert [int(options["txnVersion"]) for _, _, options in (first, second)] == [1, 2]
    assert len({options["txnAppId"] for _, _, options in (first, second)}) == 1
    ranges = [
        r for r in group_ledger_of(stream.group).current() if r.state in ("dead", "available")
    ]
    assert {receipt.sequences.index(r.first): (r.state, r.error) for r in ranges} == {
        1: ("dead", "never"), 2: ("available", "not now"), 3: ("dead", "bad"), 9: ("dead", "bad")
    }  # fmt: skip
    assert stream.group.stats().acked == ROWS - 4


def test_what_a_function_sets_in_its_session_is_there_in_the_next_batch(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    """Since Spark 4.3 the batch has a session of its own, a copy of the client's."""
    queue.publish(numbered(ROWS))
    stream.options["maxMessagesPerTrigger"] = "6"
    setting = "spark.sql.session.timeZone"
    listed = spark.createDataFrame([("001",), ("009",)], "bad STRING")
    listed.createOrReplaceTempView("bad_orders")
    own_session = not spark.version.startswith("4.2.")

    def process(batch: Any, lease: Any) -> None:
        session = batch.sparkSession
        note(tmp_path, [session.conf.get(setting), session.session_id])
        session.conf.set(setting, "Europe/Zurich")
        batch.createOrReplaceTempView("orders")
        bad = session.sql(
            "SELECT lease_id, sequence FROM orders, bad_orders WHERE CAST(value AS STRING) = bad"
        )
        assert lease.reject(bad, error="listed").settled == 1
        assert lease.read().sparkSession.session_id == session.session_id
        if own_session:
            with pytest.raises(SessionNotSameException):
                batch.crossJoin(listed)

    try:
        stream.settle_with(process, on_error="raise")
        first, second = noted(tmp_path)
        assert first[0] == "UTC"
        assert second == ["Europe/Zurich", first[1]]
        assert spark.conf.get(setting) == ("UTC" if own_session else "Europe/Zurich")
        assert (first[1] != spark.session_id) == own_session
    finally:
        spark.conf.set(setting, "UTC")
    assert (stream.group.stats().acked, stream.group.stats().dead) == (ROWS - 2, 2)


@pytest.mark.slow
def test_a_batch_of_which_no_row_comes_is_left_to_the_commit(
    stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(numbered(ROWS))
    stream.settle_with(
        lambda batch, lease: note(tmp_path, "called"), frame=stream.frame().where("false")
    )
    assert noted(tmp_path) == [], "nothing is known of its lease"
    assert stream.group.stats().acked == ROWS


@pytest.mark.slow
def test_a_union_of_queues_settles_each_lease_in_its_own(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    other = make_queue(tmp_path / "other")
    queue.publish(numbered(3))
    other.publish(numbered(5))
    both = stream.frame().union(Stream(spark, other, tmp_path / "none", group="h").frame())

    def process(batch: Any, lease: Any) -> None:
        note(tmp_path, len(lease.lease_ids))

    stream.run(stream.group.for_each_batch(process, more_groups=[other.group("h")]), frame=both)
    assert noted(tmp_path) == [2]
    assert (stream.group.stats().acked, other.group("h").stats().acked) == (3, 5)


def test_rows_of_any_dataframe_are_settled(spark: Any, queue: Queue) -> None:
    queue.publish(numbered(ROWS))
    group = queue.group("g")
    lease = group.lease("w", max_messages=ROWS)
    rows = spark.createDataFrame(
        [(lease.lease_id, m.sequence) for m in lease.messages], "lease_id STRING, sequence LONG"
    )
    assert of_spark.ack(rows.limit(4), group).settled == 4
    assert of_spark.reject(rows, group, error="late").already_settled == 4
    assert (group.stats().acked, group.stats().dead) == (4, ROWS - 4)


def test_a_death_between_a_sink_and_the_ack_is_mended_by_the_replay(
    stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(numbered(ROWS))

    def process(batch: Any, lease: Any) -> None:
        options = lease.delta_options
        sink = tmp_path / f"sink {options['txnAppId']} {options['txnVersion']}"
        if sink.exists():
            note(tmp_path, "skipped")
        else:
            sink.write_text(json.dumps(rows_of(batch)))
            raise RuntimeError("died after the sink")

    with pytest.raises(StreamingQueryException, match="died after the sink"):
        stream.settle_with(process, on_error="raise")
    assert stream.group.stats().leased == ROWS
    stream.settle_with(process, on_error="raise")
    assert noted(tmp_path) == ["skipped"]
    assert len(list(tmp_path.glob("sink *"))) == 1
    assert stream.group.stats().acked == ROWS


def held(stream: Stream, home: Path) -> tuple[Any, Any]:
    """A query whose first batch waits in its function for the file "go", and now it is there.

    And what for_each_batch gave.
    """

    def process(batch: Any, lease: Any) -> None:
        note(home, rows_of(batch))
        wait_for(home / "go")

    each = stream.group.for_each_batch(process, on_error="nack")
    query = stream.start(each, available_now=False)
    until(lambda: noted(home) or not query.isActive, "the batch came to its function")
    assert query.isActive, query.exception()
    return query, each


def again(stream: Stream, home: Path) -> None:
    """Another run, whose function notes what it gets."""
    stream.settle_with(lambda batch, lease: note(home, rows_of(batch)))


@pytest.mark.slow
def test_a_query_that_is_stopped_in_mid_batch_runs_the_batch_again(
    stream: Stream, queue: Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish(numbered(ROWS))
    assert stop_query(*held(stream, tmp_path))
    assert "runs again at the next start" in caplog.text
    again(stream, tmp_path)
    (tmp_path / "go").touch()
    assert noted(tmp_path) == [[[value, count] for value in numbered(ROWS)] for count in (1, 2)]
    assert stream.group.stats().acked == ROWS


def test_a_driver_that_wakes_after_its_successor_settles_nothing_and_is_reported(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(numbered(ROWS))
    query, _ = held(stream, tmp_path)
    again(Stream(spark, queue, copy_checkpoint(stream.checkpoint, tmp_path / "copy")), tmp_path)
    assert stream.group.stats().acked == ROWS
    before = group_ledger_of(stream.group).current().ranges
    (tmp_path / "go").touch()
    until(lambda: not query.isActive, "the woken query ended")
    assert "StreamFenced" in str(query.exception())
    assert group_ledger_of(stream.group).current().ranges.equals(before)
