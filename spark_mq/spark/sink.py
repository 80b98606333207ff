"""Publish a DataFrame: executors write Parquet files, and one commit publishes them."""

from __future__ import annotations

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

from spark_mq.errors import InvalidOption, InvalidSchema
from spark_mq.message import to_publish
from spark_mq.operations.publish import check_dedup, pending_of_files, publish_pending, report_files
from spark_mq.parquet.lease_columns import sort_by_slot
from spark_mq.parquet.publish_table import check_publishable, column_name
from spark_mq.parquet.writer import WrittenFile, discard_files, write_file
from spark_mq.spark.batch_publish import SinkProducer
from spark_mq.spark.options import WriteOptions
from spark_mq.storage.publishes import hashed_ids

_log = logging.getLogger(__name__)

FILE_BYTES = 128 * 2**20


@dataclass
class FilesWritten(WriterCommitMessage):
    """The files of one task, and the id of its streaming query."""

    files: tuple[WrittenFile, ...]
    query_id: str | None = None
    ids: tuple[bytes | None, ...] = ()  # hashed dedup ids of the messages, if rows have that column


def check_dataframe(schema: StructType, overwrite: bool, options: WriteOptions) -> None:
    """Raise InvalidSchema or InvalidOption before any job if a DataFrame cannot be published."""
    if overwrite:
        raise InvalidOption(
            "a queue cannot be overwritten. Use mode('append') or outputMode('append')",
            option="mode",
            value="overwrite",
        )
    columns = {column_name(f.name): f.dataType.simpleString() for f in schema}
    check_publishable(columns)
    if "dedup_id" in columns:
        queue = options.open()
        check_dedup(queue.settings, queue.path)


def write_files(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], query_id: str | None = None
) -> FilesWritten:
    """Write the rows of a task as data files of about FILE_BYTES.

    Raises InvalidSchema for a null value. Then no file stays.
    """
    queue = options.open()
    fence = queue.messages.fence  # as of before the first file
    now = time.time_ns() // 1000
    files: list[WrittenFile] = []
    ids: list[bytes | None] = []
    pending: list[pa.RecordBatch] = []

    def flush() -> None:
        if pending:
            table = to_publish(
                pa.Table.from_batches(pending), now, queue.settings.default_times(now)
            )
            lanes = queue.messages.lanes
            if "dedup_id" in table.schema.names:
                table = sort_by_slot(table, lanes).table  # the ids are in the order of the file
                ids.extend(hashed_ids(table["dedup_id"]))
            files.append(write_file(queue.messages.files, table, lanes=lanes, fence=fence))
            pending.clear()

    try:
        for batch in batches:
            if batch.num_rows:
                pending.append(batch)
            if sum(b.nbytes for b in pending) > FILE_BYTES:
                flush()
        flush()
    except InvalidSchema:
        discard_files(queue.messages.files, files)  # no commit has them yet
        raise
    return FilesWritten(tuple(files), query_id, tuple(ids))


def log_unpublished(files: Sequence[WrittenFile]) -> None:
    """Log the files that stay unpublished. A sweep deletes them after a day.

    They are not deleted here, because Spark calls abort also after a commit that raised, which may
    have landed.
    """
    if files:
        _log.warning(
            "%d files (%d bytes) stay unpublished: %s ...",
            len(files),
            sum(f.size for f in files),
            files[0].path,
        )


def collect_files(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenFile]:
    return [
        file for message in messages if isinstance(message, FilesWritten) for file in message.files
    ]


def commit_files(
    options: WriteOptions,
    messages: Sequence[WriterCommitMessage | None],
    producer: SinkProducer | None,
) -> None:
    """Publish the files of all tasks in one commit, unless the producer's number is published."""
    written = [message for message in messages if isinstance(message, FilesWritten)]
    files = collect_files(messages)
    if not files:
        return
    queue = options.open()
    ids = [hashed for message in written for hashed in message.ids]  # in the order of the files
    pending = pending_of_files(queue, files, ids)

    def publish() -> None:
        if producer is None:
            publish_pending(queue.messages, pending)
        elif not producer.commit(queue.messages, pending) and not any(ids):
            log_unpublished(files)  # a publish with ids deletes its files itself

    report_files(queue, sum(file.rows for file in files), publish)


class QueueWriter(DataSourceArrowWriter):
    """Publishes the rows of one ``df.write`` together. Spark pickles it for the tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        options.open()  # raises before any job runs if there is no queue

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        return write_files(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_files(self.options, messages, self.options.producer)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log_unpublished(collect_files(messages))


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Publishes each batch of a streaming query once, also if Spark runs it again."""

    def __init__(self, options: WriteOptions) -> None:
        if options.producer is not None:
            raise InvalidOption(
                "producerId is for df.write. A stream numbers its batches itself: drop the option",
                option="producerId",
                value=options.producer.name,
            )
        self.options = options
        options.open()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        return write_files(self.options, iterator, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish a batch's files in one commit, unless an earlier run of the batch has done so.

        The id of the query and the number of the batch identify it. Raises InvalidOption if Spark
        gave no query id, because then a repetition would not be noticed.
        """
        queries = {m.query_id for m in messages if isinstance(m, FilesWritten) and m.query_id}
        if not collect_files(messages):
            return
        if len(queries) != 1:
            raise InvalidOption(
                "publishing a stream failed: Spark gave no query id, so a repeated batch would be "
                "published twice. Publish with df.write from foreachBatch instead",
                option="checkpointLocation",
                value=None,
            )
        # Never a name that the user gave. With a new checkpoint, batches count from 0 again.
        commit_files(self.options, messages, SinkProducer(f"query-{queries.pop()}", batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log_unpublished(collect_files(messages))
