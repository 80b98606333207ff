"""Read the messages of a queue, with an index of the commits that published them.

A publish is an ``add`` with ``dataChange=true`` of a path never seen before, in a commit that
removes nothing. So compaction, trims and RESTORE publish nothing, and each Delta writer that
appends is a publisher. Most commits come from ``commits/``, the latest from the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.actions import AddFile, missing_commit_error
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore, join
from spark_mq.delta.state import LogListing, TableState
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.delta.tables import checkpoint_soon
from spark_mq.errors import CorruptLog
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import ORDINAL_BITS, FileSlice, MessageIndex, sequence
from spark_mq.parquet.reader import MessageReader
from spark_mq.storage.archive_table import tables_disagree
from spark_mq.storage.commit_rows import file_columns
from spark_mq.storage.commits_table import CommitsTable
from spark_mq.storage.id_files import IdFiles
from spark_mq.storage.published_files import PublishedFiles, commit_matches
from spark_mq.storage.publishes import PublishReceipt
from spark_mq.storage.shared_look import shared_look_for
from spark_mq.storage.table_cleanup import TRIMMED
from spark_mq.util.notifier import notifier_for

# How old the index may be for a lease from a backlog in an object store. A look is a request.
RECENT_SECONDS: Final = 1.0
# From so many files on, an index forgets what sweeps forgot. It asks again at twice as many.
FORGET_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The planned recovery of the log of messages and its index."""

    index: MessageIndex  # of the log's messages, without the gap
    published: PublishedFiles
    covered: int  # the last version that ``commits/`` has
    agreed: int  # the last version up to which ``commits/`` and the log agree
    gap: Interval | None = None  # sequences of commits that neither the log nor ``commits/`` has
    unknown: Sequence[AddFile] = ()  # data files that no known commit added
    unknown_rows: int = 0


