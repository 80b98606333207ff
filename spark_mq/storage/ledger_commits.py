"""Read the events of ``leases/``, for the archive and the trace."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.actions import Commit
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.store_errors import one_line
from spark_mq.ledger.ranges import EVENT
from spark_mq.storage.ledger_rows import LEASES_SCHEMA
from spark_mq.storage.ledger_scan import read_rows
from spark_mq.storage.ledger_store import LedgerCommit
from spark_mq.util.recent import RecentDict

__all__ = ["EventCache", "event_cache", "to_ledger_commit"]

_log = logging.getLogger(__name__)

_CACHED_BYTES: Final = 32 * 2**20
_TABLE_BYTES: Final = 18_000  # of a table without its values, measured on the heap


EventCache = RecentDict[str, pa.Table]  # events by their file, which never changes


def event_cache() -> EventCache:
    return RecentDict(_CACHED_BYTES, lambda events: _TABLE_BYTES + events.nbytes)


def to_ledger_commit(files: ObjectStore, commit: Commit, known: EventCache) -> LedgerCommit:
    """Return a commit with the events that it wrote. `known` has events read before."""
    note = commit.note
    # A RESTORE by another engine adds files again. Their events belong to older commits.
    operation_id = commit.operation_id
    adds = [add for add in commit.adds if operation_id and add.get("dataChange", True)]
    rows = [_events(files, commit.version, add, known) for add in adds]
    return LedgerCommit(
        commit.version,
        commit.timestamp,
        note.get("group"),
        note.get("operation"),
        operation_id,
        rows[0] if len(rows) == 1 else pa.concat_tables([LEASES_SCHEMA.empty_table(), *rows]),
        user if isinstance(user := note.get("user"), str) else None,
        detail if isinstance(detail := note.get("detail"), str) else None,
    )


def _events(
    files: ObjectStore, version: int, add: Mapping[str, Any], known: EventCache
) -> pa.Table:
    """Return the events in a file with its group, or none if the file is gone or broken."""
    path = add["path"]
    if (events := known.get(path)) is not None:
        return events
    try:
        rows = read_rows(files, path, add["size"], LEASES_SCHEMA)
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        _log.error(
            "the history of commit %d of %s is lost: %s", version, files.root, one_line(error)
        )
        return LEASES_SCHEMA.empty_table()
    # Compact, or a few events would keep the whole file in memory.
    rows = rows.filter(pc.equal(rows["state"], EVENT)).combine_chunks()
    group = (add.get("partitionValues") or {}).get("consumer_group")
    names = pa.repeat(pa.scalar(group, pa.string()), rows.num_rows)
    known[path] = events = rows.set_column(0, LEASES_SCHEMA.field(0), names)
    return events
