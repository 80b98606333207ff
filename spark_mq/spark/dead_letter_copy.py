"""Copy dead letters in Spark tasks. The driver commits the files, as it does without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from spark_mq.delta.object_store import ObjectStore
from spark_mq.maintenance.dead_letters import Copy, DeadSlice, copy_dead, dead_tables
from spark_mq.parquet.bounded import cut_by_size
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.storage.message_table import MessageTable

# The limits of one task's copy, in bytes of the files and in slices. The task holds less in memory.
# The driver copies less than one task's worth itself, without a job.
CHUNK_BYTES: Final = 64 * 2**20
CHUNK_SLICES: Final = 2_000


def spark_copy(spark: Any, storage_options: Mapping[str, str] | None = None) -> Copy:
    """Return the ``copy`` of :meth:`spark_mq.Queue.sweep` that copies in Spark tasks."""
    options = dict(storage_options or {})

    def copy(
        log: MessageTable, dead_log: MessageTable, slices: Sequence[DeadSlice]
    ) -> list[WrittenFile]:
        parts = list(chunks(slices))
        if len(parts) < 2:
            return copy_dead(log, dead_log, slices)
        source, target, lanes = log.path, dead_log.path, dead_log.lanes
        fence = dead_log.fence

        def task(part: list[DeadSlice]) -> list[WrittenFile]:
            # One table after the other, because slices may be larger in memory than in their files.
            files = ObjectStore(target, options)
            return [
                write_file(files, table, lanes=lanes, fence=fence)
                for table in dead_tables(ObjectStore(source, options), part)
            ]

        # In order, so that the dead letters come in the order of their sequences.
        return list(spark.sparkContext.parallelize(parts, len(parts)).flatMap(task).collect())

    return copy


def chunks(slices: Sequence[DeadSlice]) -> Iterator[list[DeadSlice]]:
    """Split slices, in their order, into parts for one task each. Large slices are cut."""
    part: list[DeadSlice] = []
    size = 0
    for piece, why in ((cut, why) for p, why in slices for cut in cut_by_size(p, CHUNK_BYTES)):
        if part and (len(part) == CHUNK_SLICES or size + piece.size > CHUNK_BYTES):
            yield part
            part, size = [], 0
        part.append((piece, why))
        size += piece.size
    if part:
        yield part
