"""Copy dead letters in Spark tasks. The driver commits the files, as it does without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from spark_mq.delta.object_store import ObjectStore
from spark_mq.maintenance.dead_letters import Copy, DeadSlice, copy_dead, dead_table
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.storage.message_store import MessageStore

__all__ = ["chunks", "spark_copy"]

CHUNK_BYTES: Final = 64 * 2**20
CHUNK_SLICES: Final = 2_000
"""What one task copies, and holds in memory. Less than one task's worth is copied in the driver,
without a job."""


def spark_copy(spark: Any, storage_options: Mapping[str, str] | None = None) -> Copy:
    """Return the ``copy`` of :meth:`spark_mq.Queue.sweep` that copies in Spark tasks.

    Parameters
    ----------
    spark
        The session.
    storage_options
        Options of the object store. Default: none.
    """
    options = dict(storage_options or {})

    def copy(
        log: MessageStore, dead_log: MessageStore, slices: Sequence[DeadSlice]
    ) -> list[WrittenFile]:
        parts = list(chunks(slices))
        if len(parts) < 2:
            return copy_dead(log, dead_log, slices)
        source, target = log.path, dead_log.path

        def task(part: list[DeadSlice]) -> WrittenFile:
            return write_file(
                ObjectStore(target, options), dead_table(ObjectStore(source, options), part)
            )

        # In order, so that the dead letters come in the order of their sequences.
        return list(spark.sparkContext.parallelize(parts, len(parts)).map(task).collect())

    return copy


def chunks(slices: Sequence[DeadSlice]) -> Iterator[list[DeadSlice]]:
    """Split slices, in their order, into parts that a task can hold."""
    part: list[DeadSlice] = []
    size = 0
    for piece in slices:
        if part and (len(part) == CHUNK_SLICES or size + piece[0].size > CHUNK_BYTES):
            yield part
            part, size = [], 0
        part.append(piece)
        size += piece[0].size
    if part:
        yield part
