"""The files under a table's root, as raw bytes and as Parquet.

All access to an object store goes through delta-rs and its storage options, so that there is one way to configure it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, PyFileSystem

__all__ = ["Files"]


class Files:
    """The files under a table's root, by paths relative to it."""

    def __init__(self, root: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.options = dict(storage_options or {})

    @cached_property
    def _handler(self) -> DeltaStorageHandler:
        # Lazy: a local root must exist, and before the table is made it does not.
        return DeltaStorageHandler(self.root, self.options)

    @cached_property
    def _files(self) -> PyFileSystem:
        return PyFileSystem(self._handler)

    def open(self, path: str) -> Any:
        """A random-access file for pyarrow. Raises FileNotFoundError."""
        if not self.lists_late:  # without a copy in Python of what is read: a third of a reader's time
            return pa.OSFile(os.path.join(self.root, path))
        return self._files.open_input_file(path)

    def read(self, path: str) -> bytes:
        """A whole file. Raises FileNotFoundError."""
        with self.open(path) as file:
            return cast(bytes, file.read())

    def write(self, path: str, data: bytes) -> None:
        """Writes a new file; it is whole once this returns."""
        # Not through PyFileSystem: pyarrow 26 hands its buffers on, which the handler of deltalake 1.6 does not take.
        out: Any = self._handler._handler.open_output_stream(path, None)
        out.write(data)
        out.close()

    def delete(self, path: str) -> None:
        """Deletes a file; one that is gone already is no error."""
        try:
            self._files.delete_file(path)
        except (FileNotFoundError, OSError) as error:
            if not isinstance(error, FileNotFoundError) and self.exists(path):
                raise

    @property
    def lists_late(self) -> bool:
        """Whether a listing may be some seconds old, as that of an object store. Asked for by its name, a file is there at once."""
        return "://" in self.root

    def exists(self, path: str) -> bool:
        if self.lists_late:  # asked for its kind, what is not there is looked for as a folder too: a listing, beside the one request
            try:
                self._handler.open_input_file(path)
            except FileNotFoundError:
                return False
            return True
        return self._files.get_file_info(path).type == FileType.File

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Size and time of writing of a file: another file at the path has another one. None where there is none."""
        info = self._files.get_file_info(path)
        return (info.size or 0, info.mtime_ns or 0) if info.type == FileType.File else None

    def list(self, folder: str) -> list[str]:
        """Paths of the files in a folder, sorted."""
        return sorted(self.ages(folder))

    def ages(self, folder: str) -> dict[str, float]:
        """The files in a folder, with when they were written (seconds since 1970, by the store's clock)."""
        found = self._files.get_file_info(FileSelector(folder, allow_not_found=True))
        return {info.path: (info.mtime_ns or 0) / 1e9 for info in found if info.type == FileType.File}

    def read_parquet(self, path: str, schema: pa.Schema) -> pa.Table:
        """A whole Parquet file in a given schema: missing columns are null, view types become plain ones."""
        with self.open(path) as file:
            table = pq.ParquetFile(file).read()
        columns = [table[f.name].cast(f.type) if f.name in table.schema.names else pa.nulls(table.num_rows, f.type) for f in schema]
        return pa.table(columns, schema=schema)
