"""Read what a commit of ``leases/`` did, for the archive and the trace."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_mq.delta.actions import Commit
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.store_errors import one_line
from spark_mq.storage.ledger_rows import LEASES_SCHEMA
from spark_mq.storage.ledger_scan import read_rows
from spark_mq.storage.ledger_store import LedgerCommit

__all__ = ["to_ledger_commit"]

_log = logging.getLogger(__name__)


def to_ledger_commit(files: ObjectStore, commit: Commit) -> LedgerCommit:
    """Return a commit with the rows that it wrote."""
    note = commit.note
    # A RESTORE by another engine adds files again: their events are those of older commits.
    operation_id = commit.operation_id
    adds = [add for add in commit.adds if operation_id and add.get("dataChange", True)]
    rows = [_rows(files, commit.version, add) for add in adds]
    return LedgerCommit(
        commit.version,
        commit.timestamp,
        note.get("group"),
        note.get("operation"),
        operation_id,
        pa.concat_tables([LEASES_SCHEMA.empty_table(), *rows]),
        user if isinstance(user := note.get("user"), str) else None,
    )


def _rows(files: ObjectStore, version: int, add: Mapping[str, Any]) -> pa.Table:
    """Return the rows of a file with its group. There are none if it is gone or broken."""
    try:
        rows = read_rows(files, add["path"], add["size"], LEASES_SCHEMA)
    except (FileNotFoundError, pa.ArrowException) as error:
        _log.error(
            "the history of commit %d of %s is lost: %s: %s",
            version, files.root, add["path"], one_line(error),
        )  # fmt: skip
        return LEASES_SCHEMA.empty_table()
    group = (add.get("partitionValues") or {}).get("consumer_group")
    names = pa.repeat(pa.scalar(group, pa.string()), rows.num_rows)
    return rows.set_column(0, LEASES_SCHEMA.field(0), names)
