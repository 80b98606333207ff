"""The store that holds data files, and why messages of a file cannot be read."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from spark_mq.delta.store_errors import one_line, to_storage_error
from spark_mq.errors import CorruptLog, SparkMQError
from spark_mq.ledger.message_index import ORDINAL_BITS, FileSlice
from spark_mq.util.show import show_name

__all__ = ["FileStore", "Read", "row_count_error", "unreadable_error", "unreadable_reason"]


class FileStore(Protocol):
    """Read and write files by paths relative to one root."""

    root: str
    options: dict[str, str]

    def open(self, path: str) -> Any:
        """Open a random-access file for pyarrow. Raise FileNotFoundError if it is missing."""

    def read(self, path: str) -> bytes:
        """Return a whole file. Raise FileNotFoundError if it is missing."""

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a whole file. Without `sync` it is on the disk after a later commit."""

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""


Read = Callable[[FileStore], object]  # reads again, from a store with the file's bytes


def unreadable_reason(files: FileStore, path: str, error: Exception, read: Read) -> str:
    """Return why a file is damaged. Raise OSError or MemoryError if it may be sound."""
    name = show_name(path)
    try:
        data = files.read(path)
    except FileNotFoundError:
        return f"data file {name} is missing"
    try:
        read(_FileBytes(path, data))
    except MemoryError:  # pyarrow's is an ArrowException, too
        raise
    except (OSError, pa.ArrowException) as damage:
        return f"data file {name} is not readable: {one_line(damage)}"
    text = f"data file {name} could not be read, and its bytes are sound: {one_line(error)}"
    raise OSError(errno.EIO, text) from error


class _FileBytes:
    """A store with one file, in memory."""

    def __init__(self, path: str, data: bytes) -> None:
        self.root = f"bytes of {path}"
        self.options: dict[str, str] = {}
        self._path, self._data = path, data

    def open(self, path: str) -> Any:
        return pa.BufferReader(self.read(path))

    def read(self, path: str) -> bytes:
        if path != self._path:
            raise FileNotFoundError(path)
        return self._data

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        raise OSError(errno.EROFS, "this store is for reading", path)

    def delete(self, path: str) -> None:
        raise OSError(errno.EROFS, "this store is for reading", path)


def row_count_error(rows: int) -> pa.ArrowInvalid:
    """Return the error for a file with fewer rows than its commit claims."""
    return pa.ArrowInvalid(f"it has {rows} rows, fewer than its commit says")


def unreadable_error(
    files: FileStore, piece: FileSlice, error: Exception, read: Read
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
