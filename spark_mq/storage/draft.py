"""Hold messages with dedup ids before their publish. Some may be duplicates."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.delta.object_store import ObjectStore
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.storage.id_files import ID_BYTES

__all__ = ["Draft", "FilesDraft", "TableDraft", "hashed_ids"]


def hashed_ids(ids: pa.ChunkedArray) -> list[bytes | None]:
    """Return a hash of 128 bits for each id. Null stays None."""
    return [
        None if one is None else blake2b(one, digest_size=ID_BYTES).digest()
        for one in ids.cast(pa.binary()).to_pylist()
    ]


class Draft(ABC):
    """Messages to publish, each id once within `window` microseconds before `now`."""

    def __init__(
        self,
        store: ObjectStore,
        ids: Sequence[bytes | None],
        now: int,
        window: int,
        *,
        lanes: int = 0,
    ) -> None:
        self.store = store
        self.lanes = lanes
        self.ids = ids  # hashed, None for a message without one
        self.now = now
        self.since = now - window
        # The files of each commit that was tried, and the duplicates that they leave out.
        self.tried: list[tuple[list[WrittenFile], tuple[int, ...]]] = []
        self.landed: Sequence[WrittenFile] = ()  # the files that the commit published
        self._last: tuple[tuple[int, ...], list[WrittenFile]] | None = None
        self._written: list[WrittenFile] = []

    def files(self, duplicates: tuple[int, ...]) -> list[WrittenFile]:
        """Return the files of all messages but the duplicates. They are written when asked for."""
        if self._last is None or self._last[0] != duplicates:
            files = [] if len(duplicates) == len(self.ids) else self._make(set(duplicates))
            self._last = (duplicates, files)
        return self._last[1]

    def fresh(self, duplicates: tuple[int, ...]) -> list[bytes]:
        """Return the ids of all messages but the duplicates."""
        left_out = set(duplicates)
        return [one for at, one in enumerate(self.ids) if one is not None and at not in left_out]

    def discard(self, keep: Sequence[WrittenFile] = ()) -> None:
        """Delete the files that no commit will ever name."""
        kept = {file.path for file in keep}
        for file in self._written:
            if file.path not in kept:
                with contextlib.suppress(OSError):
                    self.store.delete(file.path)

    @abstractmethod
    def _make(self, duplicates: set[int]) -> list[WrittenFile]:
        """Write the files of all messages but the duplicates."""

    def _write(self, table: pa.Table) -> list[WrittenFile]:
        if not table.num_rows:
            return []
        written = [write_file(self.store, table, sync=False, lanes=self.lanes)]
        self._written += written
        return written


class TableDraft(Draft):
    """Messages of a table."""

    def __init__(
        self,
        store: ObjectStore,
        table: pa.Table,
        ids: Sequence[bytes | None],
        now: int,
        window: int,
        *,
        lanes: int = 0,
    ) -> None:
        super().__init__(store, ids, now, window, lanes=lanes)
        self._table = table

    def _make(self, duplicates: set[int]) -> list[WrittenFile]:
        return self._write(_without(self._table, duplicates, 0))


class FilesDraft(Draft):
    """Messages of files that are written already."""

    def __init__(
        self,
        store: ObjectStore,
        files: Sequence[WrittenFile],
        ids: Sequence[bytes | None],
        now: int,
        window: int,
        *,
        lanes: int = 0,
    ) -> None:
        super().__init__(store, ids, now, window, lanes=lanes)
        self._given = list(files)
        self._written = list(files)

    def _make(self, duplicates: set[int]) -> list[WrittenFile]:
        made: list[WrittenFile] = []
        first = 0
        for file in self._given:
            rows = range(first, first + file.rows)
            first = rows.stop
            if duplicates.isdisjoint(rows):
                made.append(replace(file))
            elif not duplicates.issuperset(rows):
                with self.store.open(file.path) as source:
                    table = pq.ParquetFile(source).read(use_threads=False)
                made += self._write(_without(table, duplicates, rows.start))
        return made


def _without(table: pa.Table, duplicates: set[int], first: int) -> pa.Table:
    """Return the rows that are no duplicates. `first` is the position of the first row."""
    if not duplicates:
        return table
    return table.filter(pa.array([first + at not in duplicates for at in range(table.num_rows)]))
