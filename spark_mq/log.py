"""``messages/``: the append-only log. Publishing, and reading the index and the messages back.

What counts as a publish: an ``add`` with ``dataChange=true``, in a commit that removes nothing, of a path never seen before. So
compaction, trims and RESTORE publish nothing, and any Delta writer that appends is a publisher.
"""

from __future__ import annotations

import io
import json
import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from spark_mq import delta
from spark_mq.errors import ContentionTimeout, CorruptLog, DuplicatePublish
from spark_mq.index import CommitIndex, LogFile, Slice, sequence

__all__ = ["MESSAGE_SCHEMA", "DeltaLog", "MessageLog", "PublishReceipt", "SliceReader", "WrittenFile", "write_file"]

_log = logging.getLogger(__name__)

_INSTANT = pa.timestamp("us", tz="UTC")
MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("lane", pa.int32()),
        pa.field("message_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("published_at", _INSTANT),
        pa.field("deliver_at", _INSTANT),
        pa.field("expires_at", _INSTANT),
    ]
)
"""The columns of ``messages/``; only value is required. ``lane`` is the partition column (null = 0)."""

FILE_SCHEMA: Final = pa.schema([f for f in MESSAGE_SCHEMA if f.name != "lane"])
_NO_LANE: Final = "lane=__HIVE_DEFAULT_PARTITION__"
ROW_GROUP_ROWS: Final = 20_000
"""Small row groups: a lease reads slices from anywhere in a file."""

