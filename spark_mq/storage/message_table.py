"""Keep the messages of a queue in a Delta table, ``messages/``.

A publish is an ``add`` with ``dataChange=true`` of a path never seen before, in a commit that
removes nothing. So compaction, trims and RESTORE publish nothing, and each Delta writer that
appends is a publisher.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from spark_mq.delta.actions import Change
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore, join
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.delta.tables import KEPT_BY_THE_SWEEP, checkpoint_soon, create_table
from spark_mq.ledger.message_index import ORDINAL_BITS, MessageIndex, sequence
from spark_mq.parquet.schema import MESSAGE_SCHEMA
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.commit_loader import CommitLoader
from spark_mq.storage.commits_table import CommitsTable
from spark_mq.storage.draft import Draft
from spark_mq.storage.id_files import IdFiles
from spark_mq.storage.log_recovery import plan_recovery, publish_again, rewrite_commits
from spark_mq.storage.message_store import (
    LogPlan,
    MessageStore,
    PublishReceipt,
    check_txn,
    tables_disagree,
)
from spark_mq.storage.message_trim import TRIMMED, drop_files
from spark_mq.storage.published_files import PublishedFiles
from spark_mq.storage.table_cleanup import clean_ids, clean_messages
from spark_mq.storage.unique_commit import UniqueCommit, publish_change
from spark_mq.util.notifier import notifier_for

__all__ = ["MessageTable"]

_COMMIT_TIMEOUT_SECONDS: Final = 60.0
# How old the index may be for a lease from a backlog in an object store. A look is a request.
RECENT_SECONDS: Final = 0.3
# From so many files on, an index forgets what sweeps forgot. It asks again at twice as many.
FORGET_FILES: Final = 10_000
# Fewer commits than this, none of which publishes, are not worth a commit of ``commits/``.
IDLE_COMMITS: Final = 100


class MessageTable(MessageStore):
    """Keep the messages of one queue in a Delta table. Thread-safe."""

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        durable: bool = True,
        lanes: int = 0,
    ) -> None:
        self.path = path
        self.lanes = lanes
        self.storage_options = dict(storage_options or {})
        self.files = ObjectStore(path, self.storage_options, durable=durable)
        # 100,000 data files cost time to open; commits/ has what a reader needs of them.
        self.log = DeltaLog(self.files, track_files=False, on_checkpoint=checkpoint_soon)
        self.ids = IdFiles(self.files)
        self.notifier = notifier_for(path)
        self.commits = CommitsTable(
            join(path.rstrip("/").rpartition("/")[0], "commits"),
            self.storage_options,
            durable=durable,
        )
        self._loader = CommitLoader(path, self.log, self.commits)
        self._lock = threading.RLock()
        self._reached: Callable[[bool], int] | None = None
        self._least_version = -1
        self._published = PublishedFiles(self.files, path, self.active, lanes)
        self._generation = 0
        self._forget_at = FORGET_FILES

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

    def open(self) -> TableState | None:
        """Return the table at its latest version, or None without one."""
        with wrap_store_errors(self.path, "opening"):
            return self.log.open()

    @property
    def description(self) -> str | None:
        with wrap_store_errors(self.path, "reading"):
            return self.log.state.description

    def describe(self, text: Callable[[str | None], str], operation: str = "describe") -> None:

        def compute(state: TableState) -> tuple[Change | None, None]:
            metadata = {**state.metadata, "description": text(state.description)}
            changed = metadata != state.metadata
            change = Change(uuid.uuid4().hex, {"operation": operation}, metadata=metadata)
            return change if changed else None, None

        with wrap_store_errors(self.path, "writing to"):
            self.log.transact(compute)

    @property
    def table_id(self) -> str:
        """Return the table's id. A table made again has another one."""
        with wrap_store_errors(self.path, "reading"):
            return self.log.state.table_id

    @property
    def trimmed(self) -> int:
        with wrap_store_errors(self.path, "reading"):
            return self.log.state.txns.get(TRIMMED, -1)

    def expect(self, reached: Callable[[bool], int]) -> None:
        self._reached = reached
        self._least_version = reached(False) >> ORDINAL_BITS

    def _check_expected(self, version: int) -> None:
        """Raise TablesDisagree if the log is older than the ledgers."""
        if version >= self._least_version or self._reached is None:
            return
        # Other processes may have committed between the looks at the two tables.
        self._least_version = self._reached(True) >> ORDINAL_BITS
        latest = self.log.refresh().version
        if latest < self._least_version:
            raise tables_disagree(
                self.path,
                f"leases/ has reached version {self._least_version} of messages/, which ends at "
                f"version {latest}",
            )

    # -- publishing

    def commit(
        self,
        written: Iterable[WrittenFile],
        *,
        txn: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
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

    def last_number(self, app: str) -> int | None:
        with wrap_store_errors(self.path, "reading"):
            return self.log.refresh().txns.get(app)

    def receipt(self, app: str, number: int) -> PublishReceipt | None:
        with self._lock:
            self.index()
            last, version = self._published.marks.get(app, (None, -1))
            index, first = self._published.index, sequence(version, 0)
            rows = index.count(first, sequence(version + 1, 0) - 1)
            known = last == number and first > index.forgotten_to
            return PublishReceipt.of_commit(version, rows) if known else None

    def commit_unique(
        self,
        draft: Draft,
        *,
        txn: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        unique = UniqueCommit(
            self.log,
            self.ids,
            draft,
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
        with wrap_store_errors(self.path, "cleaning"):
            return clean_ids(self.log, self.ids)

    def note(self, version: int) -> dict[str, Any]:
        with wrap_store_errors(self.path, "reading"):
            try:
                return self.log.read_commit(version).note
            except FileNotFoundError:
                return {}  # cleaned

    # -- the index

    def index(self, reach: int | None = None) -> MessageIndex:
        with self._lock:
            if reach is None or reach > self._published.index.last_sequence:
                with wrap_store_errors(self.path, "reading the log of"):
                    self._look()
            return self._published.index

    def index_to_lease(self, after: int, wanted: int) -> MessageIndex:
        known = self._published.index
        if self.files.is_local or self.log.seconds_since_look > RECENT_SECONDS:
            return self.index()
        # A time or a priority may change which messages come first.
        simple = not known.has_times_after(after) and known.priorities_after(after) == 1
        enough = known.count(after + 1, known.last_sequence) >= wanted
        return known if simple and enough else self.index()

    def full_index(self, first: int) -> MessageIndex:
        index = self.index()
        if first > index.forgotten_to:
            return index
        with wrap_store_errors(self.commits.path, "reading"):
            return self._loader.full_index(index, first)

    def known(self) -> MessageIndex:
        return self._published.index

    def published(self) -> PublishedFiles:
        """Return what all commits publish, up to the latest."""
        with self._lock:
            self.index()
            return self._published

    def _look(self) -> None:
        """Add the commits since the last look to the index."""
        latest = self.log.refresh().version
        self._check_expected(latest)
        if self.log.generation != self._generation:
            self._loader.check_known(self._published, latest)
            self._generation = self.log.generation
        try:
            if self._published.index.version < latest:
                self._loader.catch_up(self._published, latest)
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt: half of a commit may be in it
                self._published = PublishedFiles(self.files, self.path, self.active, self.lanes)
            raise
        if len(self._published.index.files) >= self._forget_at:
            self._loader.forget_as_swept(self._published)
            self._forget_at = max(FORGET_FILES, 2 * len(self._published.index.files))

    # -- keeping the table small

    def active(self, path: str) -> bool:
        """Return whether the table has a data file now."""
        return bool(DeltaLog(self.files, track_files={path}.__contains__).refresh().files())

    def drop(self, horizon: int) -> int:
        with self._lock:
            index = self.index()
            # Whole commits only: the ordinals of the rest may need the footers of the commit's
            # other files.
            count = index.count_whole_commits(horizon)
            rewritten = self._published.rewritten(horizon)
        with wrap_store_errors(self.path, "trimming"):
            return drop_files(self.files, index.files, count, rewritten, horizon)

    def forget(self, up_to: int, keep_since: int) -> None:
        with self._lock:
            published = self.published()
            published.forget(up_to)
        with wrap_store_errors(self.commits.path, "writing to"):
            self.commits.append(self.table_id, published, IDLE_COMMITS, keep_since=keep_since)

    def plan_recovery(self) -> LogPlan:
        with wrap_store_errors(self.path, "reading"):
            published = PublishedFiles(self.files, self.path, self.active, self.lanes)
            return plan_recovery(self.log, self.commits, published)

    def publish_again(self, plan: LogPlan) -> None:
        with wrap_store_errors(self.path, "publishing to"):
            publish_again(self.log, plan)

    def rewrite_commits(self, plan: LogPlan) -> None:
        with wrap_store_errors(self.commits.path, "writing to"):
            rewrite_commits(self.log, self.commits, plan)

    def index_commits(self) -> int:
        published = self.published()
        with wrap_store_errors(self.commits.path, "writing to"):
            return self.commits.append(self.table_id, published, IDLE_COMMITS)

    def index_progress(self) -> tuple[int, int | None]:
        with wrap_store_errors(self.commits.path, "reading"):
            return self.commits.progress(self.table_id)

    def clean(self, keep_versions: int | None, keep_seconds: float | None) -> int:
        with wrap_store_errors(self.path, "cleaning"):
            return clean_messages(self.log, self.commits, keep_versions, keep_seconds)
