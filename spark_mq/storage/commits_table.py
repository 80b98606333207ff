"""Keep the commit index in a Delta table, ``commits/``.

With it, the log of ``messages/`` can be cleaned. Each commit names the last version of
``messages/`` that the table covers.
"""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Change
from spark_mq.delta.cleanup import Keep, clean_table
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import one_line
from spark_mq.delta.tables import (
    KEPT_BY_THE_SWEEP,
    checkpoint_soon,
    create_table,
    last_checkpoint,
    write_checkpoint,
)
from spark_mq.errors import CorruptLog
from spark_mq.ledger.message_index import sequence
from spark_mq.storage import commit_files
from spark_mq.storage.commit_files import kept, last_in, latest_marks, small_files, stale_files
from spark_mq.storage.commit_rows import COMMITS_SCHEMA, PUBLISH
from spark_mq.storage.published_files import PublishedFiles

__all__ = ["CommitsTable"]

_STALE_FILES: Final = 4  # large files that one commit rewrites without their forgotten rows
# App ids of transactions: the last forgotten sequence, and the number of forgotten messages.
_FORGOTTEN_TO: Final = "spark_mq.forgotten_to:"
_FORGOTTEN: Final = "spark_mq.forgotten:"


class CommitsTable:
    """The table at ``path``. It belongs to one ``messages/`` table, known by its id."""

    def __init__(
        self, path: str, storage_options: Mapping[str, str] | None = None, *, durable: bool = True
    ) -> None:
        self.path = path
        self.files = ObjectStore(path, storage_options, durable=durable)
        self.log = DeltaLog(self.files, replaceable=True, on_checkpoint=checkpoint_soon)
        self._lock = threading.Lock()

    def open(self, messages_id: str) -> TableState | None:
        """Return the latest version, or None if it is missing or of another ``messages/``."""
        state = self.log.open()
        return (
            state if state is not None and state.description == _description(messages_id) else None
        )

    def covered(self, messages_id: str) -> int:
        """Return the last version of ``messages/`` that the table has, or -1."""
        state = self.open(messages_id)
        return -1 if state is None else state.txns.get(_app_id(messages_id), -1)

    def progress(self, messages_id: str) -> tuple[int, int | None]:
        """Return the covered version, or -1, and the last commit's time."""
        state = self.open(messages_id)
        if state is None:
            return -1, None
        return state.txns.get(_app_id(messages_id), -1), self.log.commit_time(state.version)

    def read(self, messages_id: str, after: int = -1) -> tuple[pa.Table, int] | None:
        """Return the rows and the version that they cover, or None if it is not after `after`."""
        for attempt in (1, 2):
            state = self.open(messages_id)
            upto = -1 if state is None else state.txns.get(_app_id(messages_id), -1)
            if state is None or upto <= after:
                return None
            try:
                forgotten_to = _forgotten(state, messages_id)[0]
                files = [f for f in state.files() if last_in(f) > forgotten_to]
                return self._rows(files), upto
            except FileNotFoundError as error:
                if attempt == 2:  # a sweep may rewrite them once
                    raise self._broken(error) from error
            except pa.ArrowInvalid as error:
                raise self._broken(error) from error
        raise AssertionError("unreachable")

    def past(self, messages_id: str, first: int, last: int) -> pa.Table:
        """Return the rows of published files in ``first..last``, also of forgotten ones."""
        state = self.open(messages_id)
        if state is None:
            return COMMITS_SCHEMA.empty_table()
        # pc.and_ makes no valid expression of fields.
        wanted = (pc.field("last") >= first) & (pc.field("first") <= last)
        wanted &= pc.field("kind") == PUBLISH
        try:
            return self._rows([f for f in state.files() if last_in(f) >= first], wanted)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise self._broken(error) from error

    def _rows(self, files: list[AddFile], wanted: Any = None) -> pa.Table:
        parts = [COMMITS_SCHEMA.empty_table()]
        for file in files:
            rows = self.files.read_parquet(file.path, COMMITS_SCHEMA)
            parts.append(rows if wanted is None else rows.filter(wanted))
        return pa.concat_tables(parts)

    def _broken(self, error: Exception) -> CorruptLog:
        return CorruptLog(
            f"a data file of {self.path} cannot be read: {one_line(error)}. Restore it from a "
            f"backup; or, as long as "
            "the log of messages/ has all its commits, remove the table: the next sweep writes "
            "it again",
            path=self.path,
            version=None,
        )

    def forgotten(self, messages_id: str) -> tuple[int, int]:
        """Return the last forgotten sequence, or -1, and the number of forgotten messages."""
        return _forgotten(self.log.state, messages_id)

    def append(
        self,
        messages_id: str,
        published: PublishedFiles,
        idle_commits: int,
        *,
        keep_since: int | None = None,
    ) -> int:
        """Add the commits of `published` that the table lacks. Return their number.

        Each commit is added once, also if two sweeps run at the same time. Fewer commits than
        `idle_commits`, none of which publishes, are not worth a commit. Readers skip forgotten
        rows. Those from before `keep_since`, in microseconds, are deleted, and None keeps all.
        """
        total = 0
        with self._lock:
            self._create(messages_id)
            while True:
                batch = _Batch(self, messages_id, published, idle_commits, keep_since)
                _, commits = self.log.transact(batch.compute)
                total += commits
                if batch.is_last:
                    return total

    def truncate(self, messages_id: str, upto: int) -> None:
        """Drop the rows of all commits after a version of ``messages/``."""

        def compute(state: TableState) -> tuple[Change | None, None]:
            files = state.files()
            rows = self._rows(files)
            written = self.write_rows([], rows.filter(pc.less_equal(rows["version"], upto)))
            change = Change(
                uuid.uuid4().hex,
                {"operation": "truncate", "upto": upto},
                adds=[written],
                removes=files,
                txns=[(_app_id(messages_id), upto), *_forgetting(state, messages_id, upto)],
                whole_table=True,
            )
            return change, None

        with self._lock:
            self.log.transact(compute)

    def _create(self, messages_id: str) -> None:
        """Create the table, or empty the one that belongs to another ``messages/``."""
        description = _description(messages_id)
        state = self.log.open()
        if state is None:
            create_table(
                self.files,
                COMMITS_SCHEMA,
                description=description,
                configuration=KEPT_BY_THE_SWEEP,
            )
        elif state.description != description:
            self.log.transact(lambda found: (_take_over(found, description), None))

    def write_rows(
        self, merged: list[AddFile], rows: pa.Table, forgotten_to: int = -1, keep_since: int = 0
    ) -> AddFile:
        """Write rows and those of other files as one file, without old forgotten rows."""
        parts = (self.files.read_parquet(file.path, COMMITS_SCHEMA) for file in merged)
        found = [kept(part, forgotten_to, keep_since) for part in (*parts, rows)]
        whole = latest_marks(pa.concat_tables(found))
        path, buffer = f"part-{uuid.uuid4()}.parquet", io.BytesIO()
        pq.write_table(whole, buffer, compression="zstd", write_page_checksum=True)
        self.files.write(path, buffer.getvalue())
        return AddFile(path, buffer.tell(), whole.num_rows, stats=commit_files.stats(whole))

    def discard(self, written: list[AddFile]) -> None:
        """Delete the files of an attempt that lost its race."""
        while written:
            self.files.delete(written.pop().path)

    def clean(self, keep: Keep) -> int:
        """Delete the files that no kept version needs. Return their number."""
        state = self.log.open()
        if state is None:
            return 0
        since = state.version - last_checkpoint(self.files)
        # Best after a merge. The merged files can go then.
        if since >= 2 * commit_files.SMALL_FILES or (
            since >= commit_files.SMALL_FILES and commit_files.count_small(state) <= 1
        ):
            write_checkpoint(self.files)
        return clean_table(self.log, keep, data_files=True)