_COMMIT_TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True)
class PublishReceipt:
    """Where messages landed: the Delta ``version`` of ``messages/`` and their ``sequences`` in the order given."""

    version: int
    sequences: range


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that is written but not yet published: path relative to ``messages/``, bytes, rows."""

    path: str
    size: int
    rows: int


def write_file(files: delta.Files, table: pa.Table) -> WrittenFile:
    """Writes messages (any of the columns of FILE_SCHEMA) as one data file of ``messages/``. It is published by a commit."""
    columns = [table[f.name].cast(f.type) if f.name in table.schema.names else pa.nulls(table.num_rows, f.type) for f in FILE_SCHEMA]
    buffer = io.BytesIO()
    pq.write_table(
        pa.table(columns, schema=FILE_SCHEMA),
        buffer,
        compression="snappy",
        row_group_size=ROW_GROUP_ROWS,
        use_dictionary=["key"],
        write_statistics=["published_at", "deliver_at", "expires_at"],
    )
    path = f"{_NO_LANE}/part-{uuid.uuid4()}.parquet"
    files.write(path, buffer.getvalue())
    return WrittenFile(path, buffer.tell(), table.num_rows)


class MessageLog(ABC):
    """The log of one queue: the other half of the storage seam. Its twin in memory is in ``spark_mq.testing``."""

    path: str
    files: delta.Files

    def publish(self, table: pa.Table, *, mark: tuple[str, int] | None = None, note: Mapping[str, Any] | None = None) -> PublishReceipt:
        """Publishes a table of messages as one commit; durable, with its sequences, when this returns."""
        return self.commit([write_file(self.files, table)], mark=mark, note=note)

    @abstractmethod
    def commit(
        self,
        written: Iterable[WrittenFile],
        *,
        mark: tuple[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        """Publishes files that are written already (see :func:`write_file`), all or nothing.

        ``mark``: (producer id, number). Raises DuplicatePublish if the producer has published that number or a higher one.
        """

    @abstractmethod
    def last_number(self, producer_id: str) -> int | None:
        """The last number that a producer has published, or None."""

    @abstractmethod
    def index(self) -> CommitIndex:
        """The commit index, brought up to the latest commit. The same object each time: it only grows."""

    @abstractmethod
    def drop(self, horizon: int) -> int:
        """Drops the files whose messages all lie at or below `horizon`. Returns how many. Safe to kill and to repeat."""

    def check(self, path: str) -> str | None:
        """Why a data file cannot be read, or None."""
        try:
            with self.files.open(path) as file:
                pq.ParquetFile(file)
            return None
        except (OSError, pa.ArrowException) as error:
            return why_unreadable(self.files, path, error)

    def read(self, slices: Iterable[Slice], columns: list[str] | None = None) -> Iterator[tuple[Slice, pa.Table]]:
        """The messages of some slices, as ``(slice, table)`` in their order; null ids and times are filled in."""
        reader = SliceReader(self.files, columns)
        for piece in slices:
            yield piece, reader.read(piece)


class DeltaLog(MessageLog):
    """The log of one queue in a Delta table. ``path``: of ``messages/``. Safe to use from several threads."""

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.storage_options = dict(storage_options or {})
        self.files = delta.Files(path, self.storage_options)
        self._lock = threading.RLock()
        self._table: DeltaTable | None = None
        self._id: str | None = None
        self._index = CommitIndex()
        self._seen: set[str] = set()
        self._compacted: dict[str, int] = {}  # path of a file that an OPTIMIZE made -> the last sequence in it, at most

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
    def table(self) -> DeltaTable:
        """The table as last looked at."""
        with self._lock:
            if self._table is None:
                opened = delta.open_table(self.path, self.storage_options)
                if opened is None:
                    raise CorruptLog(f"there is no Delta table at {self.path} any more", path=self.path, version=None)
                table_id = str(opened.metadata().id)
                if self._id not in (None, table_id):
                    raise CorruptLog(
                        f"the Delta table at {self.path} was made anew since this handle was opened; open the queue again",
                        path=self.path,
                        version=None,
                    )
                self._table, self._id = opened, table_id
            return self._table

    def refresh(self) -> DeltaTable:
        """The table at its latest version."""
        with self._lock:
            try:
                self.table.update_incremental()
            except DeltaError:
                self._table = None  # a handle older than what is left of the log: open anew, once
            return self.table

    def commit(
        self,
        written: Iterable[WrittenFile],
        *,
        mark: tuple[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        wanted = [file for file in written if file.rows]
        adds: list[AddAction | RemoveAction] = [
            AddAction(f.path, f.size, {"lane": None}, int(time.time() * 1000), True, json.dumps({"numRecords": f.rows})) for f in wanted
        ]
        operation = uuid.uuid4().hex

        def attempt(table: DeltaTable) -> None:
            if mark is not None:
                check_mark(table.transaction_version(mark[0]), mark)
            # A schema is wanted even though the files are there; no retries of delta-rs's own: one of them landed a commit twice.
            table.create_write_transaction(
                adds,
                "append",
                MESSAGE_SCHEMA,
                ["lane"],
                commit_properties=delta.commit_properties(operation, note or {"operation": "publish"}, [mark] if mark else [], retries=0),
                post_commithook_properties=delta.no_housekeeping(),
            )

        version = self._run(attempt, operation)
        return PublishReceipt(version, range(sequence(version, 0), sequence(version, sum(f.rows for f in wanted))))

    def drop(self, horizon: int) -> int:
        with self._lock:
            lasts = {file.path: file.last for file in self.index().files} | self._compacted
            old = {path for path, last in lasts.items() if last <= horizon}
            gone = old.intersection(self.active())
        self.remove(sorted(gone))
        # All that lie there, not just those just removed: a run before may have died here.
        folders = {path.rpartition("/")[0] for path in old}
        for path in old.intersection(path for folder in folders for path in self.files.list(folder)):
            self.files.delete(path)
        return len(gone)

    def active(self) -> list[str]:
        """The data files that the table has now."""
        return [unquote(path) for path in pa.table(self.refresh().get_add_actions(flatten=True))["path"].to_pylist()]

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

    def _run(self, attempt: Callable[[DeltaTable], None], operation: str) -> int:
        """One optimistic commit, tried until it lands. Returns its version."""
        deadline = time.monotonic() + _COMMIT_TIMEOUT
        tries = 0
        while True:
            with self._lock:
                table = self.refresh()
                base = table.version()
                try:
                    attempt(table)
                    return base + 1
                except DuplicatePublish:
                    raise
                except Exception as error:
                    # After any failure: has it landed all the same (a PUT whose reply got lost)?
                    latest = self.refresh().version()
                    if latest == base:
                        self._table = None  # or the handle knows no better: what it stood on may be gone
                        latest = self.refresh().version()
                    landed = delta.landed_since(self.files, self.path, base, latest, operation)
                    if landed is not None:
                        return landed
                    if latest == base:
                        raise  # nobody else committed: this is no lost race
                    tries += 1
                    if time.monotonic() > deadline:
                        raise ContentionTimeout(
                            f"publishing to {self.path} lost {tries} races in {_COMMIT_TIMEOUT:.0f} s; nothing was published",
                            group=None,
                            attempts=tries,
                        ) from error
            time.sleep(min(0.2, 0.002 * 2 ** min(tries, 7)) * (0.5 + uuid.uuid4().int % 100 / 100))

    def last_number(self, producer_id: str) -> int | None:
        return self.refresh().transaction_version(producer_id)

    def index(self) -> CommitIndex:
        with self._lock:
            self._catch_up(self.refresh().version())
            return self._index

    def _catch_up(self, latest: int) -> None:
        """Takes the commits up to `latest` into the index."""
        while self._index.version < latest:
            version = self._index.version + 1
            try:
                actions = delta.read_commit(self.files, version, self.path)
            except FileNotFoundError as error:
                raise CorruptLog(
                    f"commit {version} of {self.path} is gone from its log; messages published in it cannot be found. "
                    f"Restore {delta.log_path(version)} from a backup",
                    path=self.path,
                    version=version,
                ) from error
            self._index.extend(self._published(version, actions), version)

    def _published(self, version: int, actions: list[dict[str, Any]]) -> list[LogFile]:
        """The files that a commit publishes, with their sequences."""
        info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        adds = [a["add"] for a in actions if "add" in a]
        fresh = [a for a in adds if a["path"] not in self._seen]
        self._seen.update(a["path"] for a in adds)
        changing = [a for a in fresh if a.get("dataChange", True)]
        if any("remove" in a for a in actions):
            if any(a["remove"].get("dataChange", True) for a in actions if "remove" in a) and changing:
                _log.warning(
                    "commit %d of %s rewrites messages (%s); what it adds is not published",
                    version,
                    self.path,
                    info.get("operation"),
                )
            if adds:
                self._rewritten(actions)
            return []
        files, ordinal = [], 0
        for add in changing:
            rows = self._rows(add)
            at = int(info.get("timestamp") or add.get("modificationTime") or 0) * 1000
            files.append(LogFile(sequence(version, ordinal), rows, unquote(add["path"]), int(add.get("size") or 0), at))
            ordinal += rows
        return files

    def _rewritten(self, actions: list[dict[str, Any]]) -> None:
        """Remembers of a compaction how high the messages in its files can be: as its newest source."""
        lasts = {file.path: file.last for file in self._index.files} | self._compacted
        sources = [lasts.get(unquote(a["remove"]["path"])) for a in actions if "remove" in a]
        known = [last for last in sources if last is not None]
        if len(known) == len(sources):
            made = (unquote(a["add"]["path"]) for a in actions if "add" in a)
            self._compacted.update((path, max(known)) for path in made if path not in lasts)

    def _rows(self, add: Mapping[str, Any]) -> int:
        """Rows of a file from its statistics, or, where its writer left them out, from its footer."""
        count = json.loads(add.get("stats") or "{}").get("numRecords")
        if count is None:
            with self.files.open(unquote(add["path"])) as file:
                count = pq.ParquetFile(file).metadata.num_rows
        return int(count)


def check_mark(last: int | None, mark: tuple[str, int]) -> None:
    """Raises DuplicatePublish where a producer's `last` number is its new one, or higher."""
    if last is not None and last >= mark[1]:
        producer = mark[0].rpartition(":")[2]
        raise DuplicatePublish(
            f"producer {producer!r} has published number {last} already, so {mark[1]} is not published again",
            producer_id=producer,
            last_sequence=last,
        )


