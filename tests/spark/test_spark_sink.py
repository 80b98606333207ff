"""foreachBatch with ``lease.append``: the sink has each message once, after any crash."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from support.harness import Stream, configured, forget_last_commit, make_queue
from support.marks import slow
from support.sinks import OF_QUEUES, OF_TABLES, SCHEMA, values

from spark_mq import Message, Queue, errors
from spark_mq.spark import nack


@pytest.fixture
def queue(tmp_path: Path, sink: str) -> Queue:
    queue = make_queue(tmp_path / "queue", max_delivery_attempts=None, breaker_threshold=None)
    queue.group("g").configure(sink=sink)
    return queue


def texts(batch: Any) -> Any:
    return batch.selectExpr("CAST(value AS STRING) AS value")


def test_after_several_crashes_the_table_has_each_message_once(
    stream: Stream, queue: Queue, sink: str
) -> None:
    """The driver dies three times in a row, and then another checkpoint takes the messages."""
    wanted = [f"{n:02}" for n in range(20)]
    queue.publish(wanted)
    wrote: list[bool] = []

    def append(batch: Any, lease: Any) -> None:
        wrote.append(lease.append(texts(batch)))

    def die(batch: Any, lease: Any) -> None:
        append(batch, lease)
        raise RuntimeError("died")

    for _ in range(3):
        with pytest.raises(StreamingQueryException, match="died"):
            stream.settle_with(die)
    stream.settle_with(append)
    other = Stream(stream.spark, queue, stream.checkpoint.with_name("other"))
    other.group.release(dict.fromkeys(held(queue)))
    for _ in range(20):
        if not queue.group("g").stats().unsettled:
            break
        other.settle_with(append)
    assert values(sink) == wanted
    assert wrote.count(True) == 1
    assert queue.group("g").stats().acked == 20


def held(queue: Queue) -> set[str]:
    ledger = queue.group("g")._ledger.current()
    return {r.lease_id for r in ledger if r.lease_id and r.state == "leased"}


def test_a_python_worker_takes_over_what_a_stream_has_written(
    stream: Stream, queue: Queue, sink: str
) -> None:
    queue.publish(["a", "b"])

    def process(batch: Any, lease: Any) -> None:
        lease.append(texts(batch))
        raise RuntimeError("died")

    with pytest.raises(StreamingQueryException):
        stream.settle_with(process)
    group = queue.group("g")
    group.nack(dict.fromkeys(held(queue)))
    rows = []
    while (lease := group.lease("w", max_messages=10)) is not None:
        text = [m.text for m in lease.messages]
        rows.append((text, lease.append(pa.table({"value": text}, SCHEMA))))
        lease.ack()
    assert sorted(t for text, _ in rows for t in text) == ["a", "b"]
    assert not any(written for _, written in rows)
    assert values(sink) == ["a", "b"]


def test_rows_that_are_rejected_before_the_append_are_not_in_the_table(
    stream: Stream, queue: Queue, sink: str
) -> None:
    queue.publish(["1", "x", "3"])

    def process(batch: Any, lease: Any) -> None:
        rows = batch.selectExpr("*", "TRY_CAST(CAST(value AS STRING) AS INT) AS n").persist()
        lease.reject(rows.where("n IS NULL"), error="no number")
        assert lease.append(texts(rows.where("n IS NOT NULL")))

    stream.settle_with(process)
    queue.sweep()
    assert values(sink) == ["1", "3"]
    assert [one["value"] for one in queue.list_dead_letters().to_pylist()] == [b"x"]


@pytest.mark.parametrize(
    ("settle", "sink"),
    [slow("reject", "table"), slow("nack", "queue"), ("ack", "table")],
    indirect=["sink"],
)
def test_a_batch_of_which_every_row_is_settled_appends_nothing_and_goes_on(
    stream: Stream, queue: Queue, sink: str, settle: str
) -> None:
    queue.publish(["", ""])
    wrote: list[bool] = []

    def process(batch: Any, lease: Any) -> None:
        getattr(lease, settle)(batch)
        wrote.append(lease.append(texts(batch.where("value <> ''"))))

    stream.settle_with(process)
    forget_last_commit(stream.checkpoint)  # a worker that died before it
    stream.settle_with(process)
    assert set(wrote) == {True}
    assert values(sink) == []
    stats = queue.group("g").stats()
    assert (stats.dead, stats.leased) == (2 * (settle == "reject"), 0)


@pytest.mark.delta
@OF_TABLES
@pytest.mark.slow
def test_writers_with_options_of_the_lease_take_a_batch_without_rows(
    stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(["", ""])
    queue.group("g").configure(sink=None)
    target, table = Queue.create(tmp_path / "target"), str(tmp_path / "table")

    def process(batch: Any, lease: Any) -> None:
        lease.reject(batch)
        rows = texts(batch.where("value <> ''"))
        rows.write.format("delta").mode("append").options(**lease.delta_options).save(table)
        writer = rows.write.format("spark_mq").mode("append")
        writer.options(**lease.publish_options).save(target.path)
        assert not lease.publish(target, []).published

    stream.settle_with(process)
    assert DeltaTable(table).to_pyarrow_table().num_rows == 0
    assert target.group("look").lease("w") is None
    assert queue.group("g").stats().dead == 2


def test_a_batch_of_which_every_row_is_rejected_may_append_a_summary(
    stream: Stream, queue: Queue, sink: str
) -> None:
    """It is the same in a Python worker."""
    queue.publish(["x", "y"])

    def process(batch: Any, lease: Any) -> None:
        summary = batch.selectExpr("CAST(count(*) AS STRING) AS value").persist()
        summary.count()
        lease.reject(batch)
        assert lease.append(summary)

    stream.settle_with(process)
    assert values(sink) == ["2"]

    def handle(lease: Any) -> None:
        count = len(lease.messages)
        lease.reject([message.sequence for message in lease.messages])
        assert lease.append(pa.table({"value": [str(count)]}, SCHEMA))

    queue.publish(["x", "y", "z"])
    queue.group("g").work(handle, mode="batch", max_messages=10, until="settled")
    assert values(sink) == ["2", "3"]


def test_after_the_append_no_single_row_is_given_back(
    stream: Stream, queue: Queue, sink: str
) -> None:
    queue.publish(["a", "b"])
    seen: list[str] = []

    def process(batch: Any, lease: Any) -> Any:
        lease.append(texts(batch))
        for settle in (lease.nack, lease.reject):
            with pytest.raises(errors.InvalidOption, match="so it cannot"):
                settle(batch)
        with pytest.raises(errors.InvalidOption, match="by the lease's own methods"):
            nack(batch, queue.group("g"))
        with pytest.raises(errors.InvalidOption, match="appended its rows already"):
            lease.append(texts(batch))
        seen.append(lease.lease_id)
        return batch.selectExpr("sequence", "'nack' AS outcome")

    with pytest.raises(StreamingQueryException, match="before the append"):
        stream.settle_with(process)
    assert len(seen) == 1
    assert values(sink) == ["a", "b"]


@pytest.mark.slow
@OF_TABLES
def test_a_partitioned_table_gets_files_with_statistics(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    path = str(tmp_path / "partitioned")
    schema = pa.schema(
        [("n", pa.int64()), ("day", pa.date32()), ("kind", pa.string()),
         ("at", pa.timestamp("us", tz="UTC")), ("tags", pa.list_(pa.string())),
         ("price", pa.decimal128(9, 2))]
    )  # fmt: skip
    write_deltalake(path, schema.empty_table(), partition_by=["day", "kind"])
    queue.group("g").configure(sink=path)
    queue.publish([str(n) for n in range(6)])

    def process(batch: Any, lease: Any) -> None:
        lease.append(
            batch.selectExpr(
                "CAST(CAST(value AS STRING) AS BIGINT) AS n",
                "TIMESTAMP '2026-01-31 12:00:00.25' AS at",
                "ARRAY('x', CAST(value AS STRING)) AS tags",
                "IF(value = X'30', NULL, CONCAT('a b/=', CAST(value AS STRING))) AS kind",
                "DATE '2026-01-31' AS day",
                "CAST(1.5 AS DECIMAL(9, 2)) AS price",
            )
        )

    stream.settle_with(process)
    table = DeltaTable(path)
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["n"])
    at = dt.datetime(2026, 1, 31, 12, 0, 0, 250_000, dt.UTC)
    assert rows == [
        {"n": n, "day": dt.date(2026, 1, 31), "kind": f"a b/={n}" if n else None, "at": at,
         "tags": ["x", str(n)], "price": Decimal("1.50")}
        for n in range(6)
    ]  # fmt: skip
    added = [json.loads(line)["add"] for line in last_commit(path) if '"add"' in line]
    stats = [json.loads(one["stats"]) for one in added]
    assert sorted((one["minValues"]["n"], one["maxValues"]["n"]) for one in stats) == [
        (n, n) for n in range(6)
    ]
    assert {one["numRecords"] for one in stats} == {1}
    assert {name for one in stats for name in one["minValues"]} == {"n"}
    if spark.conf.get("spark.sql.extensions", ""):
        found = spark.read.format("delta").load(path).where("kind = 'a b/=3'").collect()
        assert [row.n for row in found] == [3]


@OF_TABLES
@pytest.mark.slow
def test_partitions_by_time_have_the_instants_of_the_rows_in_each_time_zone(
    spark: Any, tmp_path: Path, sink: str
) -> None:
    """In New York, 01:30 comes twice in the night in which the clock goes back."""
    path = str(tmp_path / "partitioned")
    schema = pa.schema(
        [("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("local", pa.timestamp("us")),
         ("day", pa.date32())]
    )  # fmt: skip
    write_deltalake(path, schema.empty_table(), partition_by=["at", "local", "day"])
    queue = make_queue(tmp_path / "by-time")
    group = queue.group("g")
    group.configure(sink=path)
    first = dt.datetime(2026, 11, 1, 5, 30, 0, 250_000, dt.UTC)
    wanted = [
        {"n": n, "at": first + dt.timedelta(hours=n),
         "local": dt.datetime(2026, 11, 1, 1, 30, 0, 5), "day": dt.date(2026, 11, 1)}
        for n in range(3)
    ]  # fmt: skip
    queue.publish(["0", "1"])

    def process(batch: Any, lease: Any) -> None:
        number, start = "CAST(CAST(value AS STRING) AS BIGINT)", int(first.timestamp() * 1_000_000)
        lease.append(
            batch.selectExpr(
                f"{number} AS n",
                f"TIMESTAMP_MICROS({start} + {number} * 3600000000) AS at",
                "TIMESTAMP_NTZ '2026-11-01 01:30:00.000005' AS local",
                "DATE '2026-11-01' AS day",
            )
        )

    with configured(spark, "spark.sql.session.timeZone", "America/New_York"):
        Stream(spark, queue, tmp_path / "checkpoint").settle_with(process)
        queue.publish(["2"])
        lease = group.lease("python")
        lease.append(pa.Table.from_pylist(wanted[2:], schema))
        lease.ack()
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert sorted(rows, key=lambda row: row["n"]) == wanted
        if spark.conf.get("spark.sql.extensions", ""):
            micros = "SELECT unix_micros(at) AS at FROM delta.`{}` WHERE n < 2 ORDER BY n"
            found = [row["at"] for row in spark.sql(micros.format(path)).collect()]
            assert found == [int(one["at"].timestamp() * 1_000_000) for one in wanted[:2]]


def last_commit(path: str) -> list[str]:
    found = sorted(Path(path, "_delta_log").glob("*.json"))[-1]
    return found.read_text().splitlines()


@OF_TABLES
def test_rows_that_do_not_fit_a_table_are_refused_by_name_and_may_add_columns_if_told_so(
    stream: Stream, queue: Queue, sink: str
) -> None:
    queue.publish(["a"])

    def process(batch: Any, lease: Any) -> None:
        with pytest.raises(errors.InvalidOption, match="df is a Table: give a Spark"):
            lease.append(pa.table({"value": ["a"]}))
        more = batch.selectExpr("'b' AS more")
        for rows, text in (
            (batch.selectExpr("sequence"), r"missing \['value'\], unknown \['sequence'\]"),
            (batch.select("value"), "has the type binary, and in the sink string"),
            (more, r"unknown \['more'\]"),
        ):
            with pytest.raises(errors.InvalidSchema, match=text):
                lease.append(rows)
        for name, text in (("VALUE", r"unknown \['VALUE'\]"), ("value", "has the type int")):
            with pytest.raises(errors.InvalidSchema, match=text):
                lease.append(batch.selectExpr(f"1 AS {name}"), schema_mode="merge")
        assert values(sink) == []
        lease.append(more, schema_mode="merge")

    stream.settle_with(process)
    assert DeltaTable(sink).to_pyarrow_table().to_pylist() == [{"value": None, "more": "b"}]


@OF_QUEUES
def test_rows_and_publishes_that_no_queue_takes_are_refused_and_an_empty_batch_is_acked(
    stream: Stream, queue: Queue, sink: str
) -> None:
    queue.publish(["a"])

    def process(batch: Any, lease: Any) -> None:
        with pytest.raises(errors.InvalidSchema, match="value"):
            lease.append(batch.select("sequence"))
        with pytest.raises(errors.InvalidOption, match=r"lease\.append"):
            lease.publish(Queue.open(sink), ["a"])  # which could come twice
        lease.append(batch.select("value").where("false"))

    stream.settle_with(process)
    assert queue.group("g").stats().acked == 1
    assert values(sink) == []


@OF_QUEUES
def test_keys_and_headers_reach_the_queue(stream: Stream, queue: Queue, sink: str) -> None:
    queue.publish([Message("a", key="k", headers={"n": "1"})])

    def process(batch: Any, lease: Any) -> None:
        lease.append(batch.select("value", "key", "headers"))

    stream.settle_with(process)
    lease = Queue.open(sink).group("look").lease("w")
    assert [(m.text, m.key, m.headers) for m in lease.messages] == [("a", "k", {"n": "1"})]


@pytest.mark.delta
@OF_TABLES
@pytest.mark.slow
def test_a_table_that_asks_more_of_rows_is_refused(
    spark: Any, tmp_path: Path, stream: Stream, queue: Queue
) -> None:
    path = tmp_path / "strict"
    spark.sql(f"CREATE TABLE delta.`{path}` (value STRING) USING delta")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT short CHECK (length(value) < 5)")
    queue.group("g").configure(sink=path)
    queue.publish(["a"])
    with pytest.raises(StreamingQueryException, match=r"delta\.constraints"):
        stream.settle_with(lambda batch, lease: lease.append(texts(batch)))
