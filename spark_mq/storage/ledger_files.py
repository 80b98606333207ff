"""Write a ledger as a data file of ``leases/``, and read ledgers and events.

The tag of a small file has all of its rows, so such a file is written and never read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Commit
from spark_mq.delta.object_store import ObjectStore, decode_parquet
from spark_mq.delta.store_errors import one_line
from spark_mq.errors import CorruptLog, NotAQueue, UnsupportedTable
from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.ranges import (
    EVENT,
    HEADER,
    RANGE_SCHEMA,
    Ledger,
    LedgerHeader,
    LogFingerprint,
    Range,
    to_table,
)
from spark_mq.storage.ledger_tag import (
    FILE_SCHEMA,
    LEASES_SCHEMA,
    FileRows,
    encode_rows,
    rows_in_tag,
    to_arrow,
    to_tag,
)
from spark_mq.util.columns import sort_rows
from spark_mq.util.process import without_collections
from spark_mq.util.recent import RecentDict
from spark_mq.util.show import shell_command, show_name

__all__ = [
    "GROUPS",
    "LEASES_SCHEMA",
    "PAUSE",
    "EncodedLedger",
    "GroupChange",
    "LedgerCommit",
    "LedgerSnapshot",
    "encode_ledger",
    "event_cache",
    "events_of",
    "from_rows",
    "ledger_cache",
    "note_of_groups",
    "notes_by_group",
    "read_ledger",
    "scan_ledgers",
    "to_ledger_commit",
    "to_rows",
    "unreadable_ledger_error",
]

# The fields in the detail of a header row. A newer version may write more.
_DETAILS: Final = frozenset(json.loads(LedgerHeader().to_json()))
_ADDED: Final = ("rate_full_at", "byte_rate_full_at", "rate_noted_at", "fair_time")
# Up to this many rows, pyarrow's set-up of a file takes longer than its rows.
_SMALL_ROWS: Final = 200
_HEADER_COLUMNS: Final = ["last", "message_count", "revision", "detail"]
_LARGE_ROWS: Final = 1_000  # from this many rows on, the encoding of numbers is worth its set-up
_STRINGS: Final = [f.name for f in FILE_SCHEMA if pa.types.is_string(f.type)]
_NUMBERS: Final = [
    f.name for f in FILE_SCHEMA if pa.types.is_integer(f.type) or pa.types.is_timestamp(f.type)
]

# Key in a commit's note. Its value is the pause of its writer in seconds, if others compete.
PAUSE: Final = "pause"
# Key in the note of a commit to several groups. Its value is a list of their notes.
GROUPS: Final = "groups"
# Most ledgers in memory during a scan, and most requests to a store at the same time.
_AHEAD: Final = 16
_GROUP: Final = LEASES_SCHEMA.names[0]  # the column by which the table is partitioned
_log = logging.getLogger(__name__)
_CACHED_BYTES: Final = 32 * 2**20
_TABLE_BYTES: Final = 18_000  # of a table without its values, measured on the heap
# Most ranges of all ledgers in memory. 10,000 small ledgers fit, so a sweep reads each of them
# once.
_RANGES: Final = 400_000
_LEDGER_WEIGHT: Final = 20  # of a ledger without ranges, which takes 3 KB


class EncodedLedger(NamedTuple):
    """A ledger's data file, its number of rows, and its tag if it is small."""

    data: bytes | memoryview
    rows: int
    tag: str | None


def encode_ledger(ledger: Ledger) -> EncodedLedger:
    count = 1 + ledger.size + len(ledger.events)
    if ledger.rows is None or count > _SMALL_ROWS:
        data = without_collections(lambda: _encode_table(_file_rows(ledger)))
        return EncodedLedger(data, count, None)
    rows = FileRows.of(ledger)
    return EncodedLedger(encode_rows(rows), count, to_tag(rows))