class MessageLog:
    """Read the messages of one queue from their Delta table. Thread-safe."""

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
        self.files = ObjectStore(path, storage_options, durable=durable)
        # 100,000 data files cost time to open; commits/ has what a reader needs of them.
        self.log = DeltaLog(self.files, track_files=False, on_checkpoint=checkpoint_soon)
        self.ids = IdFiles(self.files)
        self.notifier = notifier_for(self.files.key)
        self.shared_look = shared_look_for(self.files.key)
        self.commits = CommitsTable(
            join(path.rstrip("/").rpartition("/")[0], "commits"),
            self.log,
            storage_options,
            durable=durable,
        )
        self._lock = threading.RLock()
        self._reached: Callable[[bool], int] = lambda refresh: -1
        self._least_version = -1
        self._published = self.none_published()
        self._generation = 0
        self._forget_at = FORGET_FILES

    def open(self) -> TableState | None:
        """Return the table at its latest version, or None without one."""
        with wrap_store_errors(self.path, "opening"):
            return self.log.open()

    @property
    def known_state(self) -> TableState:
        """Return the table as of the last look."""
        with wrap_store_errors(self.path, "reading"):
            return self.log.state

    @property
    def description(self) -> str | None:
        """Return the text that describes the queue as of the last look, or None."""
        return self.known_state.description

    @property
    def table_id(self) -> str:
        """Return the table's id. A table made again has another one."""
        return self.known_state.table_id

    @property
    def trimmed(self) -> int:
        """Return the last trimmed sequence as of the last look, or -1."""
        return self.known_state.txns.get(TRIMMED, -1)

    def expect(self, reached: Callable[[bool], int]) -> None:
        """Refuse a log, from now on, that the ledgers are ahead of."""
        self._reached = reached
        self._least_version = reached(False) >> ORDINAL_BITS

    def check_expected(self, version: int) -> None:
        """Raise TablesDisagree if the log is older than the ledgers."""
        if version >= self._least_version:
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

    # -- the index

    def index(self, reach: int | None = None) -> MessageIndex:
        """Return the index with the latest commit, or a known one that contains `reach`."""
        with self._lock:
            if reach is None or reach > self._published.index.last_sequence:
                with wrap_store_errors(self.path, "reading the log of"):
                    self._look()
            return self._published.index

    def index_to_lease(self, after: int, wanted: int) -> MessageIndex:
        """Return the index to lease after a sequence, perhaps a moment old over an object store.

        It need not be the latest if it has `wanted` messages, or any if none are wanted.
        """
        known = self._published.index
        if self.files.is_local or self.log.seconds_since_look > RECENT_SECONDS:
            return self.index()
        if not wanted:
            return known if known.last_sequence >= after else self.index()
        # A time or a priority may change which messages come first.
        simple = not known.has_times_after(after) and known.priorities_after(after) == 1
        enough = known.count(after + 1, known.last_sequence) >= wanted
        return known if simple and enough else self.index()

    def full_index(self, first: int) -> MessageIndex:
        """Return the index with known forgotten files from `first` on."""
        index = self.index()
        if first > index.forgotten_to:
            return index
        past = file_columns(self.commits.past(first, index.forgotten_to))
        full = MessageIndex(forgotten=index.forgotten - sum(past.rows), lanes=index.layout.lanes)
        for columns in (past, *index.files.parts):
            full = full.extended_columns(columns, index.version)
        return full

    def known(self) -> MessageIndex:
        """Return the commit index without a look at the table."""
        return self._published.index

    def none_published(self) -> PublishedFiles:
        return PublishedFiles(self.files, self.path, self.active, self.lanes)

    def published(self) -> PublishedFiles:
        """Return what all commits publish, up to the latest."""
        with self._lock:
            self.index()
            return self._published

    def active(self, path: str) -> bool:
        """Return whether the table has a data file now."""
        return bool(DeltaLog(self.files, track_files={path}.__contains__).refresh().files())

    def _look(self) -> None:
        """Add the commits since the last look to the index."""
        latest = self.log.refresh().version
        self.check_expected(latest)
        if self.log.generation != self._generation:
            self._check_known()
            self._generation = self.log.generation
        if self._published.index.version < latest:
            self._catch_up(latest)
        if len(self._published.index.files) >= self._forget_at:
            self._forget_as_swept()
            self._forget_at = max(FORGET_FILES, 2 * len(self._published.index.files))

    def _catch_up(self, latest: int) -> None:
        broken = None
        # For a new handle commits/ has most commits. Of a trimmed file without statistics, it alone
        # has the number of rows.
        if self._published.index.version < max(0, self.trimmed >> ORDINAL_BITS):
            try:
                self._load()
            except CorruptLog as error:
                broken = error  # nobody needs it as long as all commits are there
        while self._published.index.version < latest:
            for commit in self.log.following(self._published.index.version + 1):
                self._published.apply(commit)
                if self._published.index.version == latest:
                    return
            # The next commit was cleaned since this handle looked last.
            if broken is not None or not self._load():
                raise broken or missing_commit_error(self.path, self._published.index.version + 1)

    def _check_known(self) -> None:
        """Raise CorruptLog if the log has replaced the index's last commit."""
        version = self._published.index.version
        try:
            same = version < 0 or self._published.matches(self.log.read_commit(version))
        except FileNotFoundError:
            return  # cleaned
        if not same:
            raise CorruptLog(
                f"commit {version} of {self.path} was replaced after it was read: its messages "
                "have the sequences of other messages. Open the queue again. Groups that have "
                "settled the other messages do not get these",
                path=self.path,
                version=version,
            )

    def _forget_as_swept(self) -> None:
        state = self.commits.open()
        if state is not None:
            self._published.forget_as(*self.commits.forgotten(state))

    def _load(self) -> bool:
        """Add what ``commits/`` has beyond the index. Return whether it has anything."""
        before = self._published.index.version
        stored = self.commits.read_after(before)
        if stored is not None:
            self._check_commits(*stored)
            self._published.forget_as(*self.commits.forgotten())
            self._published.load_rows(*stored)
        return self._published.index.version > before

    def _check_commits(self, rows: pa.Table, upto: int) -> None:
        latest = self.log.state.version
        if upto > latest:  # a sweep may have read later commits since this process looked
            latest = self.log.refresh().version
        if upto > latest:
            reason = f"commits/ has version {upto} of messages/, which ends at version {latest}"
            raise tables_disagree(self.commits.path, reason)
        try:
            commit = self.log.read_commit(upto)
        except FileNotFoundError:
            return  # cleaned
        if not commit_matches(rows, commit):
            reason = f"version {upto} of messages/ differs from the one in commits/"
            raise tables_disagree(self.commits.path, reason)

    def plan_recovery(self) -> LogPlan:
        """Compare the log with ``commits/``, and index what they have. Change nothing."""
        log, commits, published = self.log, self.commits, self.none_published()
        with wrap_store_errors(self.path, "reading"):
            latest = log.refresh().version
            rows, covered = commits.read_after() or (None, -1)
            agreed = min(covered, latest)
            if rows is not None:
                forgotten = commits.forgotten()
                agreed = _agreed(log, rows, forgotten[0], agreed)
                if agreed < covered and forgotten[0] > self.trimmed:
                    # The log is of before the trim. All agree on version 0, which made the table.
                    agreed, forgotten = 0, (-1, 0)
                published.forget_as(*forgotten)
                known = rows.filter(pc.less_equal(rows["version"], agreed))
                published.load_rows(known, agreed)
            gap = _gap(log, agreed, latest)
            for commit in log.following(gap[1] + 1 if gap else agreed + 1):
                published.apply(commit)
            if gap is None:
                return LogPlan(published.index, published, covered, agreed)
            files = DeltaLog(self.files).refresh().files()
            unknown = [file for file in files if not published.knows(file.path)]
            rows_again = sum(published.rows(file, gap[1]) for file in unknown)
        # They are in the order of their commits, unless another engine wrote the checkpoint.
        unknown.sort(key=attrgetter("modified"))
        within = sequence(gap[0], 0), sequence(gap[1] + 1, 0) - 1
        return LogPlan(published.index, published, covered, agreed, within, unknown, rows_again)

    # -- one commit, and the messages

    def look(self) -> TableState:
        """Return the table at its latest version."""
        with wrap_store_errors(self.path, "reading"):
            return self.log.refresh()

    def last_number(self, app: str) -> int | None:
        return self.look().txns.get(app)

    def receipt(self, app: str, number: int) -> PublishReceipt | None:
        """Return the receipt of a number, or None without its commit."""
        with self._lock:
            self.index()
            last, version = self._published.producer_numbers.get(app, (None, -1))
            index, first = self._published.index, sequence(version, 0)
            rows = index.count(first, sequence(version + 1, 0) - 1)
            known = last == number and first > index.forgotten_to
            return PublishReceipt.of_commit(version, rows) if known else None

    def note(self, version: int) -> dict[str, Any]:
        """Return the note of a commit of spark_mq, or an empty one if it is unknown."""
        with wrap_store_errors(self.path, "reading"):
            try:
                return self.log.read_commit(version).note
            except FileNotFoundError:
                return {}  # cleaned

    def read(
        self, slices: Iterable[FileSlice], columns: list[str] | None = None
    ) -> Iterator[tuple[FileSlice, pa.Table]]:
        """Yield slices with their messages, in order. Errors as :meth:`MessageReader.read`."""
        reader = MessageReader(self.files, columns)
        for piece in slices:
            yield piece, reader.read(piece)


def _agreed(log: DeltaLog, rows: pa.Table, forgotten_to: int, upto: int) -> int:
    """Return the last version up to which the log and ``commits/`` agree.

    ``commits/`` may lack the rows of files that are forgotten, and of rewrites of such files.
    """
    agreed = upto
    known = set(rows.filter(pc.greater(rows["last"], forgotten_to))["path"].to_pylist())
    for version in reversed(range(upto + 1)):
        try:
            commit = log.read_commit(version)
        except FileNotFoundError:  # cleaned, and all before it
            break
        sources = [file.path for file in commit.removes]
        gone = known.isdisjoint(sources) if sources else version <= forgotten_to >> ORDINAL_BITS
        if not commit_matches(rows, commit, forgotten=gone):
            agreed = version - 1
    return agreed


def _gap(log: DeltaLog, covered: int, latest: int) -> Interval | None:
    """Return the versions after `covered` that the log lacks, or None."""
    if covered >= latest:
        return None
    first = min(version for version in LogListing.of(log.store).commits if version > covered)
    return (covered + 1, first - 1) if first > covered + 1 else None
