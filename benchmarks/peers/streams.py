"""Draining through Spark: readStream, foreachBatch that reads every byte, ack.

From a queue, a plain Delta table, and Kafka.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from peers.kafka import TOPIC
from peers.values import values
from spark_mq import Queue

READ_EVERY_BYTE = ("count(*)", "sum(length(value))", "sum(crc32(value))")
"""No reader answers the last one without decoding the bytes."""
NARROW = "sequence bigint, lease_id string, value binary"


@dataclass
class Drained:
    """One drain.

    ``seconds``: from the start of the query to its end; ``begun``: to its first batch.
    """

    seconds: float = 0.0
    begun: float = 0.0
    ends: list[float] = field(default_factory=list)
    handler: list[float] = field(default_factory=list)
    rows: int = 0
    checksum: int = 0
    stages: dict[str, float] = field(default_factory=dict)

    def steady(self) -> list[float]:
        """Seconds of each batch after the second, from the end of the one before to its own."""
        return [end - before for before, end in zip(self.ends[1:], self.ends[2:], strict=False)]

    def read(self, batch: Any) -> None:
        start = time.perf_counter()
        count, _, checksum = batch.selectExpr(*READ_EVERY_BYTE).collect()[0]
        self.rows += count
        self.checksum += checksum or 0
        self.handler.append(time.perf_counter() - start)


class Stores:
    """The same messages in a queue, in a Delta table, and in a topic of `kafka` (an address) if
    there is one.

    They come by appends of `batch` messages, each two files in the queue and the table. The queue
    and the table are in `root`, which is a folder of the disk unless there are storage options.
    """

    def __init__(
        self,
        spark: Any,
        folder: Path,
        kind: str,
        batch: int,
        *,
        kafka: str | None = None,
        root: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.spark, self.folder, self.batch, self.kafka = spark, folder, batch, kafka
        source = folder / "source"
        source.mkdir(parents=True)
        half = batch // 2
        for name in ("a", "b"):  # no larger groups than a task reads
            pq.write_table(
                pa.table({"value": pa.array(values(kind, half), pa.binary())}),
                source / f"{name}.parquet",
                row_group_size=half // 4,
            )
        self.frame = spark.read.parquet(str(source)).coalesce(2)
        root, options = root or str(folder), dict(storage_options or {})
        self.queue = Queue.create(
            f"{root}/queue", visibility_timeout="10m", storage_options=options
        )
        self.options = {f"storageOptions.{name}": value for name, value in options.items()}
        self.delta = f"{root}/delta"
        self.count = 0
        self.drains = 0

    def publish(self) -> float:
        """Seconds to publish the batch through Spark."""
        start = time.perf_counter()
        writer = self.frame.write.format("spark_mq").options(**self.options)
        writer.mode("append").save(self.queue.path)
        return time.perf_counter() - start

    def append(self) -> float:
        """Seconds to append it with delta-spark."""
        start = time.perf_counter()
        self.frame.write.format("delta").mode("append").save(self.delta)
        return time.perf_counter() - start

    def produce(self) -> None:
        """Write it to Kafka."""
        writer = self.frame.write.format("kafka").option("kafka.bootstrap.servers", self.kafka)
        writer.option("topic", TOPIC).save()

    def fill(self, count: int) -> None:
        for _ in range(count // self.batch):
            self.publish()
            self.append()
            if self.kafka:
                self.produce()
        self.count += count

    def from_queue(self, *, narrow: bool = False) -> Drained:
        """Drain by a new group, as users do, or through Python with the column of the handler."""
        self.drains += 1
        group = self.queue.group(f"drain-{self.drains}")
        stream = (
            self.spark.readStream.format("spark_mq")
            .option("consumerGroup", group.name)
            .option("maxMessagesPerTrigger", self.batch)
            .options(**self.options)
        )
        stream = (stream.schema(NARROW) if narrow else stream).load(self.queue.path)
        drained = Drained()
        process = group.for_each_batch(
            lambda batch, _: drained.read(batch), reader="python" if narrow else "spark"
        )
        return self._run(stream, drained, process)

    def from_delta(self) -> Drained:
        """Spark's own source, without leases: the limit to beat."""
        self.drains += 1
        drained = Drained()
        stream = (
            self.spark.readStream.format("delta").option("maxFilesPerTrigger", 2).load(self.delta)
        )
        return self._run(stream, drained, lambda batch, _: drained.read(batch))

    def from_kafka(self) -> Drained:
        """Spark's own source for Kafka, without leases or acks of single messages."""
        self.drains += 1
        drained = Drained()
        stream = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.kafka)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.batch)
            .load()
        )
        return self._run(stream, drained, lambda batch, _: drained.read(batch))

    def _run(self, stream: Any, drained: Drained, handler: Callable[[Any, int], None]) -> Drained:
        def each(batch: Any, batch_id: int) -> None:
            drained.begun = drained.begun or time.perf_counter() - start
            handler(batch, batch_id)
            drained.ends.append(time.perf_counter())

        writer = stream.writeStream.foreachBatch(each).trigger(availableNow=True)
        start = time.perf_counter()
        query = writer.option(
            "checkpointLocation", str(self.folder / f"checkpoint-{self.drains}")
        ).start()
        query.awaitTermination()
        drained.seconds = time.perf_counter() - start
        assert drained.rows == self.count, f"{drained.rows} of {self.count} messages came"
        took = defaultdict(list)
        for progress in query.recentProgress[2:]:
            if progress["durationMs"].get("addBatch"):
                for stage, ms in progress["durationMs"].items():
                    took[stage].append(ms)
        drained.stages = {stage: statistics.median(all_) for stage, all_ in took.items()}
        return drained