class _Batch:
    """One commit of :meth:`CommitsTable.append`, with a bounded number of rows."""

    def __init__(
        self,
        table: CommitsTable,
        messages_id: str,
        published: PublishedFiles,
        idle_commits: int,
        keep_since: int | None,
    ) -> None:
        self._table, self._id, self._published = table, messages_id, published
        self._idle_commits = idle_commits
        self._keep_since = keep_since or 0
        self._written: list[AddFile] = []
        self.is_last = True

    def compute(self, state: TableState) -> tuple[Change | None, int]:
        """Return the change, and the number of commits that it adds."""
        self._table.discard(self._written)
        index, app = self._published.index, _app_id(self._id)
        done = state.txns.get(app, -1)
        if state.description != _description(self._id):
            done = index.version
        upto = self._published.version_after(done, commit_files.LARGE_ROWS)
        rows = self._published.rows_since(done, upto)
        own = index.forgotten_to, index.forgotten
        forgotten_to, forgotten = max(own, _forgotten(state, self._id))
        stale = stale_files(state, forgotten_to, self._keep_since)
        idle = upto <= done or (not rows.num_rows and upto - done < self._idle_commits)
        idle = idle and forgotten_to == _forgotten(state, self._id)[0]
        more = len(stale) > _STALE_FILES or upto < index.version
        self.is_last = not more or (idle and not stale)
        if idle and not stale:
            return None, 0
        merged = commit_files.unique([*small_files(state), *stale[:_STALE_FILES]])
        self._written.append(self._table.write_rows(merged, rows, forgotten_to, self._keep_since))
        change = Change(
            uuid.uuid4().hex,
            {"operation": "index commits", "upto": upto},
            adds=list(self._written),
            removes=merged,
            txns=[
                (app, max(done, upto)),
                *_forgotten_txns(self._id, forgotten_to, forgotten),
            ],
            whole_table=True,
        )
        return change, max(0, upto - done)


def _take_over(state: TableState, description: str) -> Change | None:
    """Return the change that empties a table of another ``messages/`` and names this one."""
    if state.description == description:
        return None
    metadata = {**state.metadata, "description": description}
    return Change(
        uuid.uuid4().hex,
        {"operation": "start again"},
        removes=list(state.files()),
        whole_table=True,
        metadata=metadata,
    )


def _description(messages_id: str) -> str:
    return json.dumps({"format": "spark_mq commits", "messages": messages_id})


def _app_id(messages_id: str) -> str:
    return f"spark_mq.index:{messages_id}"


def _forgotten(state: TableState, messages_id: str) -> tuple[int, int]:
    txns = state.txns
    return txns.get(_FORGOTTEN_TO + messages_id, -1), txns.get(_FORGOTTEN + messages_id, 0)


def _forgotten_txns(messages_id: str, to: int, messages: int) -> list[tuple[str, int]]:
    found = [(_FORGOTTEN_TO + messages_id, to), (_FORGOTTEN + messages_id, messages)]
    return found if to >= 0 else []


def _forgetting(state: TableState, messages_id: str, upto: int) -> list[tuple[str, int]]:
    """Return the transactions that undo the forgetting after a version."""
    if _forgotten(state, messages_id)[0] < sequence(upto + 1, 0):
        return []
    return [(_FORGOTTEN_TO + messages_id, -1), (_FORGOTTEN + messages_id, 0)]
