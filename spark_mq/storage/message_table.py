"""Keep the messages of a queue in a Delta table, ``messages/``."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_mq.delta.actions import AddFile, Change
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.delta.tables import KEPT_BY_THE_SWEEP, create_table
from spark_mq.errors import CorruptLog, TablesDisagree
from spark_mq.ledger.walk import AskHeld, Held
from spark_mq.parquet.schema import MESSAGE_SCHEMA
from spark_mq.parquet.writer import BATCH_TAG, REPLACES_TAG, WrittenFile, write_file
from spark_mq.storage.id_files import (
    DEDUP_APP,
    DEDUP_VERSION_APP,
    NO_IDS,
    IdWindow,
    block_path,
    head_of,
    new_name,
)
from spark_mq.storage.message_log import LogPlan, MessageLog
from spark_mq.storage.publishes import (
    NOTHING_MET,
    Met,
    PendingPublish,
    PublishReceipt,
    check_txn,
    fence_of,
)
from spark_mq.storage.stored_entries import check_open
from spark_mq.storage.table_cleanup import (
    clean_ids,
    clean_leftovers,
    clean_message_tables,
    drop_files,
    fence_in,
    has_leftovers,
)

_log = logging.getLogger(__name__)

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

    def describe(self, text: Callable[[], str], operation: str = "describe") -> None:
        """Change the description in one commit, by a function that runs after each look."""
        self._change_metadata(lambda _: {"description": text()}, operation)

    def change_property(
        self, key: str, value: Callable[[TableState], str | None], operation: str
    ) -> TableState:
        """Change an entry of the table configuration in one commit. Return the state after it.

        The function returns the new text, or None to remove the entry. It may run again.
        """

        def changed(state: TableState) -> dict[str, Any]:
            given = dict(state.metadata.get("configuration") or {})
            given.pop(key, None)
            text = value(state)
            return {"configuration": given if text is None else {**given, key: text}}

        return self._change_metadata(changed, operation)

    def _change_metadata(
        self, changed: Callable[[TableState], dict[str, Any]], operation: str
    ) -> TableState:
        def compute(state: TableState) -> tuple[Change | None, None]:
            metadata = {**state.metadata, **changed(state)}
            change = Change(uuid.uuid4().hex, {"operation": operation}, metadata=metadata)
            return change if metadata != state.metadata else None, None

        with wrap_store_errors(self.path, "writing to"):
            self.log.transact(compute)
            return self.log.state

    # -- publishing

    def commit(
        self,
        pending: PendingPublish,
        *,
        txn: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
        check: Callable[[TableState], None] | None = None,
    ) -> PublishReceipt:
        """Publish the pending messages that are no duplicates as one durable commit.

        `txn` is a producer id and a number. Raise DuplicatePublish if it has published that number
        or a higher one. Raise ProducerFenced if its last number is not `after`, which is 0 for
        none. `note` is the commit's account of itself. `check` may raise for the state before the
        commit, in the same transaction.
        """
        publish = _Publish(self, pending, txn, after, note, check)
        with wrap_store_errors(self.path, "publishing to"):
            receipt = publish.run()
        self.notifier.notify()
        return receipt

    def has_or_fence(self, app: str, number: int) -> bool:
        """Return whether a producer has published a number. If not, it never can from now on."""

        def compute(state: TableState) -> tuple[Change | None, bool]:
            if state.txns.get(app, -1) >= number:
                return None, state.txns.get(fence_of(app), -1) < number
            txns = [(app, number), (fence_of(app), number)]
            return Change(uuid.uuid4().hex, {"operation": "fence"}, txns=txns), False

        with wrap_store_errors(self.path, "fencing a publish to"):
            return self.log.transact(compute)[1]

    def load_ids(self, state: TableState) -> IdWindow:
        """Return the window of a state, or a later one if that is gone."""
        head = head_of(state.txns)
        try:
            return self.ids.load(head)
        except FileNotFoundError:
            # A later publish may have taken the block over. The commit is then a conflict.
            latest = head_of(self.log.refresh().txns)
        try:
            return self.ids.load(latest)
        except FileNotFoundError as error:
            path = f"{self.path}/{block_path(latest.name if latest else 0)}"
            raise CorruptLog(
                f"the dedup ids of the last publishes cannot be read: {path}, or a file that it "
                f"names, is missing ({error}). Restore it from a backup. Without one, put an empty "
                f"file in its place: the ids are then forgotten",
                path=self.path,
                version=None,
            ) from error

    def known_ids(self, ids: Sequence[bytes | None]) -> dict[int, int]:
        """Return the latest sequence of each known id by position. Some may have expired."""
        with wrap_store_errors(self.path, "reading"):
            return self.load_ids(self.log.refresh()).latest(ids)

    def clean_ids(self) -> int:
        with wrap_store_errors(self.path, "cleaning"):
            return clean_ids(self.log, self.ids)

    @property
    def fence(self) -> int:
        """Return the last list of leftovers as of the last look, for a file to be written."""
        return fence_in(self.known_state.txns)

    def write_file(self, table: pa.Table) -> WrittenFile:
        """Write messages as a data file for a later commit. Raise StorageError."""
        return write_file(self.files, table, lanes=self.lanes, fence=self.fence)

    # -- keeping the table small

    def clean_leftovers(self) -> int:
        with wrap_store_errors(self.path, "cleaning"):
            return clean_leftovers(self.log, self.published)

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

    def publish_again(self, plan: LogPlan) -> None:
        change = Change(uuid.uuid4().hex, {"operation": "publish again"}, adds=plan.unknown)
        with wrap_store_errors(self.path, "publishing to"):
            self.log.commit(change, self.log.refresh().version)

    def rewrite_commits(self, plan: LogPlan) -> None:
        """Make ``commits/`` describe this log. Readers refuse the queue before this last step."""
        if plan.covered > plan.agreed:
            self.commits.truncate(plan.agreed)
        if plan.gap is not None:
            self.commits.index(plan.published, 0)

    def index_commits(self) -> int:
        """Write new commits to ``commits/``. Return their number."""
        return self.commits.index(self.published(), IDLE_COMMITS)

    def index_progress(self) -> tuple[int, int | None]:
        """Return the last version in ``commits/``, or -1, and its time in microseconds, or None."""
        return self.commits.progress()

    def clean(self) -> int:
        with wrap_store_errors(self.path, "cleaning"):
            return clean_message_tables(self.log, self.commits)


@dataclass(slots=True)
class _Publish:
    """One publish. Its check for duplicates and its commit are one transaction."""

    table: MessageTable
    pending: PendingPublish
    txn: tuple[str, int] | None
    after: int | None
    note: Mapping[str, Any] | None
    check: Callable[[TableState], None] | None
    window: IdWindow | None = None  # written by the last try

    def run(self) -> PublishReceipt:
        """Publish the messages that are no duplicates. Each lost race is computed again."""
        table, pending = self.table, self.pending
        pending.fence = fence_in(table.log.state.txns)
        if not pending.ids:
            pending.files()  # before the look at the log, so that fewer commits land after it
        version, done = table.log.transact(self._compute, timeout=_COMMIT_TIMEOUT_SECONDS)
        if done is not None:
            return done
        files, met = pending.tried[-1]
        pending.landed = files
        if self.window is not None:
            table.ids.landed(self.window, version)
        return PublishReceipt.of_files(version, files, met)

    def _compute(self, state: TableState) -> tuple[Change | None, PublishReceipt | None]:
        pending = self.pending
        self.table.check_expected(state.version)
        if (landed := self._landed()) is not None:
            return None, landed  # the reply was lost
        self._forget_try()
        if self.check is not None:
            self.check(state)
        if self.txn is not None:
            check_txn(state.txns.get(self.txn[0]), self.txn, self.after)
        if pending.batch is not None:
            check_open(state, pending.batch, self.table.path)
        window = self.table.load_ids(state) if pending.ids else NO_IDS
        met = pending.meet(window)
        files = pending.files(met.duplicates)
        if not files:
            receipt = PublishReceipt.of_duplicates(met.duplicates)
            return (self._change(()) if self.txn else None), receipt
        if has_leftovers(self.table.files, fence_in(state.txns), files):
            pending.fence = fence_in(state.txns)
            pending.write_again()
            files = pending.files(met.duplicates)
        fresh = pending.fresh(met.duplicates)
        if fresh:  # else only messages without an id are left
            self.window = window.with_ids(
                new_name(), fresh, pending.now, pending.since, self._asker()
            )
        change = self._change(files, met)
        pending.tried.append((files, met))
        return change, None

    def _asker(self) -> AskHeld | None:
        """Return what says which older ids to keep: all, if a ledger cannot be read."""
        ask = self.pending.ask
        if ask is None:
            return None

        def ask_or_keep(sequences: Collection[int]) -> Held:
            try:
                return ask(sequences)
            except (CorruptLog, TablesDisagree) as error:
                _log.debug("no ids of %s were forgotten: %s", self.table.path, error)
                return Held(-1, set(sequences))

        return ask_or_keep

    def _change(self, files: Sequence[WrittenFile], met: Met = NOTHING_MET) -> Change:
        """Return the commit that publishes files. It syncs the new ids before."""
        txns, companions = [] if self.txn is None else [self.txn], list[str]()
        if self.window is not None:
            companions.append(self.table.ids.write(self.window))
            txns.append((DEDUP_APP, self.window.blocks[0].ref.name))
        batch = {} if self.pending.batch is None else {BATCH_TAG: self.pending.batch}
        tags = [{**file.tags, **batch} for file in files]
        if met.replaces:  # one file names them for the whole commit
            tags[0][REPLACES_TAG] = met.replaced_text
        return Change(
            uuid.uuid4().hex,
            self.note or {"operation": "publish"},
            adds=[
                AddFile(f.path, f.size, f.rows, stats=f.stats, tags=own)
                for f, own in zip(files, tags, strict=True)
            ],
            txns=txns,
            unsynced=not all(file.synced for file in files),
            companions=companions,
            version_app=None if self.window is None else DEDUP_VERSION_APP,
        )

    def _landed(self) -> PublishReceipt | None:
        for files, met in self.pending.tried:
            version = self.table.published().version_of(files[0].path)
            if version is not None:
                self.pending.landed = files
                return PublishReceipt.of_files(version, files, met)
        return None

    def _forget_try(self) -> None:
        if self.window is not None:
            self.table.ids.delete(self.window)
            self.window = None
