"""What the commits of ``messages/`` say: which files they publish, which are rewrites of others,
which producers have left their marks.

It is read from the log's own JSON, commit by commit, or from ``commits/``
(:mod:`spark_mq.commit_table`), where the sweep writes it down.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import Commit
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import CorruptLog
from spark_mq.ledger.message_index import (
    ORDINAL_BITS,
    DataFile,
    DeliveryTimes,
    MessageIndex,
    sequence,
)
from spark_mq.parquet.delivery_times import may_have_times, read_delivery_times
from spark_mq.parquet.read_errors import unreadable_reason

__all__ = ["COMMITS_SCHEMA", "PublishedFiles", "commit_matches"]

_log = logging.getLogger(__name__)

_INSTANT = pa.timestamp("us", tz="UTC")
_RUNS: Final = pa.list_(
    pa.struct([("rows", pa.int64()), ("deliver_at", _INSTANT), ("expires_at", _INSTANT)])
)
_RAW_RUNS: Final = pa.list_(
    pa.struct([("rows", pa.int64()), ("deliver_at", pa.int64()), ("expires_at", pa.int64())])
)

PUBLISH: Final = "publish"
REWRITE: Final = "rewrite"
MARK: Final = "mark"

COMMITS_SCHEMA: Final = pa.schema(
    [
        pa.field("version", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("path", pa.string()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("committed_at", _INSTANT),
        pa.field("times", _RUNS),
        pa.field("app", pa.string()),
        pa.field("number", pa.int64()),
    ]
)
"""The columns of ``commits/``. A row is one of these, by ``kind``, in the commit ``version`` of
``messages/``:

publish  a file of messages: ``path``, ``first`` and ``last`` sequence, ``rows``, ``size`` in bytes,
``committed_at``; ``times``, its runs
         of rows alike in deliver_at (rounded up to a second) and expires_at, if it has any
