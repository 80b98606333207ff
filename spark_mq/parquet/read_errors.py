"""Explain why messages of a data file cannot be read."""

from __future__ import annotations

import pyarrow as pa

from spark_mq.delta.store_errors import one_line, to_storage_error
from spark_mq.errors import CorruptLog, SparkMQError
from spark_mq.ledger.message_index import ORDINAL_BITS, FileSlice
from spark_mq.parquet.files import FileStore

__all__ = ["row_count_error", "unreadable_error", "unreadable_reason"]


def unreadable_reason(files: FileStore, path: str, error: Exception) -> str:
    """Return why reading a data file failed.

    Raises OSError if the store does not answer. The file may be sound then.
    """
    try:
        files.read(path)
    except FileNotFoundError:
        return f"data file {path} is missing"
    return f"data file {path} is not readable: {one_line(error)}"


def row_count_error(rows: int) -> pa.ArrowInvalid:
    """Return the error for a file with fewer rows than its commit says."""
    return pa.ArrowInvalid(f"it has {rows} rows, fewer than its commit says")


def unreadable_error(files: FileStore, piece: FileSlice, error: Exception) -> SparkMQError:
    """Return the error to raise for a slice that cannot be read."""
    try:
        why = unreadable_reason(files, piece.path, error)
    except OSError as out_of_reach:
        return to_storage_error(files.root, out_of_reach, "reading messages of")
    last = piece.first + piece.rows - 1
    return CorruptLog(
        f"messages {piece.first}..{last} of {files.root} cannot be read: {why}. "
        "Restore the file from a backup before they are leased again. "
        "Otherwise they become dead letters without a payload. Other messages are not affected",
        path=files.root,
        version=piece.first >> ORDINAL_BITS,
    )
