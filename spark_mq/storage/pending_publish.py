"""Publish messages with dedup ids, some of which may be duplicates.

They wait in a :class:`PendingPublish`. Check and publish are one commit.
"""

from __future__ import annotations

import contextlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Change
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState
from spark_mq.errors import CorruptLog
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.storage.id_files import DEDUP_APP, ID_BYTES, IdFiles, IdWindow, block_path, new_name
from spark_mq.storage.publish_receipt import PublishReceipt, check_txn

__all__ = [
    "PendingFiles",
    "PendingPublish",
    "PendingTable",
    "UniqueCommit",
    "hashed_ids",
    "publish_change",
]


def hashed_ids(ids: pa.ChunkedArray) -> list[bytes | None]:
    """Return a hash of 128 bits for each id. Null stays None."""
    return [
        None if one is None else blake2b(one, digest_size=ID_BYTES).digest()
        for one in ids.cast(pa.binary()).to_pylist()
    ]


class PendingPublish(ABC):
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


class PendingTable(PendingPublish):
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


class PendingFiles(PendingPublish):
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


class UniqueCommit:
    """One publish of messages with ids."""

    def __init__(
        self,
        log: DeltaLog,
        ids: IdFiles,
        pending: PendingPublish,
        *,
        version_of: Callable[[str], int | None],
        check: Callable[[int], None],  # raises if a version cannot be the queue's
        txn: tuple[str, int] | None,
        after: int | None,
        note: Mapping[str, Any] | None,
    ) -> None:
        self._log, self._ids, self._pending = log, ids, pending
        self._version_of, self._check = version_of, check
        self._txn, self._after = txn, after
        self._note = note
        self._window: IdWindow | None = None  # written by the last try

    def run(self, timeout: float) -> PublishReceipt:
        """Publish the messages that are no duplicates. Each lost race is computed again."""
        version, done = self._log.transact(self._compute, timeout=timeout)
        if isinstance(done, PublishReceipt):
            return done
        files, duplicates = self._pending.tried[-1]
        self._pending.landed = files
        if self._window is not None:
            self._ids.landed(self._window)
        return PublishReceipt.of_commit(version, _rows(files), duplicates)

    def _compute(self, state: TableState) -> tuple[Change | None, PublishReceipt | None]:
        pending = self._pending
        self._check(state.version)
        if (landed := self._landed()) is not None:
            return None, landed  # the reply was lost
        self._forget_try()
        if self._txn is not None:
            check_txn(state.txns.get(self._txn[0]), self._txn, self._after)
        txns = () if self._txn is None else (self._txn,)
        window = self._load(state)
        duplicates = window.duplicates(pending.ids, pending.since)
        files = pending.files(duplicates)
        if not files:
            change = publish_change((), self._note, txns) if txns else None
            return change, PublishReceipt(None, range(0), True, duplicates)
        fresh = pending.fresh(duplicates)
        companions: list[str] = []
        if fresh:  # else only messages without an id are left
            self._window = window.with_ids(new_name(), fresh, pending.now, pending.since)
            companions.append(self._ids.write(self._window))
            txns = (*txns, (DEDUP_APP, self._window.blocks[0].ref.name))
        pending.tried.append((files, duplicates))
        return publish_change(files, self._note, txns, companions), None

    def _load(self, state: TableState) -> IdWindow:
        """Return the window of a state, or a later one if that is gone."""
        ids, head = self._ids, state.txns.get(DEDUP_APP)
        try:
            return ids.load(head)
        except FileNotFoundError:
            # A later publish may have taken the block over. The commit is then a conflict.
            latest = self._log.refresh().txns.get(DEDUP_APP)
        try:
            return ids.load(latest)
        except FileNotFoundError as error:
            path = f"{self._log.path}/{block_path(latest or 0)}"
            raise CorruptLog(
                f"the dedup ids of the last publishes cannot be read: {path}, or a file that it "
                f"names, is missing ({error}). Restore it from a backup. Without one, put an empty "
                f"file in its place: the ids are then forgotten",
                path=self._log.path,
                version=None,
            ) from error

    def _landed(self) -> PublishReceipt | None:
        """Return the receipt of an earlier try that has landed."""
        for files, duplicates in self._pending.tried:
            version = self._version_of(files[0].path)
            if version is not None:
                self._pending.landed = files
                return PublishReceipt.of_commit(version, _rows(files), duplicates)
        return None

    def _forget_try(self) -> None:
        """Delete the ids of a try that lost its race."""
        if self._window is not None:
            self._ids.delete(self._window)
            self._window = None


def _rows(files: Sequence[WrittenFile]) -> int:
    return sum(file.rows for file in files)


def publish_change(
    files: Sequence[WrittenFile],
    note: Mapping[str, Any] | None,
    txns: Sequence[tuple[str, int]] = (),
    companions: Sequence[str] = (),
) -> Change:
    """Return the commit that publishes files. `companions` must be durable before it."""
    return Change(
        uuid.uuid4().hex,
        note or {"operation": "publish"},
        adds=[AddFile(f.path, f.size, f.rows, stats=f.stats, tags=f.tags) for f in files],
        txns=tuple(txns),
        unsynced=not all(file.synced for file in files),
        companions=companions,
    )
