"""What the streaming tests are made of: streams, an idempotent sink, deaths, frozen drivers."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq import Queue
from support.tables import add_file, context_of, fresh_log, messages_of

PATIENCE = 150.0
"""Seconds until a condition counts as never coming true.

Far more than it takes: a busy machine must not fail a test.
"""


def make_queue(path: Path | str, **settings: Any) -> Queue:
    """No margin, no backoff and no sync, so that nothing in a test waits for a clock or a disk."""
    quick = {"visibility_timeout": "5m", "clock_skew": "0s", "retry_delay": "0s", "durable": False}
    return Queue.create(path, **{**quick, **settings})


def storage_options(queue: Queue) -> dict[str, str]:
    """Return the storage options of a queue, as Spark takes them."""
    options = context_of(queue).storage_options
    return {f"storageOptions.{name}": value for name, value in options.items()}


def session_with(spark: Any, act: Callable[[str, str, Callable[[], Any]], Any]) -> Any:
    """Return a session in which a function stands around each call by which a stream leases.

    It gets the queue's path, the name of the call, and a function that does it.
    """
    from spark_mq.spark import SparkMQDataSource

    class Source(SparkMQDataSource):
        """Under the real one's name, by which a batch's lease is found."""

        def streamReader(self, schema: Any) -> Any:
            reader: Any = super().streamReader(schema)
            path = self.options["path"]

            class Reader(type(reader)):  # type: ignore[misc]
                def initialOffset(self) -> Any:
                    return act(path, "initialOffset", super().initialOffset)

                def latestOffset(self, start: Any, limit: Any) -> Any:
                    return act(path, "latestOffset", partial(super().latestOffset, start, limit))

                def partitions(self, start: Any, end: Any) -> Any:
                    return act(path, "partitions", partial(super().partitions, start, end))

            reader.__class__ = Reader
            return reader

    session = spark.newSession()
    session.dataSource.register(Source)
    return session


class Stream:
    """A streaming read of a queue with a checkpoint, started as often as a test wants."""

    def __init__(
        self, spark: Any, queue: Queue, checkpoint: Path, group: str = "g", **options: Any
    ) -> None:
        self.spark = spark
        self.queue = queue
        self.checkpoint = checkpoint
        self.group = queue.group(group)
        self.options = {"consumerGroup": group, **storage_options(queue), **options}

    def frame(self) -> Any:
        return (
            self.spark.readStream.format("spark_mq").options(**self.options).load(self.queue.path)
        )

    def start(
        self, each: Callable[[Any, int], None], *, available_now: bool = True, frame: Any = None
    ) -> Any:
        """Starts a query with a foreachBatch function."""
        writer = (self.frame() if frame is None else frame).writeStream.foreachBatch(each)
        return start(writer, self.checkpoint, available_now=available_now)

    def run(self, each: Callable[[Any, int], None], *, frame: Any = None) -> Any:
        """Drains what is there (Trigger.AvailableNow) and returns the ended query.

        Raises what ended it.
        """
        return finish(self.start(each, frame=frame))

    def settle_with(
        self, process: Callable[[Any, Any], Any], *, on_error: str = "raise", frame: Any = None
    ) -> Any:
        """Drains with for_each_batch."""
        return self.run(self.group.for_each_batch(process, on_error=on_error), frame=frame)


@contextmanager
def configured(spark: Any, name: str, value: str) -> Iterator[None]:
    """A setting of the session, for as long as the block runs."""
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def start(writer: Any, checkpoint: Path, *, available_now: bool = True) -> Any:
    """Start a query, again if Spark's Python process took more than its ten seconds to begin.

    No setting changes them (SPARK-45245), and a busy machine does not keep them. Over Connect the
    start raises then, as docs/reference/errors.md says, and nothing was leased.
    """
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(availableNow=True) if available_now else writer
    for _ in range(4):
        try:
            return writer.start()
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
    return writer.start()


def publish(rows: Any, path: str, **options: str) -> None:
    """Publish a DataFrame."""
    rows.write.format("spark_mq").mode("append").options(**options).save(path)


def look(spark: Any, queue: Queue, **options: str) -> Any:
    """Read a queue as a batch, without leases."""
    return spark.read.format("spark_mq").options(**options).load(queue.path)


def finish(query: Any) -> Any:
    """Waits until a query ends by itself. Raises what ended it."""
    assert query.awaitTermination(PATIENCE), "the query did not end"
    return query


class Sink:
    """An idempotent sink, as a Delta table is with ``lease.delta_options``: a transaction that it
    has seen it skips.
    """

    def __init__(self) -> None:
        self.batches: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self.skipped = 0

    def write(self, batch: Any, lease: Any) -> None:
        options = lease.delta_options
        key = (options["txnAppId"], options["txnVersion"])
        rows = sorted(
            (bytes(row.value).decode(), row.delivery_count)
            for row in batch.select("value", "delivery_count").collect()
        )
        if key in self.batches:
            self.skipped += 1
        else:
            self.batches[key] = rows

    @property
    def values(self) -> list[str]:
        return sorted(value for rows in self.batches.values() for value, _ in rows)


class Death(Exception):
    """What kills a driver at a place of a test's choice."""


def copy_checkpoint(source: Path, target: Path) -> Path:
    """A copy under another query id, for Spark refuses to run two queries of one id: two drivers on
    one checkpoint.
    """
    shutil.copytree(source, target)
    (target / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    (target / ".metadata.crc").unlink(missing_ok=True)
    return target


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died before Spark committed the last batch: it is replayed."""
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def versions(queue: Queue) -> dict[str, int | None]:
    """The version of each table of a queue: nothing has changed while these are the same."""
    names = ("messages", "leases", "dead_letters/messages")
    tables = {name: fresh_log(queue, name).open() for name in names}
    return {name: table.version if table else None for name, table in tables.items()}


def values(batch: Any) -> list[str]:
    return sorted(bytes(row.value).decode() for row in batch.select("value").collect())


def numbered(count: int) -> list[str]:
    return [f"{i:03}" for i in range(count)]


def add_foreign_file(queue: Queue, name: str, rows: pa.Table) -> None:
    """Publish rows as a foreign writer does, with a name and columns of its own."""
    path = Path(messages_of(queue).path, name)
    pq.write_table(rows, path)
    add_file(queue, name, path.stat().st_size, json.dumps({"numRecords": rows.num_rows}))
