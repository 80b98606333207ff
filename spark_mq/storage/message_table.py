"""``messages/`` as a Delta table: publishing, reading the index, and dropping what is trimmed.

What counts as a publish: an ``add`` with ``dataChange=true``, in a commit that removes nothing, of a path never seen before. So
compaction, trims and RESTORE publish nothing, and any Delta writer that appends is a publisher.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from spark_mq.delta import legacy as delta
from spark_mq.delta.checkpoints import checkpoint
from spark_mq.delta.store_errors import STORE_ERRORS, explained, gone, telling
from spark_mq.errors import ContentionTimeout, CorruptLog, DuplicatePublish
from spark_mq.ledger.message_index import ORDINAL_BITS, MessageIndex, sequence
from spark_mq.parquet.writer import MESSAGE_SCHEMA, WrittenFile
from spark_mq.storage import cleanup
from spark_mq.storage.commits_table import CommitsTable
from spark_mq.storage.log_watch import LogWatch
from spark_mq.storage.message_store import MessageStore, PublishReceipt, check_mark
from spark_mq.storage.published_files import PublishedFiles
from spark_mq.util.notifier import notifier_for

__all__ = ["MessageTable"]

_COMMIT_TIMEOUT: Final = 60.0
SLOW: Final = 60.0
"""Seconds after which a commit makes sure that the log was not cleaned around it. The sweep leaves ten times as long."""


class MessageTable(MessageStore):
    """The log of one queue in a Delta table. ``path``: of ``messages/``. Safe to use from several threads."""

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.storage_options = dict(storage_options or {})
        self.files = delta.Files(path, self.storage_options)
        self.bell = notifier_for(path)
        self._lock = threading.RLock()
        self._table: DeltaTable | None = None
        self._id: str | None = None
        self._watch = LogWatch(self.files, path)
        self._state = PublishedFiles(self.files, path, self.active)
        self.commits = CommitsTable(delta.child(path.rstrip("/").rpartition("/")[0], "commits"), self.storage_options)

    def create(self, description: str) -> None:
        """Makes the table. Raises deltalake's TableAlreadyExists error where there is one."""
        DeltaTable.create(
            self.path,
            MESSAGE_SCHEMA,
            partition_by=["lane"],
            description=description,
            storage_options=self.storage_options,
            configuration={
                "delta.appendOnly": "true",
                # The log's JSON must not vanish before it is indexed, nor files that a lagging group still needs.
                "delta.enableExpiredLogCleanup": "false",
                "delta.deletedFileRetentionDuration": "interval 36500 days",
                "delta.logRetentionDuration": "interval 36500 days",
            },
        )

    @property
    def table_id(self) -> str:
        """The id of the table: another one at the same path has another."""
        with self._lock:
            return str(self.table.metadata().id)

    def open(self) -> DeltaTable | None:
        """The table at its latest version, or None where there is none. Raises UnsupportedTable."""
        with self._lock:
            opened = delta.open_table(self.path, self.storage_options)
            if opened is not None and self._id is None:
                self._table, self._id, self._watch.stood = opened, str(opened.metadata().id), None
            return opened

    @property
    def table(self) -> DeltaTable:
        """The table as last looked at."""
        with self._lock:
            if self._table is None:
                opened = self.open()
                if opened is None:
                    raise CorruptLog(f"there is no Delta table at {self.path} any more", path=self.path, version=None)
                table_id = str(opened.metadata().id)
                if self._id not in (None, table_id):
                    raise CorruptLog(
                        f"the Delta table at {self.path} was made anew since this handle was opened; open the queue again",
                        path=self.path,
                        version=None,
                    )
                self._table, self._id, self._watch.stood = opened, table_id, None
            return self._table

    def refresh(self) -> DeltaTable:
        """The table at its latest version."""
        with self._lock, telling(self.path, self.storage_options, "reading"):
            if self._watch.stood is not None and not self._watch.is_as_it_was(self._watch.stood):
                self._table = None
            try:
                delta.update(self.table, self.files)
            except DeltaError:
                self._table = None  # a handle older than what is left of the log: open anew, once
            table = self.table
            delta.check_features(table, self.path)
            self._watch.stands_on(table.version())
            return table

    def commit(
        self,
        written: Iterable[WrittenFile],
        *,
        mark: tuple[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        wanted = [file for file in written if file.rows]
        adds: list[AddAction | RemoveAction] = [
            AddAction(f.path, f.size, {"lane": None}, int(time.time() * 1000), True, f.stats) for f in wanted
        ]
        operation = uuid.uuid4().hex

        def attempt(table: DeltaTable) -> None:
            if mark is not None:
                check_mark(delta.mark(table, mark[0], self.files)[0], mark)
            # A schema is wanted even though the files are there; no retries of delta-rs's own: one of them landed a commit twice.
            table.create_write_transaction(
                adds,
                "append",
                MESSAGE_SCHEMA,
                ["lane"],
                commit_properties=delta.commit_properties(operation, note or {"operation": "publish"}, [mark] if mark else [], retries=0),
                post_commithook_properties=delta.no_housekeeping(),
            )

        version = self._run(attempt, operation, {f.path for f in wanted})
        self.bell.ring()
        return _receipt(version, sum(f.rows for f in wanted))

    def drop(self, horizon: int) -> int:
        with self._lock:
            files = self.index().files
            # Whole commits only: the ordinals of what is left of one may need its other files' footers.
            started = {file.first >> ORDINAL_BITS for file in files if file.last > horizon}
            old = {file.path for file in files if file.first >> ORDINAL_BITS not in started}
            old |= self._state.rewritten(horizon)
            gone = old.intersection(self.active())
        self.remove(sorted(gone))
        with telling(self.path, self.storage_options, "trimming"):
            # All that lie there, not just those just removed: a run before may have died here.
            folders = {path.rpartition("/")[0] for path in old}
            for path in old.intersection(path for folder in folders for path in self.files.list(folder)):
                self.files.delete(path)
        return len(gone)

    def index_commits(self) -> int:
        with telling(self.commits.path, self.storage_options, "writing to"):
            return cleanup.index_commits(self)

    def clean(self, keep_versions: int | None, keep_seconds: float | None) -> int:
        versions = cleanup.KEEP_VERSIONS if keep_versions is None else keep_versions
        seconds = cleanup.KEEP_SECONDS if keep_seconds is None else keep_seconds
        checkpoint(self.files)
        return cleanup.clean_messages(self, versions, seconds) + cleanup.clean_commits(self)

    def active(self) -> list[str]:
        """The data files that the table has now."""
        return delta.paths(self.refresh())

    def remove(self, paths: Iterable[str]) -> None:
        """Drops data files from the table: no data change, so that streams on ``messages/`` are not disturbed."""
        operation = uuid.uuid4().hex
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [RemoveAction(path, False, now, None, {"lane": None}) for path in paths]
        if actions:
            self._run(
                lambda table: table.create_write_transaction(
                    actions,
                    "append",
                    MESSAGE_SCHEMA,
                    ["lane"],
                    commit_properties=delta.commit_properties(operation, {"operation": "trim"}, retries=0),
                    post_commithook_properties=delta.no_housekeeping(),
                ),
                operation,
            )

    def _run(self, attempt: Callable[[DeltaTable], None], operation: str, paths: Set[str] = frozenset()) -> int:
        """One optimistic commit, tried until it lands. Returns its version. ``paths``: of the files that it publishes."""
        deadline = time.monotonic() + _COMMIT_TIMEOUT
        tries = 0
        while True:
            with self._lock:
                table = self.refresh()
                base, started = table.version(), time.time()
                try:
                    attempt(table)
                    if time.time() - started > SLOW and self._is_stray(base + 1, paths):
                        continue
                    self._watch.reached(base + 1)
                    return base + 1
                except DuplicatePublish:
                    raise
                except Exception as error:
                    latest, landed = self._after(error, base, operation, paths)
                    if landed is not None:
                        return landed
                    if latest == base:  # nobody else committed: this is no lost race
                        if not isinstance(error, STORE_ERRORS):
                            raise
                        raise explained(self.path, self.storage_options, error, "publishing to") from error
                    tries += 1
                    if time.monotonic() > deadline:
                        raise ContentionTimeout(
                            f"publishing to {self.path} lost {tries} races in {_COMMIT_TIMEOUT:.0f} s; nothing was published",
                            group=None,
                            attempts=tries,
                        ) from error
            time.sleep(min(0.2, 0.002 * 2 ** min(tries, 7)) * (0.5 + uuid.uuid4().int % 100 / 100))

    def _after(self, error: Exception, base: int, operation: str, paths: Set[str]) -> tuple[int, int | None]:
        """The latest version after a failure, and the one that landed all the same (a PUT whose reply got lost), or None."""
        try:
            latest = self.refresh().version()
            if latest == base:
                self._table = None  # or the handle knows no better: what it stood on may be gone
                latest = self.refresh().version()
            return latest, self._landed(base, latest, operation, paths)
        except STORE_ERRORS as second:
            if not isinstance(error, STORE_ERRORS):
                raise
            raise explained(self.path, self.storage_options, error, "publishing to", landed=None) from second

    def _landed(self, base: int, latest: int, operation: str, paths: Set[str]) -> int | None:
        """The version after `base` in which a commit landed, or None."""
        found = delta.landed_since(self.files, self.path, base, latest, operation)
        if found is None and latest > base and paths and not self.files.exists(delta.log_path(base + 1)):
            self._catch_up(latest)  # the log has been cleaned since: commits/ knows
            found = next((version for path in paths if (version := self._state.published_in(path)) is not None), None)
        return found

    def _is_stray(self, version: int, paths: Set[str]) -> bool:
        """Whether a commit was so slow that another one of that version had been cleaned away before. It is then taken back.

        It overwrote nothing, but nobody would ever see it.
        """
        written_down = self.commits.read(self.table_id, version - 1)
        if written_down is None or not paths or not paths.isdisjoint(written_down[0]["path"].to_pylist()):
            return False
        self.files.delete(delta.log_path(version))
        self._table = None
        return True

    def last_number(self, app: str) -> int | None:
        with telling(self.path, self.storage_options, "reading"):
            return delta.mark(self.refresh(), app, self.files)[0]

    def receipt(self, app: str, number: int) -> PublishReceipt | None:
        with self._lock:
            latest = self.refresh().version()
            for version in range(latest, self._state.index.version, -1):
                try:
                    actions = delta.read_commit(self.files, version, self.path)
                except FileNotFoundError:
                    self._catch_up(latest)  # cleaned, so it stands in commits/
                    break
                if any((a["txn"]["appId"], a["txn"]["version"]) == (app, number) for a in actions if "txn" in a):
                    return _receipt(version, sum(self._state.rows(a["add"], version) for a in actions if "add" in a))
            last, version = self._state.marks.get(app, (None, -1))
            rows = self._state.index.count(sequence(version, 0), sequence(version + 1, 0) - 1)
            return _receipt(version, rows) if last == number else None

    def index(self, reach: int | None = None) -> MessageIndex:
        with self._lock:
            if reach is None or reach > self._state.index.tail:
                with telling(self.path, self.storage_options, "reading the log of"):
                    self._look()
            return self._state.index

    def known(self) -> MessageIndex:
        return self._state.index

    def _look(self) -> None:
        """Takes in what has been committed since the last look.

        Goes by the names of the log's files alone, for a look at the table costs time with each file that this has. Where the last commit
        known is no longer there as it was, the log has been cleaned beyond it, or the table was made anew: then it opens the table.
        """
        index = self._state.index
        before = index.version
        if not self._watch.is_as_it_was(self._watch.known):
            self._table = None if before >= 0 else self._table
            latest = self.refresh().version()
            self._watch.check_known(self._state, latest)
            self._catch_up(latest)
        else:
            while True:
                try:
                    actions = delta.read_commit(self.files, index.version + 1, self.path)
                except FileNotFoundError:
                    self._watch.check_beyond(index.version)
                    break
                self._state.take(index.version + 1, actions)
        if index.version > before or self._watch.known is None:
            self._watch.known = self._watch.stamp_of(index.version)

    def state(self) -> PublishedFiles:
        """What all commits say, brought up to the latest."""
        with self._lock:
            self.index()
            return self._state

    def _catch_up(self, latest: int) -> None:
        """Takes the commits up to `latest` in: a new handle's from commits/, as far as it goes; then from their JSON."""
        index, broken = self._state.index, None
        if index.version < 0:
            try:
                self._load()
            except CorruptLog as error:
                broken = error  # as long as all commits are there, nobody needs it
        while index.version < latest:
            version = index.version + 1
            try:
                self._state.take(version, delta.read_commit(self.files, version, self.path))
            except FileNotFoundError as error:
                if broken is None and self._load():
                    continue  # cleaned since this handle looked last
                raise (broken or gone(self.path, version)) from error

    def _load(self) -> bool:
        """Takes in what commits/ says beyond what is known. Returns whether it said anything."""
        before = self._state.index.version
        found = self.commits.read(self.table_id, before)
        if found is not None:
            self._state.load(*found)
        return self._state.index.version > before


def _receipt(version: int, rows: int) -> PublishReceipt:
    return PublishReceipt(version, range(sequence(version, 0), sequence(version, rows)))