def _encode_table(rows: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    large = rows.num_rows >= _LARGE_ROWS
    pq.write_table(
        rows,
        sink,
        compression="snappy",
        use_dictionary=_STRINGS if large else False,
        # Numbers here ascend or repeat, so delta encoding makes large ledgers small.
        column_encoding=dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED") if large else None,
        write_statistics=False,
        write_page_checksum=True,  # or a flipped bit could change a ledger silently
        store_schema=False,
        row_group_size=1_000_000,
    )
    return memoryview(sink.getvalue())


def _file_rows(ledger: Ledger) -> pa.Table:
    """Return the rows of a data file. Their order does not matter."""
    head, events = ledger.head, ledger.events
    header = Range(-1, head.start_sequence, HEADER, head.settled_count)
    # The history keeps a worker's name only.
    others = [header, *(r._replace(state=EVENT, worker_id=r.worker) for _, r in events)]
    details = [head.to_json(), *(f"{event}:{r.state}" for event, r in events)]
    count, ranges = len(others), ledger.ranges
    more = [
        pa.array([head.revision, *[None] * (count - 1)], pa.int64()),
        pa.array(details, pa.string()),
    ]
    nulls = [pa.nulls(len(ranges), array.type) for array in more]
    parts = ([*to_table(others).columns, *more], [*ranges.columns, *nulls])
    return pa.concat_tables([pa.table(columns, schema=FILE_SCHEMA) for columns in parts])


def to_rows(group: str, ledger: Ledger) -> pa.Table:
    """Return a ledger as rows: its header, its ranges, and the events since the version before."""
    rows = _file_rows(ledger)
    names = pa.repeat(pa.scalar(group, pa.string()), rows.num_rows)
    return rows.add_column(0, LEASES_SCHEMA.field(0), names)


def from_rows(rows: pa.Table, group: str = "") -> Ledger:
    """Return the ledger in the rows of a group. Raise NotAQueue if others wrote there."""
    headers = rows.filter(pc.equal(rows["state"], HEADER)).select(_HEADER_COLUMNS)
    head = replace(_only_head(headers.to_pylist()), group=group)
    others = pc.is_in(rows["state"], value_set=pa.array([HEADER, EVENT]))
    ranges = rows.filter(pc.invert(others)).select(RANGE_SCHEMA.names)
    if ranges["first"].null_count:
        raise NotAQueue(
            "a range of a consumer group in leases/ has no first sequence; something else has "
            "written there",
            path="leases",
        )
    return Ledger(head, sort_rows(ranges, "first"))


def _only_head(headers: Sequence[Mapping[str, Any]]) -> LedgerHeader:
    if len(headers) != 1:
        raise NotAQueue(
            f"leases/ has {len(headers)} header rows for a consumer group, not one: another "
            f"program has written there",
            path="leases",
        )
    return _checked_head(headers[0])


def _checked_head(header: Mapping[str, Any]) -> LedgerHeader:
    try:
        return _head(header)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NotAQueue(
            f"leases/ contains an invalid header row for a consumer group: "
            f"{type(error).__name__}: {error}",
            path="leases",
        ) from error


def _head(header: Mapping[str, Any]) -> LedgerHeader:
    detail = json.loads(header["detail"])
    if unknown := sorted(set(detail) - _DETAILS):
        raise UnsupportedTable(
            f"cannot read the ledger of a group: this version of spark_mq does not know "
            f"{', '.join(unknown)}. Update spark_mq.",
            path="leases",
            features=unknown,
        )
    head = LedgerHeader(
        header["last"],
        header["message_count"],
        header["revision"],
        detail["leases_without_fresh"],
        detail["counters"],
        detail["settings"],
        tuple((int(first), int(last)) for first, last in detail["skipped"]),
        tuple(LogFingerprint(int(first), str(path)) for first, path in detail["log_fingerprints"]),
        Breaker.from_stored(detail.get("breaker", {})),
        detail["last_sink_write"],
        **{name: detail.get(name, 0) for name in _ADDED},
        happened=detail.get("happened", {}),
    )
    if (
        None in (head.start_sequence, head.settled_count, head.revision)
        or not isinstance(head.leases_without_fresh, int)
        or not isinstance(head.last_sink_write, int)
        or not all(isinstance(getattr(head, name), int) for name in _ADDED)
    ):
        raise ValueError("a number is missing")
    counts = [*head.counters.values(), *head.happened.values()]
    if not isinstance(head.settings, dict) or not all(isinstance(count, int) for count in counts):
        raise TypeError("settings or counters have the wrong type")
    return head


def events_of(rows: pa.Table) -> pa.Table:
    """Return the events of a commit, in RANGE_SCHEMA and ``event``. ``state`` is that after it."""
    happened = rows.filter(pc.equal(rows["state"], EVENT))
    parts = pc.split_pattern(happened["detail"], ":")
    state = happened.schema.names.index("state")
    table = happened.set_column(state, "state", pc.list_element(parts, 1))
    return table.select(RANGE_SCHEMA.names).append_column("event", pc.list_element(parts, 0))


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """A group's ledger as it was read, or None if the group does not exist."""

    group: str
    ledger: Ledger | None
    token: Any  # identifies what was read, for a commit based on it
    looked: bool = True  # the store was asked for newer commits
    # Application transactions of earlier operations in the same commit.
    txns: Mapping[str, int] = field(default_factory=dict, compare=False)


class GroupChange(NamedTuple):
    """What a commit did to one group, with its author."""

    group: str | None
    operation: str | None
    events: pa.Table  # that it wrote, in LEASES_SCHEMA
    user: str | None = None  # the person who made it
    detail: str | None = None  # that person's request


class LedgerCommit(NamedTuple):
    """A commit of the table."""

    version: int
    at: int  # microseconds since 1970
    operation_id: str | None
    changes: Sequence[GroupChange]


def note_of_groups(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a commit's note from one for each group that it changes."""
    return dict(notes[0]) if len(notes) == 1 else {GROUPS: list(notes)}


def notes_by_group(note: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    notes = note.get(GROUPS)
    if not isinstance(notes, list) or not all(isinstance(each, dict) for each in notes):
        return [note]
    return notes


def read_ledger(store: ObjectStore, group: str, files: Sequence[AddFile]) -> Ledger:
    """Return the ledger in a group's files. Raise as :meth:`ObjectStore.read_parquet`."""
    tagged = rows_in_tag(files[0]) if len(files) == 1 else None
    if tagged is None:
        return from_rows(_read_rows(store, files, LEASES_SCHEMA), group)
    header = {
        "last": tagged.last,
        "message_count": tagged.message_count,
        "revision": tagged.revision,
        "detail": bytes(tagged.detail),
    }
    return Ledger(replace(_checked_head(header), group=group), tagged.ranges)


def _read_rows(store: ObjectStore, files: Sequence[AddFile], schema: pa.Schema) -> pa.Table:
    """Return the rows of files with null groups. Raise as :meth:`ObjectStore.read_parquet`."""
    parts = [decode_parquet(file.path, store.read(file.path), schema) for file in files]
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts)


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
        tagged = rows_in_tag(files[group][0]) if len(files[group]) == 1 else None
        if tagged is not None:
            return to_arrow(tagged.rows(), schema)
        try:
            return _read_rows(store, files[group], schema)
        except (FileNotFoundError, pa.ArrowInvalid):
            ledger = read_ledger(group)
            return None if ledger is None else to_rows(group, ledger).select(names)

    left = iter(files)
    while groups := list(islice(left, 1 if store.is_local else _AHEAD)):
        for group, rows in zip(groups, store.for_each(groups, read), strict=True):
            if rows is not None:
                yield group, rows


EventCache = RecentDict[str, pa.Table]  # events by their file, which never changes


def event_cache() -> EventCache:
    return RecentDict(_CACHED_BYTES, lambda events: _TABLE_BYTES + events.nbytes)


def to_ledger_commit(files: ObjectStore, commit: Commit, known: EventCache) -> LedgerCommit:
    """Return a commit with the events that it wrote. `known` has events read before."""
    # A RESTORE by another engine adds files again. Their events belong to older commits.
    operation_id = commit.operation_id
    adds = [add for add in commit.adds if operation_id and add.data_change]
    notes, changes = notes_by_group(commit.note), list[GroupChange]()
    for note in notes:
        group = note.get("group")
        own = [add for add in adds if len(notes) == 1 or add.partition.get(_GROUP) == group]
        rows = [_events(files, commit.version, add, known) for add in own]
        changes.append(
            GroupChange(
                group,
                note.get("operation"),
                rows[0]
                if len(rows) == 1
                else pa.concat_tables([LEASES_SCHEMA.empty_table(), *rows]),
                user if isinstance(user := note.get("user"), str) else None,
                detail if isinstance(detail := note.get("detail"), str) else None,
            )
        )
    return LedgerCommit(commit.version, commit.timestamp, operation_id, changes)


def _events(files: ObjectStore, version: int, add: AddFile, known: EventCache) -> pa.Table:
    """Return the events in a file with its group, or none if the file is gone or broken."""
    path = add.path
    if (events := known.get(path)) is not None:
        return events
    tagged = rows_in_tag(add)
    if tagged is not None:
        rows = to_arrow(tagged.event_rows(), LEASES_SCHEMA)
    else:
        try:
            rows = _read_rows(files, [add], LEASES_SCHEMA)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            _log.error(
                "the history of commit %d of %s is lost: %s", version, files.root, one_line(error)
            )
            return LEASES_SCHEMA.empty_table()
        # Compact, or a few events would keep the whole file in memory.
        rows = rows.filter(pc.equal(rows["state"], EVENT)).combine_chunks()
    group = add.partition.get(_GROUP)
    names = pa.repeat(pa.scalar(group, pa.string()), rows.num_rows)
    known[path] = events = rows.set_column(0, LEASES_SCHEMA.field(0), names)
    return events


CachedLedger = tuple[tuple[str, ...], Ledger]  # the paths of a ledger's files, and the ledger


def ledger_cache() -> RecentDict[str, CachedLedger]:
    return RecentDict(_RANGES, lambda cached: _LEDGER_WEIGHT + cached[1].size)


def unreadable_ledger_error(
    path: str, version: int, group: str, files: Iterable[str], error: Exception
) -> CorruptLog:
    names = ", ".join(map(show_name, files))
    command = shell_command("group", "drop", group, "-q", "PATH")
    return CorruptLog(
        f"the ledger of group {group!r} cannot be read: {names} of {path}: "
        f"{one_line(error)}. Restore the file from a backup. Or drop the group with "
        f"queue.drop_group({group!r}) or {command}: then it starts again, and gets all messages "
        "that the queue still has. Other groups continue",
        path=path,
        version=version,
    )
