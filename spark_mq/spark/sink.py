"""Publishing from Spark: executors write Parquet files, the driver publishes them all with one
commit through delta-rs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_mq.errors import DuplicatePublish, InvalidOption, InvalidSchema
from spark_mq.message import to_publish
from spark_mq.parquet.publishable import check_publishable
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.queue import producer_txn
from spark_mq.spark.options import WriteOptions

__all__ = ["QueueStreamWriter", "QueueWriter", "check_dataframe"]

_log = logging.getLogger(__name__)

FILE_BYTES = 128 * 2**20


@dataclass
class FilesWritten(WriterCommitMessage):
    """What one task wrote, and the streaming query it did it for."""

    files: tuple[WrittenFile, ...]
    query_id: str | None = None


def check_dataframe(schema: StructType, overwrite: bool) -> None:
    """Whether a DataFrame can be published. Raises InvalidSchema, InvalidOption; before any job
    runs."""
    if overwrite:
        raise InvalidOption(
            "a queue is only appended to: use mode('append') or outputMode('append')",
            option="mode",
            value="overwrite",
        )
    check_publishable({f.name: f.dataType.simpleString() for f in schema})


def write_files(
    options: WriteOptions, batches: Iterator[pa.RecordBatch]
) -> tuple[WrittenFile, ...]:
    """Writes the rows of a task as data files of about FILE_BYTES. Raises InvalidSchema for a null
    value."""
    queue = options.open()
    now = time.time_ns() // 1000
    files: list[WrittenFile] = []
    pending: list[pa.RecordBatch] = []

    def flush() -> None:
        if pending:
            table = to_publish(
                pa.Table.from_batches(pending), now, queue.settings.default_times(now)
            )
            files.append(write_file(queue._context.messages.files, table))
            pending.clear()

    try:
        for batch in batches:
            if batch.num_rows:
                pending.append(batch)
            if sum(b.nbytes for b in pending) > FILE_BYTES:
                flush()
        flush()
    except InvalidSchema:
        for file in files:  # no commit can know of them yet
            with contextlib.suppress(OSError):
                queue._context.messages.files.delete(file.path)
        raise
    return tuple(files)


def note_abort(files: Sequence[WrittenFile]) -> None:
    """Names the files that stay behind unpublished, which is only waste.

    They are not deleted: Spark calls abort also after a commit that raised, and such a commit may
    have landed all the same.
    """
    if files:
        _log.warning(
            "%d files (%d bytes) stay behind unpublished: %s ...",
            len(files),
            sum(f.size for f in files),
            files[0].path,
        )


def written(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenFile]:
    return [
        file for message in messages if isinstance(message, FilesWritten) for file in message.files
    ]


class QueueWriter(DataSourceArrowWriter):
    """``df.write``: one publish, all or nothing."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        options.open()  # a queue that is not there is told before any job runs

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        return FilesWritten(write_files(self.options, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if files := written(messages):
            self.options.open()._context.messages.commit(files)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        note_abort(written(messages))


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``: each batch is published once, by (query id, batch id), whatever is
    replayed."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        options.open()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        return FilesWritten(write_files(self.options, iterator), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        files = written(messages)
        queries = {m.query_id for m in messages if isinstance(m, FilesWritten) and m.query_id}
        if not files:
            return
        if len(queries) != 1:
            raise InvalidOption(
                "Spark did not say which query writes here, so a replayed batch would be "
                "published twice: "
                "publish with df.write from foreachBatch "
                "instead",
                option="checkpointLocation",
                value=None,
            )
        # Never a name that the user gave: with a new checkpoint, batches count from 0 again.
        producer = f"query-{queries.pop()}"
        log = self.options.open()._context.messages
        try:
            log.commit(files, mark=(producer_txn(producer), batchId))
        except DuplicatePublish:
            _log.warning(
                "batch %d of %s was published before its crash; it is not published again",
                batchId,
                producer,
            )
            note_abort(files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        note_abort(written(messages))
