"""Keep the commit index in a Delta table, ``commits/``, so that the log of ``messages/`` can be
cleaned.

Each commit of it is marked with the last version of ``messages/`` that it reaches to.
"""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Change
from spark_mq.delta.cleanup import Keep, clean_table
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import one_line
from spark_mq.delta.tables import checkpoint_soon, create_table, last_checkpoint, write_checkpoint
from spark_mq.errors import CorruptLog
from spark_mq.storage.published_files import COMMITS_SCHEMA, PublishedFiles

__all__ = ["CommitsTable"]

SMALL_FILES: Final = 16
LARGE_ROWS: Final = 100_000
"""If there are this many files with fewer rows than that, they are rewritten as one."""


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
        """Return the table at its latest version; None if there is none, or one of another
        ``messages/``."""
        state = self.log.open()
        return (
            state if state is not None and state.description == _description(messages_id) else None
        )

    def covered(self, messages_id: str) -> int:
        """Return the last version of ``messages/`` that the table has, or -1."""
        state = self.open(messages_id)
        return -1 if state is None else state.txns.get(_app_id(messages_id), -1)

    def read(self, messages_id: str, after: int = -1) -> tuple[pa.Table, int] | None:
        """Return the rows, and the version that they reach to; None if that is not beyond
        `after`."""
        for attempt in (1, 2):
            state = self.open(messages_id)
            upto = -1 if state is None else state.txns.get(_app_id(messages_id), -1)
            if state is None or upto <= after:
                return None
            try:
                parts = [
                    self.files.read_parquet(file.path, COMMITS_SCHEMA) for file in state.files()
                ]
                return pa.concat_tables([COMMITS_SCHEMA.empty_table(), *parts]), upto
            except FileNotFoundError as error:
                if attempt == 2:  # a sweep may rewrite them once
                    raise self._broken(error) from error
            except pa.ArrowException as error:
                raise self._broken(error) from error
        raise AssertionError("unreachable")

    def _broken(self, error: Exception) -> CorruptLog:
        return CorruptLog(
            f"a data file of {self.path} cannot be read: {one_line(error)}. Restore it from a "
            f"backup; or, as long as "
            "the log of messages/ has all its commits, remove the table: the next sweep writes "
            "it again",
            path=self.path,
            version=None,
        )

    def append(self, messages_id: str, published: PublishedFiles, idle_commits: int) -> int:
        """Write down what `published` has beyond the table. Return how many commits that were.

        Each commit is written down once, also if two sweeps do it at once.
        """
        with self._lock:
            self._create(messages_id)
            app, upto = _app_id(messages_id), published.index.version
            written: list[AddFile] = []

            def compute(state: TableState) -> tuple[Change | None, int]:
                done = (
                    state.txns.get(app, -1)
                    if state.description == _description(messages_id)
                    else upto
                )
                rows = published.rows_since(done)
                self._discard(written)
                if upto <= done or (not rows.num_rows and upto - done < idle_commits):
                    return None, 0
                merged = _small_files(state)
                written.append(self._write(merged, rows))
                note = {"operation": "index commits", "upto": upto}
                change = Change(
                    uuid.uuid4().hex,
                    note,
                    adds=list(written),
                    removes=merged,
                    txns=[(app, upto)],
                    whole_table=True,
                )
                return change, upto - done

            return self.log.transact(compute)[1]

    def truncate(self, messages_id: str, upto: int) -> None:
        """Drop the rows of all commits after a version of ``messages/``."""

        def compute(state: TableState) -> tuple[Change | None, None]:
            files = state.files()
            parts = [self.files.read_parquet(file.path, COMMITS_SCHEMA) for file in files]
            rows = pa.concat_tables([COMMITS_SCHEMA.empty_table(), *parts])
            kept = self._write([], rows.filter(pc.less_equal(rows["version"], upto)))
            change = Change(
                uuid.uuid4().hex,
                {"operation": "truncate", "upto": upto},
                adds=[kept],
                removes=files,
                txns=[(_app_id(messages_id), upto)],
                whole_table=True,
            )
            return change, None

        with self._lock:
            self.log.transact(compute)

    def _create(self, messages_id: str) -> None:
        """Create the table if it is missing, in place of one that belongs to another
        ``messages/``."""
        description = _description(messages_id)
        state = self.log.open()
        if state is None:
            create_table(
                self.files,
                COMMITS_SCHEMA,
                description=description,
                configuration={"delta.enableExpiredLogCleanup": "false"},
            )
        elif state.description != description:
            self.log.transact(lambda found: (_take_over(found, description), None))

    def _write(self, merged: list[AddFile], rows: pa.Table) -> AddFile:
        whole = pa.concat_tables(
            [*(self.files.read_parquet(file.path, COMMITS_SCHEMA) for file in merged), rows]
        )
        path, buffer = f"part-{uuid.uuid4()}.parquet", io.BytesIO()
        pq.write_table(whole, buffer, compression="zstd")
        self.files.write(path, buffer.getvalue())
        return AddFile(path, buffer.tell(), whole.num_rows)

    def _discard(self, written: list[AddFile]) -> None:
        """Delete the files of an attempt that lost its race."""
        while written:
            self.files.delete(written.pop().path)

    def clean(self, keep: Keep) -> int:
        """Delete what no kept version needs. Return how many files went."""
        state = self.log.open()
        if state is None:
            return 0
        since = state.version - last_checkpoint(self.files)
        # Best after a merge: the merged files can go then.
        if since >= 2 * SMALL_FILES or (since >= SMALL_FILES and _count_small(state) <= 1):
            write_checkpoint(self.files)
        return clean_table(self.log, keep, data_files=True)


def _take_over(state: TableState, description: str) -> Change | None:
    """Return the change that empties the table of another ``messages/`` and describes it as this
    one's."""
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


def _small_files(state: TableState) -> list[AddFile]:
    """Return the small files, if there are too many."""
    small = [file for file in state.files() if _is_small(file)]
    return small if len(small) >= SMALL_FILES else []


def _count_small(state: TableState) -> int:
    return sum(_is_small(file) for file in state.files())


def _is_small(file: AddFile) -> bool:
    return (file.rows or 0) < LARGE_ROWS
