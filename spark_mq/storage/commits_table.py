"""``commits/``: the commit index, a Delta table that says what the log of ``messages/`` said, so that its JSON may go.

Each write is one commit from the version that was read, marked with the last version of ``messages/`` that it reaches to.
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from spark_mq.delta import legacy as delta
from spark_mq.delta.store_errors import plain
from spark_mq.errors import CorruptLog
from spark_mq.storage.published_files import COMMITS_SCHEMA

__all__ = ["CommitsTable"]

SMALL_FILES: Final = 16
LARGE_ROWS: Final = 100_000
"""More files than that with fewer rows than that are rewritten as one."""


class CommitsTable:
    """The table at ``path``. It belongs to one ``messages/`` table, known by its id."""

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.storage_options = dict(storage_options or {})
        self.files = delta.Files(path, self.storage_options)

    def open(self, messages_id: str) -> DeltaTable | None:
        """The table at its latest version; None where there is none, or one of another ``messages/``."""
        table = delta.open_table(self.path, self.storage_options)
        return table if table is not None and table.metadata().description == _description(messages_id) else None

    def create(self, messages_id: str) -> DeltaTable:
        """Makes the table, in place of one that belonged to another ``messages/``."""
        stale = delta.exists(self.path, self.storage_options)
        try:
            DeltaTable.create(
                self.path,
                COMMITS_SCHEMA,
                mode="overwrite" if stale else "error",
                description=_description(messages_id),
                storage_options=self.storage_options,
                configuration={"delta.enableExpiredLogCleanup": "false"},
            )
        except DeltaError:
            if self.open(messages_id) is None:
                raise  # nobody else has just made it
        table = self.open(messages_id)
        assert table is not None
        return table

    def covered(self, table: DeltaTable, messages_id: str) -> int:
        """The last version of ``messages/`` that is written down, or -1."""
        upto, _ = delta.mark(table, _app(messages_id), self.files)
        return -1 if upto is None else upto

    def read(self, messages_id: str, after: int = -1) -> tuple[pa.Table, int] | None:
        """The rows, and the version of ``messages/`` that they reach to; None where that is not beyond `after`."""
        for attempt in (1, 2):
            table = self.open(messages_id)
            upto = -1 if table is None else self.covered(table, messages_id)
            if table is None or upto <= after:
                return None
            try:
                parts = [self.files.read_parquet(path, COMMITS_SCHEMA) for path in delta.paths(table)]
                return pa.concat_tables([COMMITS_SCHEMA.empty_table(), *parts]), upto
            except FileNotFoundError as error:
                if attempt == 2:  # once: a sweep has just rewritten them
                    raise self._broken(error) from error
            except pa.ArrowException as error:
                raise self._broken(error) from error
        raise AssertionError("unreachable")

    def _broken(self, error: Exception) -> CorruptLog:
        return CorruptLog(
            f"a data file of {self.path} cannot be read: {plain(error)}. Restore it from a backup; as long as the log of messages/ has all "
            "its commits, the table may be removed instead: the next sweep writes it anew", path=self.path, version=None,
        )  # fmt: skip

    def write(self, table: DeltaTable, messages_id: str, rows: pa.Table, upto: int) -> None:
        """Adds rows that reach to the version `upto` of ``messages/``, by a commit right after the version of `table`, or not at all.

        Where small files have become many, they go into the new one.
        """
        merged = _small(table)
        whole = pa.concat_tables([*(self.files.read_parquet(path, COMMITS_SCHEMA) for path in merged), rows])
        path, buffer = f"part-{uuid.uuid4()}.parquet", io.BytesIO()
        pq.write_table(whole, buffer, compression="zstd")
        self.files.write(path, buffer.getvalue())
        now = int(time.time() * 1000)
        stats = json.dumps({"numRecords": whole.num_rows})
        removes = [RemoveAction(old, False, now, None, {}) for old in merged]
        table.create_write_transaction(
            [AddAction(path, buffer.tell(), {}, now, True, stats), *removes],
            "append",
            COMMITS_SCHEMA,
            commit_properties=delta.commit_properties(
                uuid.uuid4().hex, {"operation": "index commits", "upto": upto}, [(_app(messages_id), upto)], retries=0
            ),
            post_commithook_properties=delta.no_housekeeping(),
        )


def _description(messages_id: str) -> str:
    return json.dumps({"format": "spark_mq commits", "messages": messages_id})


def _app(messages_id: str) -> str:
    return f"spark_mq.index:{messages_id}"


def _small(table: DeltaTable) -> list[str]:
    """The small files, if there are too many."""
    adds = pa.table(table.get_add_actions(flatten=True))
    small = adds.filter(pc.less(adds["num_records"], LARGE_ROWS))["path"].to_pylist() if adds.num_rows else []
    return [unquote(path) for path in small] if len(small) >= SMALL_FILES else []
