"""Keep the messages of a queue in a Delta table, ``messages/``."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_mq.delta.actions import Change
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.delta.tables import KEPT_BY_THE_SWEEP, create_table
from spark_mq.errors import DuplicatePublish, StorageError, TablesDisagree
from spark_mq.parquet.schema import MESSAGE_SCHEMA
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.storage.log_recovery import (
    LogPlan,
    plan_recovery,
    publish_again,
    rewrite_commits,
)
from spark_mq.storage.message_log import MessageLog
from spark_mq.storage.pending_publish import PendingPublish, UniqueCommit, publish_change
from spark_mq.storage.publish_receipt import PublishReceipt, check_txn
from spark_mq.storage.published_files import PublishedFiles
from spark_mq.storage.table_cleanup import clean_ids, clean_message_tables, drop_files

__all__ = ["MessageTable"]

_COMMIT_TIMEOUT_SECONDS: Final = 60.0
# Fewer commits than this, none of which publishes, are not worth a commit of ``commits/``.
IDLE_COMMITS: Final = 100


class MessageTable(MessageLog):
    """Keep the messages of one queue in a Delta table. Thread-safe."""

    def create(self, description: str) -> bool:
        """Create the table. Return False if somebody else has created it."""
        with wrap_store_errors(self.path, "creating"):
            return create_table(
                self.files,
                MESSAGE_SCHEMA,
                description=description,
                configuration={
                    "delta.appendOnly": "true",
                    # Commits must not vanish before they are indexed, nor files that a lagging
                    # group needs.
                    **KEPT_BY_THE_SWEEP,
                },
            )

    def describe(self, text: Callable[[str | None], str], operation: str = "describe") -> None:
        """Change the description by a function that may run again, in one commit."""

        def compute(state: TableState) -> tuple[Change | None, None]:
            metadata = {**state.metadata, "description": text(state.description)}
            changed = metadata != state.metadata
            change = Change(uuid.uuid4().hex, {"operation": operation}, metadata=metadata)
            return change if changed else None, None

        with wrap_store_errors(self.path, "writing to"):
            self.log.transact(compute)

    # -- publishing

    def publish(
        self,
        table: pa.Table,
        *,
        txn: tuple[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        """Publish a table of messages as one durable commit. Errors as :meth:`commit`."""
        written = write_file(self.files, table, sync=False, lanes=self.lanes)
        try:
            return self.commit([written], txn=txn, note=note).placed(written)
        except (DuplicatePublish, TablesDisagree):
            self.discard(written)
            raise
        except StorageError as error:
            # In an object store it may land later still.
            if error.data["landed"] is False and self.files.is_local:
                self.discard(written)
            raise

    def discard(self, written: WrittenFile) -> None:
        """Delete a file that no commit will ever name."""
        with contextlib.suppress(OSError):
            self.files.delete(written.path)

    def commit(
        self,
        written: Iterable[WrittenFile],
        *,
        txn: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        """Publish files of :func:`write_file` as one commit, all or nothing.

        `txn` is a producer id and a number. Raise DuplicatePublish if it has published that number
        or a higher one. Raise ProducerFenced if its last number is not `after`, which is 0 for
        none. `note` is the commit's account of itself.
        """
        files = [file for file in written if file.rows]
        change = publish_change(files, note, () if txn is None else (txn,))
        tries = 0

        def compute(state: TableState) -> tuple[Change | None, int | None]:
            nonlocal tries
            tries += 1
            self._check_expected(state.version)
            if tries > 1 and (landed := self._version_of(files)) is not None:
                return None, landed  # the reply was lost, and the log was cleaned since
            if txn is not None:
                check_txn(state.txns.get(txn[0]), txn, after)
            return change, None

        with wrap_store_errors(self.path, "publishing to"):
            version, landed = self.log.transact(compute, timeout=_COMMIT_TIMEOUT_SECONDS)
        self.notifier.notify()
        rows = sum(file.rows for file in files)
        return PublishReceipt.of_commit(version if landed is None else landed, rows)

    def _version_of(self, files: Sequence[WrittenFile]) -> int | None:
        """Return the version that published these files, or None."""
        return self.published().version_of(files[0].path) if files else None

    def commit_unique(
        self,
        pending: PendingPublish,
        *,
        txn: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        """Publish the pending messages that are no duplicates. Errors as :meth:`commit`."""
        unique = UniqueCommit(
            self.log,
            self.ids,
            pending,
            version_of=lambda path: self.published().version_of(path),
            check=self._check_expected,
            txn=txn,
            after=after,
            note=note,
        )
        with wrap_store_errors(self.path, "publishing to"):
            receipt = unique.run(_COMMIT_TIMEOUT_SECONDS)
        self.notifier.notify()
        return receipt

    def clean_ids(self) -> int:
        """Delete the files of ids that no publish needs. Return their number."""
        with wrap_store_errors(self.path, "cleaning"):
            return clean_ids(self.log, self.ids)

    # -- keeping the table small

    def drop(self, horizon: int) -> int:
        """Drop files wholly at or below `horizon`. Return their number. Safe to kill and repeat."""
        with self._lock:
            index = self.index()
            # Whole commits only: the ordinals of the rest may need the footers of the commit's
            # other files.
            count = index.count_whole_commits(horizon)
            rewritten = self._published.rewritten(horizon)
        with wrap_store_errors(self.path, "trimming"):
            return drop_files(self.files, index.files, count, rewritten, horizon)

    def forget(self, up_to: int, keep_since: int) -> None:
        """Forget the index of trimmed commits that no group needs.

        `up_to` is the horizon of a trim that has dropped its files, or a lower start of a group.
        :meth:`full_index` still has commits from `keep_since` on, in microseconds.
        """
        with self._lock:
            published = self.published()
            published.forget(up_to)
        self.commits.index(published, IDLE_COMMITS, keep_since=keep_since)

    def plan_recovery(self) -> LogPlan:
        """Compare the log with ``commits/``. Change nothing."""
        with wrap_store_errors(self.path, "reading"):
            published = PublishedFiles(self.files, self.path, self.active, self.lanes)
            return plan_recovery(self.log, self.commits, published)

    def publish_again(self, plan: LogPlan) -> None:
        """Publish the files that no known commit added."""
        with wrap_store_errors(self.path, "publishing to"):
            publish_again(self.log, plan)

    def rewrite_commits(self, plan: LogPlan) -> None:
        """Make ``commits/`` describe this log."""
        rewrite_commits(self.log, self.commits, plan)

    def index_commits(self) -> int:
        """Write new commits to ``commits/``. Return their number."""
        return self.commits.index(self.published(), IDLE_COMMITS)

    def index_progress(self) -> tuple[int, int | None]:
        """Return the last version in ``commits/``, or -1, and its time in microseconds, or None."""
        return self.commits.progress()

    def clean(self, keep_versions: int | None, keep_seconds: float | None) -> int:
        """Delete old commits that ``commits/`` has. Return the number of files."""
        with wrap_store_errors(self.path, "cleaning"):
            return clean_message_tables(self.log, self.commits, keep_versions, keep_seconds)
