"""Find out why messages of a data file cannot be read."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from spark_mq.delta.memory_files import MemoryFiles
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.store_errors import one_line, to_storage_error
from spark_mq.errors import CorruptLog, SparkMQError
from spark_mq.ledger.message_index import ORDINAL_BITS, FileSlice
from spark_mq.util.clock import system_clock
from spark_mq.util.show import show_name

T = TypeVar("T")

Read = Callable[[ObjectStore], object]  # reads again, from a store with the file's bytes


def unreadable_reason(files: ObjectStore, path: str, error: Exception, read: Read) -> str:
    """Return why a file is damaged. Raise OSError or MemoryError if it may be sound."""
    name = show_name(path)
    try:
        data = files.read(path)
    except FileNotFoundError:
        return f"data file {name} is missing"
    try:
        copy = MemoryFiles(system_clock)
        store = ObjectStore(copy.root)
        store.write(path, data)
        read(store)
    except MemoryError:  # pyarrow's is an ArrowException, too
        raise
    except (OSError, pa.ArrowException) as damage:
        return f"data file {name} is not readable: {one_line(damage)}"
    text = f"data file {name} could not be read, and its bytes are sound: {one_line(error)}"
    raise OSError(errno.EIO, text) from error


def read_unless_damaged(
    files: ObjectStore, path: str, read: Callable[[ObjectStore], T]
) -> T | None:
    """Return what a read of a file returns, or None if the file is damaged. Raise OSError."""
    try:
        return read(files)
    except (OSError, pa.ArrowException) as error:
        unreadable_reason(files, path, error, read)
        return None


def row_count_error(rows: int) -> pa.ArrowInvalid:
    """Return the error for a file with fewer rows than its commit claims."""
    return pa.ArrowInvalid(f"it has {rows} rows, fewer than its commit says")


def unreadable_error(
    files: ObjectStore, piece: FileSlice, error: Exception, read: Read
) -> SparkMQError:
    """Return the error to raise for a slice that cannot be read. See :func:`unreadable_reason`."""
    try:
        why = unreadable_reason(files, piece.path, error, read)
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
