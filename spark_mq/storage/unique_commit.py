"""Publish messages with dedup ids. Check and publish are one commit."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_mq.delta.actions import AddFile, Change
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.state import TableState
from spark_mq.errors import CorruptLog
from spark_mq.ledger.dedup import IdWindow
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.draft import Draft
from spark_mq.storage.id_files import DEDUP_APP, IdFiles, block_path, new_name
from spark_mq.storage.message_store import PublishReceipt, check_txn

__all__ = ["UniqueCommit", "publish_change"]


class UniqueCommit:
    """One publish of messages with ids."""

    def __init__(
        self,
        log: DeltaLog,
        ids: IdFiles,
        draft: Draft,
        *,
        version_of: Callable[[str], int | None],
        check: Callable[[int], None],  # raises if a version cannot be the queue's
        txn: tuple[str, int] | None,
        after: int | None,
        note: Mapping[str, Any] | None,
    ) -> None:
        self._log, self._ids, self._draft = log, ids, draft
        self._version_of, self._check = version_of, check
        self._txn, self._after = txn, after
        self._note = note
        self._window: IdWindow | None = None  # written by the last try

    def run(self, timeout: float) -> PublishReceipt:
        """Publish the messages that are no duplicates. Each lost race is computed again."""
        version, done = self._log.transact(self._compute, timeout=timeout)
        if isinstance(done, PublishReceipt):
            return done
        files, duplicates = self._draft.tried[-1]
        self._draft.landed = files
        if self._window is not None:
            self._ids.landed(self._window)
        return PublishReceipt.of_commit(version, _rows(files), duplicates)

    def _compute(self, state: TableState) -> tuple[Change | None, PublishReceipt | None]:
        draft = self._draft
        self._check(state.version)
        if (landed := self._landed()) is not None:
            return None, landed  # the reply was lost
        self._forget_try()
        if self._txn is not None:
            check_txn(state.txns.get(self._txn[0]), self._txn, self._after)
        txns = () if self._txn is None else (self._txn,)
        window = self._load(state)
        duplicates = window.duplicates(draft.ids, draft.since)
        files = draft.files(duplicates)
        if not files:
            change = publish_change((), self._note, txns) if txns else None
            return change, PublishReceipt(None, range(0), True, duplicates)
        fresh = draft.fresh(duplicates)
        companions: list[str] = []
        if fresh:  # else only messages without an id are left
            self._window = window.with_ids(new_name(), fresh, draft.now, draft.since)
            companions.append(self._ids.write(self._window))
            txns = (*txns, (DEDUP_APP, self._window.blocks[0].ref.name))
        draft.tried.append((files, duplicates))
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
        for files, duplicates in self._draft.tried:
            version = self._version_of(files[0].path)
            if version is not None:
                self._draft.landed = files
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
