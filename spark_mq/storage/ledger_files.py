"""Read the data files of ledgers: what is read, its rows and events, and what to say of damage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.actions import AddFile, Commit
from spark_mq.delta.object_store import ObjectStore, decode_parquet
from spark_mq.delta.store_errors import one_line
from spark_mq.errors import CorruptLog
from spark_mq.ledger.ranges import EVENT, Ledger
from spark_mq.storage.ledger_rows import LEASES_SCHEMA, MAX_SMALL_BYTES, decode_small, to_rows
from spark_mq.util.advice import drop_group
from spark_mq.util.recent import RecentDict
from spark_mq.util.show import show_name

__all__ = [
    "PAUSE",
    "LedgerCommit",
    "LedgerSnapshot",
    "event_cache",
    "ledger_cache",
    "read_rows",
    "scan_ledgers",
    "to_ledger_commit",
    "unreadable_ledger_error",
]

# Key in a commit's note. Its value is the pause of its writer in seconds, if others compete.
PAUSE: Final = "pause"


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """A group's ledger as it was read, or None if the group does not exist."""

    group: str
    ledger: Ledger | None
    token: Any  # identifies what was read, for a commit based on it
    looked: bool = True  # the store was asked for newer commits
    # Application transactions of earlier operations in the same commit.
    txns: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class LedgerCommit:
    """A commit of the table, with its operation and its author."""

    version: int
    at: int  # microseconds since 1970
    group: str | None
    operation: str | None
    operation_id: str | None
    events: pa.Table  # that it wrote, in LEASES_SCHEMA
    user: str | None = None  # the person who made it
    detail: str | None = None  # that person's request


# Most ledgers in memory during a scan, and most requests to a store at the same time.
_AHEAD: Final = 16


def read_rows(store: ObjectStore, path: str, size: int, schema: pa.Schema) -> pa.Table:
    """Return a data file's rows with null groups. Raise as :meth:`ObjectStore.read_parquet`."""
    data = store.read(path)
    rows = decode_small(data, schema) if size <= MAX_SMALL_BYTES else None
    return decode_parquet(path, data, schema) if rows is None else rows


def scan_ledgers(
    store: ObjectStore,
    files: Mapping[str, Sequence[AddFile]],
    columns: Sequence[str] | None,
    read_ledger: Callable[[str], Ledger | None],
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of groups in order. `read_ledger` reads a replaced one, or raises."""
    names = LEASES_SCHEMA.names if columns is None else list(columns)
    schema = pa.schema([LEASES_SCHEMA.field(name) for name in names])

    def read(group: str) -> pa.Table | None:
        try:
            parts = [read_rows(store, file.path, file.size, schema) for file in files[group]]
            return parts[0] if len(parts) == 1 else pa.concat_tables(parts)
        except (FileNotFoundError, pa.ArrowInvalid):
            ledger = read_ledger(group)
            return None if ledger is None else to_rows(group, ledger).select(names)

    def tables() -> Iterator[pa.Table | None]:
        if store.is_local:  # the interpreter's lock makes threads slower here
            yield from map(read, files)
            return
        with ThreadPoolExecutor(_AHEAD) as pool:
            for some in _batches(files):
                yield from pool.map(read, some)

    for group, rows in zip(files, tables(), strict=True):
        if rows is not None:
            yield group, rows


def _batches(groups: Iterable[str]) -> Iterator[list[str]]:
    left = iter(groups)
    while some := list(islice(left, _AHEAD)):
        yield some


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
    adds = [add for add in commit.adds if operation_id and add.data_change]
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


def _events(files: ObjectStore, version: int, add: AddFile, known: EventCache) -> pa.Table:
    """Return the events in a file with its group, or none if the file is gone or broken."""
    path = add.path
    if (events := known.get(path)) is not None:
        return events
    try:
        rows = read_rows(files, path, add.size, LEASES_SCHEMA)
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        _log.error(
            "the history of commit %d of %s is lost: %s", version, files.root, one_line(error)
        )
        return LEASES_SCHEMA.empty_table()
    # Compact, or a few events would keep the whole file in memory.
    rows = rows.filter(pc.equal(rows["state"], EVENT)).combine_chunks()
    group = add.partition.get("consumer_group")
    names = pa.repeat(pa.scalar(group, pa.string()), rows.num_rows)
    known[path] = events = rows.set_column(0, LEASES_SCHEMA.field(0), names)
    return events


# Most ranges of all ledgers in memory. 10,000 small ledgers fit, so a sweep reads each of them
# once.
_RANGES: Final = 400_000
_LEDGER_WEIGHT: Final = 20  # of a ledger without ranges, which takes 3 KB

CachedLedger = tuple[tuple[str, ...], Ledger]  # the paths of a ledger's files, and the ledger


def ledger_cache() -> RecentDict[str, CachedLedger]:
    """Return an empty cache of ledgers by group."""
    return RecentDict(_RANGES, lambda cached: _LEDGER_WEIGHT + cached[1].size)


def unreadable_ledger_error(
    path: str, version: int, group: str, files: Iterable[str], error: Exception
) -> CorruptLog:
    """Return the error for a ledger whose data files cannot be read."""
    names, drop = ", ".join(map(show_name, files)), drop_group(group)
    return CorruptLog(
        f"the ledger of group {group!r} cannot be read: {names} of {path}: "
        f"{one_line(error)}. Restore the file from a backup. Or drop the group with "
        f"{drop}: then it starts again, and gets all messages that the queue still has. Other "
        "groups continue",
        advice=[drop],
        path=path,
        version=version,
    )
