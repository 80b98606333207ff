"""Archive the commits of a table as rows of another Delta table.

The sweep appends the rows of new commits. The same commit notes the last version that they describe
as an application transaction, so each version is archived once, even if a sweep is killed. Later
it merges small files, and drops the rows that nobody needs.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Change
from spark_mq.delta.cleanup import Keep, clean_table
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import one_line, wrap_store_errors
from spark_mq.delta.tables import (
    KEPT_BY_THE_SWEEP,
    checkpoint_if_due,
    checkpoint_soon,
    create_table,
)
from spark_mq.errors import CorruptLog, TablesDisagree
from spark_mq.util.columns import sort_rows

# Zstd halves a merged file, but its start for each column takes 1 ms, which a small append saves.
_FEW_ROWS: Final = 1_000

# Conditions on rows. Each has a column, one of ``=``, ``<=``, ``>=``, and a value.
Filters = list[tuple[str, str, Any]]

LARGE_FILE_BYTES: Final = 4 * 2**20  # a file of this size is not small
MAX_BYTES: Final = 32 * 2**20  # of rows that an append or a merge holds in memory
# How much of the archive's own log stays, because nobody reads its past.
KEEP_VERSIONS: Final = 100
KEEP_SECONDS: Final = 600.0
T = TypeVar("T")


def tables_disagree(path: str, reason: str) -> TablesDisagree:
    """Return the error for a table that was restored alone."""
    return TablesDisagree(
        f"the tables of a queue disagree: {reason}. One of them was restored alone. Restore all "
        "tables of one backup, or stop all workers and run Queue.recover(dry_run=True)",
        path=path,
        version=None,
    )


def _statistics(rows: pa.Table) -> str:
    first, last = pc.min(rows["first"]).as_py(), pc.max(rows["last"]).as_py()
    latest = pc.max(rows["committed_at"]).as_py()
    least = {} if first is None else {"first": first}
    most = {} if last is None else {"last": last}
    if latest is not None:  # commits have whole milliseconds, as Delta's statistics do
        text = latest.isoformat(timespec="milliseconds")
        most["committed_at"] = text.replace("+00:00", "Z")
    return json.dumps({"numRecords": rows.num_rows, "minValues": least, "maxValues": most})


def may_match(file: AddFile, filters: Filters) -> bool:
    """Return whether a file may have rows that match, by its statistics."""
    stats = file.statistics
    bounds = {"<=": stats.get("minValues") or {}, ">=": stats.get("maxValues") or {}}
    for name, operator, value in filters:
        bound = bounds.get(operator, {}).get(name)
        if bound is None:
            continue
        if isinstance(value, datetime):
            bound = datetime.fromisoformat(bound)
        if bound > value if operator == "<=" else bound < value:
            return False
    return True


def matching_rows(rows: pa.Table, filters: Filters) -> pa.Table:
    compare = {"=": pc.equal, "<=": pc.less_equal, ">=": pc.greater_equal}
    for name, operator, value in filters:
        rows = rows.filter(compare[operator](rows[name], value))
    return rows


class Batch(NamedTuple):
    """The rows of some commits, which one commit of the archive appends."""

    rows: pa.Table
    up_to: int  # the last version that the rows describe
    txns: Sequence[tuple[str, int]] = ()  # that the same commit notes


class ArchiveTable:
    """An archive of the commits of ``source``. A subclass makes and drops the rows. Thread-safe."""

    schema: ClassVar[pa.Schema]
    order: ClassVar[tuple[str, str]]  # the columns by which merged rows are sorted
    partition: ClassVar[str | None] = None  # the column of the partitions
    small_files: ClassVar[int]  # of a partition before they are merged
    format: ClassVar[str]  # in the table's description
    app: ClassVar[str]  # of the transactions that note the last archived version
    operation: ClassVar[str]  # of a commit that appends
    remedy: ClassVar[str]  # for a data file that cannot be read

    def __init__(
        self,
        path: str,
        source: DeltaLog,
        storage_options: Mapping[str, str] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        self.path = path
        self.files = ObjectStore(path, storage_options, durable=durable)
        self.log = DeltaLog(self.files, replaceable=True, on_checkpoint=checkpoint_soon)
        self.source = source

    @cached_property
    def source_id(self) -> str:
        """Return the id of the source. A source made again has another one, and counts from 0."""
        return self.source.state.table_id

    @cached_property
    def description(self) -> str:
        """Return the table's description. A table with another one counts as missing."""
        return json.dumps({"format": self.format})

    @cached_property
    def app_id(self) -> str:
        """Return the app id of the transaction that notes the last archived version."""
        return f"{self.app}:{self.source_id}"

    # -- reading

    def open(self) -> TableState | None:
        """Return the latest version, or None if it is missing or of another source."""
        state = self.log.open()
        return state if state is not None and self._is_own(state) else None

    def _is_own(self, state: TableState) -> bool:
        return state.description == self.description

    def up_to(self, state: TableState | None) -> int:
        return -1 if state is None else state.txns.get(self.app_id, -1)

    def progress(self) -> tuple[int, int | None]:
        """Return the last archived version, or -1, and the last commit's time, or None."""
        with wrap_store_errors(self.path, "reading"):
            state = self.open()
            at = None if state is None else self.log.commit_time(state.version)
            return self.up_to(state), at

    def read(
        self,
        filters: Filters,
        columns: Sequence[str] | None = None,
        choose: Callable[[TableState], Filters | None] = lambda _: [],
    ) -> tuple[pa.Table, int]:
        """Return the rows that match, and the last archived version, or -1 without an archive.

        `choose` returns more filters that only leave out whole files, or None to read no file.
        """
        with wrap_store_errors(self.path, "reading"):
            for left in (1, 0):
                state = self.open()
                files: list[AddFile] = []
                if state is not None and (more := choose(state)) is not None:
                    files = [file for file in state.files() if may_match(file, filters + more)]
                try:
                    return self._matching(files, filters, columns), self.up_to(state)
                except FileNotFoundError as error:
                    if not left:  # a merge replaces files, once
                        raise self._broken(error) from error
                except pa.ArrowInvalid as error:
                    raise self._broken(error) from error
        raise AssertionError("unreachable")

    def _matching(
        self, files: Iterable[AddFile], filters: Filters, columns: Sequence[str] | None
    ) -> pa.Table:
        names = self.schema.names if columns is None else list(columns)
        needed = {*names, *(name for name, _, _ in filters)}
        parts = [self.schema.empty_table().select(names)]
        for file in files:
            rows = self._read_file(file, needed)
            parts.append(matching_rows(rows, filters).select(names))
        return pa.concat_tables(parts)

    def _broken(self, error: Exception) -> CorruptLog:
        return CorruptLog(
            f"a data file of {self.path} cannot be read: {one_line(error)}. Restore it from a "
            f"backup{self.remedy}",
            path=self.path,
            version=None,
        )

    # -- writing

    def append(self, last: int, next_batch: Callable[[TableState, int], Batch | None]) -> int:
        """Archive the commits up to the version `last` in batches. Return their number.

        `next_batch` returns the rows of commits after the given version, or None to stop. It runs
        again if another sweep was faster, so no commit is archived twice.
        """

        def compute(state: TableState, written: list[AddFile]) -> tuple[Change | None, int | None]:
            done = self.up_to(state)
            batch = next_batch(state, done) if self._is_own(state) else None
            if batch is None:
                return None, None
            written += self._write(batch.rows)
            up_to = max(done, batch.up_to)
            change = Change(
                uuid.uuid4().hex,
                {"operation": self.operation, "up_to": up_to},
                adds=list(written),
                txns=[(self.app_id, up_to), *batch.txns],
            )
            return change, up_to - done

        total = 0
        with wrap_store_errors(self.path, "archiving to"):
            self._create()
            while (commits := self._transact(compute)) is not None:
                total += commits
                if self.up_to(self.log.state) >= last:
                    break
        return total

    def _create(self) -> None:
        """Create the table, or empty one that belongs to another source."""
        state = self.log.open()
        if state is None:
            create_table(
                self.files,
                self.schema,
                partition_by=[self.partition] if self.partition else [],
                description=self.description,
                configuration=KEPT_BY_THE_SWEEP,
            )
        elif not self._is_own(state):
            self.log.transact(lambda present: (self._take_over(present), None))

    def _take_over(self, state: TableState) -> Change | None:
        if self._is_own(state):
            return None
        metadata = {**state.metadata, "description": self.description}
        return self._rewriting("start again", state.files(), metadata=metadata)

    def truncate_to(self, up_to: int, txns: Sequence[tuple[str, int]]) -> None:
        """Drop the rows of all versions after one, and note `txns` with that."""

        def compute(state: TableState, written: list[AddFile]) -> tuple[Change, None]:
            removed: list[AddFile] = []
            for file in state.files():
                rows = self._read_file(file)
                kept = rows.filter(pc.less_equal(rows["version"], up_to))
                if kept.num_rows < rows.num_rows:
                    removed.append(file)
                    written += self._write(kept)
            noted = [(self.app_id, up_to), *txns]
            return self._rewriting("truncate", removed, written, txns=noted), None

        self._transact(compute)

    # -- keeping it small

    def expire(self, is_expired: Callable[[AddFile], bool]) -> None:

        def compute(state: TableState, _: list[AddFile]) -> tuple[Change | None, None]:
            old = [file for file in state.files() if is_expired(file)]
            return (self._rewriting("expire", old) if old else None), None

        if any(map(is_expired, self.log.state.files())):  # else it needs no look
            self._transact(compute)

    def merge(self, keep_since: int = 0) -> None:
        """Merge small files if there are many, and drop unneeded rows of before `keep_since`."""

        def compute(state: TableState, written: list[AddFile]) -> tuple[Change | None, bool]:
            for files in self._to_merge(state, keep_since):
                merged, rows, dropped = self._read_some(files, state, keep_since)
                if len(merged) > 1 or dropped:
                    written += self._write(rows)
                    return self._rewriting("compact", merged, written, data_change=dropped), True
            return None, False

        while any(self._to_merge(self.log.state, keep_since)) and self._transact(compute):
            pass

    def _to_merge(self, state: TableState, keep_since: int) -> Iterator[list[AddFile]]:
        """Yield the files of each partition that should be rewritten together."""
        for _, files in sorted(state.partitions.items()):
            # The smallest first, so that a file which fills the memory does not keep others apart.
            small = sorted(filter(_is_small, files.values()), key=lambda file: file.size)
            large = (file for file in files.values() if not _is_small(file))
            stale = [file for file in large if self._is_stale(file, state, keep_since)]
            yield (small if len(small) > self.small_files else []) + stale

    def _read_some(
        self, files: Sequence[AddFile], state: TableState, keep_since: int
    ) -> tuple[Sequence[AddFile], pa.Table, bool]:
        """Return the first files that fit in memory, what stays of them, and whether rows go."""
        parts, read, size = [self.schema.empty_table()], 0, 0
        for file in files:
            rows = self._read_file(file)
            read += rows.num_rows
            parts.append(self._needed(rows, state, keep_since))
            size += parts[-1].nbytes
            if size > MAX_BYTES:
                break
        whole = self._combined(pa.concat_tables(parts))
        merged = files[: len(parts) - 1]
        return merged, sort_rows(whole, *self.order), whole.num_rows < read

    def _is_stale(self, file: AddFile, state: TableState, keep_since: int) -> bool:
        """Return whether a large file should be rewritten without rows that nobody needs."""
        return False

    def _needed(self, rows: pa.Table, state: TableState, keep_since: int) -> pa.Table:
        return rows

    def _combined(self, rows: pa.Table) -> pa.Table:
        """Return the rows of merged files without those that others replace."""
        return rows

    def clean(self, keep: Keep | None = None, first_path: str = "") -> int:
        """Delete the files that no kept version of an existing table needs. Return their number."""
        with wrap_store_errors(self.path, "cleaning"):
            # Without a checkpoint nothing can be cleaned, and few commits write none.
            checkpoint_if_due(self.files, self.log.state.version)
            keep = keep or Keep(KEEP_VERSIONS, KEEP_SECONDS, first_path=first_path)
            return clean_table(self.log, keep, data_files=True)

    # -- files

    def _transact(
        self, compute: Callable[[TableState, list[AddFile]], tuple[Change | None, T]]
    ) -> T:
        """Commit what `compute` returns for a state. It puts the files that it writes in a list."""
        written: list[AddFile] = []

        def again(state: TableState) -> tuple[Change | None, T]:
            while written:  # of a try that lost its race
                self.files.delete(written.pop().path)
            return compute(state, written)

        with wrap_store_errors(self.path, "writing to"):
            return self.log.transact(again)[1]

    def _rewriting(
        self, operation: str, removes: Iterable[AddFile], adds: Iterable[AddFile] = (), **more: Any
    ) -> Change:
        note = {"operation": operation}
        return Change(uuid.uuid4().hex, note, tuple(adds), tuple(removes), whole_table=True, **more)

    def _read_file(self, file: AddFile, columns: Container[str] | None = None) -> pa.Table:
        """Return the rows of a file with the value of its partition, perhaps only some columns."""
        fields = [f for f in self.schema if columns is None or f.name in columns]
        rows = self.files.read_parquet(file.path, pa.schema(fields))
        for at, field in enumerate(fields):
            if field.name in file.partition:
                value = pa.scalar(file.partition[field.name]).cast(field.type)
                rows = rows.set_column(at, field, pa.repeat(value, rows.num_rows))
        return rows

    def _write(self, rows: pa.Table) -> Iterator[AddFile]:
        """Write rows as one file for each value of the column of the partitions, or as one file."""
        name = self.partition
        if name is None:
            if rows.num_rows:
                yield self._write_file("", {}, rows)
            return
        for value in sorted(set(rows[name].to_pylist())):
            part = rows.filter(pc.equal(rows[name], value)).drop_columns([name])
            yield self._write_file(f"{name}={value}/", {name: str(value)}, part)

    def _write_file(self, folder: str, partition: dict[str, str | None], rows: pa.Table) -> AddFile:
        path, buffer = f"{folder}part-{uuid.uuid4()}.parquet", io.BytesIO()
        codec = "snappy" if rows.num_rows < _FEW_ROWS else "zstd"
        pq.write_table(rows, buffer, compression=codec, write_page_checksum=True)
        self.files.write(path, buffer.getvalue())
        return AddFile(path, buffer.tell(), rows.num_rows, partition, _statistics(rows))


def _is_small(file: AddFile) -> bool:
    return file.size < LARGE_FILE_BYTES
