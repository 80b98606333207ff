"""Plain Spark at a queue's tables: it publishes, optimizes, vacuums, restores and changes them,
while leases are held and streams run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.delta_readers import TABLES, by_protocol, make_tables, normal
from support.handles import lease
from support.harness import configured, make_queue
from support.tables import ledgers_of, messages_of

from spark_mq import Queue


def append(spark: Any, queue: Queue, *texts: str) -> None:
    rows = [(bytearray(text.encode()),) for text in texts]
    append_rows(queue, spark.createDataFrame(rows, "value BINARY").coalesce(1))


def append_rows(queue: Queue, rows: Any) -> None:
    rows.write.format("delta").mode("append").save(messages_of(queue).path)


def texts(lease: Any) -> list[str]:
    return [m.value.decode() for m in lease.messages]


@pytest.mark.slow
@pytest.mark.delta
def test_spark_publishes_the_value_alone(spark: Any, queue: Queue) -> None:
    """Spark fills missing columns with null. It needs no schema option.

    Delta Lake for Spark casts no STRING to BINARY in an append of a DataFrame.
    """
    path = messages_of(queue).path
    before = spark.read.format("delta").load(path).schema
    append(spark, queue, "a")
    assert spark.read.format("delta").load(path).schema == before
    (message,) = lease(queue).messages
    assert (message.value, message.message_id, message.key) == (b"a", str(message.sequence), None)
    assert "/" not in messages_of(queue).index().files[0].path
    text = spark.createDataFrame([("b",)], "value STRING")
    with pytest.raises(Exception, match="DELTA_FAILED_TO_MERGE_FIELDS"):
        append_rows(queue, text)
    append_rows(queue, text.selectExpr("CAST(value AS BINARY) AS value"))
    spark.sql(f"INSERT INTO delta.`{path}` (value) VALUES (CAST('c' AS BINARY))")
    assert texts(lease(queue)) == ["b", "c"]


@pytest.mark.delta
@pytest.mark.slow
def test_spark_writes_and_tidies_while_leases_are_held(spark: Any, queue: Queue) -> None:
    """OPTIMIZE and VACUUM of both tables, ZORDER of the one that has statistics: what is leased or
    unread stays as it was.
    """
    queue.publish(["a", "b"])
    append(spark, queue, "c", "d")
    held = lease(queue, 1)
    messages, leases = (
        f"delta.`{table.path}`" for table in (messages_of(queue), ledgers_of(queue))
    )
    spark.sql(f"OPTIMIZE {messages} ZORDER BY (published_at)")
    append(spark, queue, "e")
    spark.sql(f"OPTIMIZE {leases}")
    # VACUUM lists the folders in 10,000 tasks else.
    with configured(spark, "spark.sql.sources.parallelPartitionDiscovery.parallelism", "2"):
        spark.sql(f"VACUUM {messages}")
        with configured(spark, "spark.databricks.delta.retentionDurationCheck.enabled", "false"):
            spark.sql(f"VACUUM {leases} RETAIN 0 HOURS")
    assert texts(held) == ["a"]
    assert held.ack().settled == 1
    rest = lease(Queue.open(queue.path))
    assert texts(rest) == ["b", "c", "d", "e"]
    rest.ack()
    queue.sweep()
    assert queue.stats()["published"] == 5


@pytest.mark.delta
@pytest.mark.slow
def test_a_restore_by_spark_after_a_trim_publishes_nothing_again(
    spark: Any, tmp_path: Path
) -> None:
    queue = make_queue(tmp_path / "queue", retention=0)
    queue.publish(["a", "b"])
    append(spark, queue, "c")
    before = messages_of(queue).index().version
    lease(queue).ack()
    assert queue.sweep().trimmed_files == 2
    with configured(spark, "spark.sql.files.ignoreMissingFiles", "true"):
        spark.sql(f"RESTORE TABLE delta.`{messages_of(queue).path}` TO VERSION AS OF {before}")
    for handle in (queue, Queue.open(queue.path)):
        assert handle.group().lease("w") is None
        assert handle.group("new").lease("w") is None
        assert handle.stats()["published"] == 3
    append(spark, queue, "d")
    assert texts(lease(queue)) == ["d"]


@pytest.mark.delta
@pytest.mark.slow
def test_spark_reads_each_table_as_it_is(spark: Any, tmp_path: Path) -> None:
    path = make_tables(tmp_path / "tables").path
    for name in TABLES[:5]:  # of the dead letters, the messages: the rest is as in the queue
        found = spark.read.format("delta").load(f"{path}/{name}").toArrow()
        assert normal(found) == normal(by_protocol(Path(path, name))), name


@pytest.mark.delta
@pytest.mark.slow
def test_a_checkpoint_of_spark_keeps_the_ledgers(spark: Any, queue: Queue) -> None:
    """A small ledger is in the log. So is one that a RESTORE of Spark brings back."""
    queue.publish(["a", "b", "c"])
    lease(queue, 2)
    path, held = ledgers_of(queue).path, ledgers_of(queue).version()
    queue.group().lease("w", max_messages=1).ack()  # type: ignore[union-attr]
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {held}")
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    log.checkpoint()
    for file in Path(path).rglob("*.*"):
        if file.name.endswith(".json") and int(file.name[:20]) < held + 2:
            file.unlink()
        if file.name.startswith("part-"):
            file.unlink()
    stats = Queue.open(queue.path).group().stats()
    assert (stats.leased, stats.acked) == (2, 0)