rewrite  a file that publishes nothing, as an OPTIMIZE makes it: ``path``; ``last``, the last
sequence in it at most, where that is known
mark     a producer's number: ``app``, ``number``; of each app the latest of those that were written
down together
"""


class PublishedFiles:
    """Grows commit by commit. ``files``: those under ``messages/``; ``active()``: the data files
    the table has now."""

    def __init__(self, files: ObjectStore, path: str, active: Callable[[], list[str]]) -> None:
        self.index = MessageIndex()
        self.marks: dict[
            str, tuple[int, int]
        ] = {}  # app -> its latest number, and the version of that
        self._files, self._path, self._active = files, path, active
        self._published: dict[str, int] = {}  # path -> the last sequence in it
        self._rewritten: dict[
            str, tuple[int, int | None]
        ] = {}  # path -> version, and the last sequence in it, at most, if known

    def matches(self, commit: Commit) -> bool:
        """Whether the commit of this version that was taken in is this one."""
        version, paths = commit.version, {add["path"] for add in commit.adds}
        files = self.index.files
        start = bisect_left(files, sequence(version, 0), key=lambda file: file.first)
        published = {file.path for file in files[start:] if file.first >> ORDINAL_BITS == version}
        return published <= paths and all(
            path in self._published or path in self._rewritten for path in paths
        )

    def knows(self, path: str) -> bool:
        """Return whether a commit that was taken in has added a file."""
        return path in self._published or path in self._rewritten

    def version_of(self, path: str) -> int | None:
        """Return the version that published a file, or None."""
        last = self._published.get(path)
        return None if last is None else last >> ORDINAL_BITS

    def rewritten(self, horizon: int) -> set[str]:
        """The paths of rewritten files that hold nothing above a sequence."""
        return {
            path
            for path, (_, last) in self._rewritten.items()
            if last is not None and last <= horizon
        }

    # -- from the log's own JSON

    def apply(self, commit: Commit) -> None:
        """Takes the next commit in: all of it, or nothing where it raises (a store out of reach,
        CorruptLog)."""
        version = commit.version
        commit.check_features(self._path)
        adds = {add["path"]: add for add in commit.adds}
        fresh = {
            path: add
            for path, add in adds.items()
            if path not in self._published and path not in self._rewritten
        }
        removes = commit.removes
        files = [] if removes else self._publishes(commit, fresh)
        if any(remove.get("dataChange", True) for remove in removes):
            _log.warning(
                "commit %d of %s rewrites messages, or deletes some (%s): what it adds is not "
                "published, and what it removes is delivered "
                "as it was, as long as its files are there. A message is taken out of a queue by "
                "a group that acks or rejects it",
                version,
                self._path,
                commit.info.get("operation"),
            )
        last = self._newest_source(removes) if removes and fresh else None
        self._extend(files, version)
        self._rewritten.update(
            (path, (version, last)) for path in fresh if path not in self._published
        )
        self.marks.update((app, (number, version)) for app, number in commit.txns.items())

    def _publishes(self, commit: Commit, fresh: Mapping[str, dict[str, Any]]) -> list[DataFile]:
        """The files that a commit which removes nothing publishes, with their sequences."""
        version, files, ordinal = commit.version, [], 0
        for path, add in fresh.items():
            if add.get("dataChange", True):
                rows = self.rows(add, version)
                at = commit.timestamp or int(add.get("modificationTime") or 0) * 1000
                times = (
                    read_delivery_times(self._files, path) if may_have_times(add["stats"]) else None
                )
                files.append(
                    DataFile(
                        sequence(version, ordinal), rows, path, int(add.get("size") or 0), at, times
                    )
                )
                ordinal += rows
        return files

    def _newest_source(self, removes: list[dict[str, Any]]) -> int | None:
        """How high the messages in a compacted file can be: as its newest source. None if one of
        these is not known."""
        lasts = [self._last(remove["path"]) for remove in removes]
        known = [last for last in lasts if last is not None]
        return max(known) if len(known) == len(lasts) else None

    def _last(self, path: str) -> int | None:
        return (
            self._published[path]
            if path in self._published
            else self._rewritten.get(path, (0, None))[1]
        )

    def rows(self, add: Mapping[str, Any], version: int) -> int:
        """Rows of a file from its statistics, or, where its writer left them out, from its
        footer."""
        count = add["stats"].get("numRecords")
        if count is not None:
            return int(count)
        path = add["path"]
        try:
            with self._files.open(path) as file:
                return int(pq.ParquetFile(file).metadata.num_rows)
        except (OSError, pa.ArrowException) as error:
            why = unreadable_reason(self._files, path, error)
            if isinstance(error, FileNotFoundError) and path not in self._active():
                return 0  # trimmed, with its whole commit: nobody needs to know any more
            raise CorruptLog(
                f"{why}; and its writer left no statistics in commit {version} of {self._path}: "
                f"what lies behind it cannot be numbered. "
                "Restore the file from a backup; without one, give its messages up: put a "
                "Parquet file without rows in its place",
                path=self._path,
                version=version,
            ) from error

    def _extend(self, files: list[DataFile], version: int) -> None:
        self.index.extend(files, version)
        self._published.update((file.path, file.last) for file in files if file.rows)

    # -- to and from commits/

    def rows_since(self, version: int) -> pa.Table:
        """What commits after `version` say, as rows of ``commits/``."""
        files = self.index.files
        published = files[
            bisect_left(files, sequence(version + 1, 0), key=lambda file: file.first) :
        ]
        rewrites = [(path, *found) for path, found in self._rewritten.items() if found[0] > version]
        marks = [(app, *found) for app, found in self.marks.items() if found[1] > version]
        parts: list[dict[str, list[Any]]] = [
            {
                "version": [f.first >> ORDINAL_BITS for f in published],
                "kind": [PUBLISH] * len(published),
                "path": [f.path for f in published],
                "first": [f.first for f in published],
                "last": [f.last for f in published],
                "rows": [f.rows for f in published],
                "size": [f.size for f in published],
                "committed_at": [f.committed_at for f in published],
                "times": [
                    None
                    if f.times is None
                    else [dict(zip(_RUN_NAMES, run, strict=True)) for run in f.times.runs]
                    for f in published
                ],
            },
            {
                "version": [at for _, at, _ in rewrites],
                "kind": [REWRITE] * len(rewrites),
                "path": [path for path, _, _ in rewrites],
                "last": [last for _, _, last in rewrites],
            },
            {
                "version": [at for _, _, at in marks],
                "kind": [MARK] * len(marks),
                "app": [app for app, _, _ in marks],
                "number": [number for _, number, _ in marks],
            },
        ]
        return pa.concat_tables([_table(part) for part in parts]).sort_by(
            [("version", "ascending"), ("first", "ascending")]
        )

    def load_rows(self, rows: pa.Table, version: int) -> None:
        """Takes in rows of ``commits/`` that tell of the commits up to `version`, those that are
        not known yet."""
        rows = rows.filter(pc.greater(rows["version"], self.index.version)).sort_by(
            [("version", "ascending"), ("first", "ascending")]
        )

        def of(kind: str, *names: str) -> Any:
            found = rows.filter(pc.equal(rows["kind"], kind))
            return zip(*(_plain(found[name]).to_pylist() for name in names), strict=True)

        self._rewritten.update(
            (path, (at, last)) for path, at, last in of(REWRITE, "path", "version", "last")
        )
        self.marks.update(
            (app, (number, at)) for app, number, at in of(MARK, "app", "number", "version")
        )
        self._extend(
            [
                DataFile(
                    first,
                    count,
                    path,
                    size,
                    at,
                    times and DeliveryTimes.of(tuple(run.values()) for run in times),
                )
                for first, count, path, size, at, times in of(
                    PUBLISH, "first", "rows", "path", "size", "committed_at", "times"
                )
            ],
            version,
        )


def commit_matches(rows: pa.Table, commit: Commit) -> bool:
    """Return whether the rows of ``commits/`` describe this commit."""
    found = rows.filter(pc.equal(rows["version"], commit.version))
    paths = {path for path in found["path"].to_pylist() if path is not None}
    if not paths <= {add["path"] for add in commit.adds}:
        return False
    # Files without rows have no row here, and files that came back have an older one.
    counted = {add["path"] for add in commit.adds if add["stats"].get("numRecords")}
    return counted <= paths or counted <= set(rows["path"].to_pylist())


_RUN_NAMES: Final = ("rows", "deliver_at", "expires_at")


def _table(columns: Mapping[str, list[Any]]) -> pa.Table:
    """Rows of ``commits/`` of one kind; columns that are left out are null."""
    count = len(columns["version"])

    def column(field: pa.Field) -> Any:
        if field.name not in columns:
            return pa.nulls(count, field.type)
        raw = (
            pa.int64()
            if field.name == "committed_at"
            else _RAW_RUNS
            if field.name == "times"
            else field.type
        )
        return pa.array(columns[field.name], raw).cast(field.type)

    return pa.table([column(field) for field in COMMITS_SCHEMA], schema=COMMITS_SCHEMA)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Instants as microseconds."""
    return (
        column.cast(pa.int64())
        if column.type == _INSTANT
        else column.cast(_RAW_RUNS)
        if column.type == _RUNS
        else column
    )