def why_unreadable(files: delta.Files, path: str, error: Exception) -> str:
    """In words, why reading a data file failed. Raises where its bytes are out of reach for now: that is not the file's fault."""
    try:
        files.read(path)
    except FileNotFoundError:
        return f"data file {path} is missing"
    return f"data file {path} is not readable: {error}"


class SliceReader:
    """Reads row slices of data files. Keeps the last row group: scattered messages lie many to a group, and it is read once."""

    def __init__(self, files: delta.Files, columns: list[str] | None = None) -> None:
        self.files = files
        self._schema = FILE_SCHEMA if columns is None else pa.schema([f for f in FILE_SCHEMA if f.name in columns])
        self._path = ""
        self._group = -1

    def read(self, piece: Slice) -> pa.Table:
        """The rows of one slice in the types of FILE_SCHEMA. Only the row groups that hold them are read."""
        if piece.path != self._path:
            self._open(piece.path)
        end, parts = piece.offset + piece.rows, []
        for group in range(bisect_right(self._starts, piece.offset) - 1, bisect_left(self._starts, end)):
            if group != self._group:
                self._table, self._group = self._file.read_row_group(group, columns=self._present), group
            start = self._starts[group]
            first = max(piece.offset, start)
            parts.append(self._table.slice(first - start, end - first))
        table = pa.concat_tables(parts)
        return pa.table([_column(table, f, piece) for f in self._schema], schema=self._schema)

    def _open(self, path: str) -> None:
        self._path, self._group = "", -1
        self._file = pq.ParquetFile(self.files.open(path), coerce_int96_timestamp_unit="us")
        meta = self._file.metadata
        self._starts = list(accumulate((meta.row_group(group).num_rows for group in range(meta.num_row_groups - 1)), initial=0))
        self._present = [name for name in self._schema.names if name in self._file.schema_arrow.names]
        self._path = path


def _column(table: pa.Table, wanted: pa.Field, piece: Slice) -> pa.ChunkedArray:
    """A column in its type; what the publisher left null reads as DESIGN section 3 says."""
    column = table[wanted.name].cast(wanted.type) if wanted.name in table.schema.names else pa.nulls(table.num_rows, wanted.type)
    if wanted.name == "published_at" and column.null_count:
        return column.fill_null(pa.scalar(piece.committed_at, pa.int64()).cast(wanted.type))
    if wanted.name == "message_id" and column.null_count:
        ids = pa.array([str(piece.first + row) for row in range(table.num_rows)], pa.string())
        return pc.coalesce(column, ids)
    return column
