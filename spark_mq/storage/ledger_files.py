"""Write a ledger as a data file of ``leases/``, and read ledgers and events.

A small ledger travels in the log, too, as a tag of its data file. The tag has the rows of the file:
a checksum and JSON. So nobody has to read the file but SQL, and a commit need not wait until a disk
has it.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Commit
from spark_mq.delta.object_store import ObjectStore, decode_parquet
from spark_mq.delta.store_errors import one_line
from spark_mq.errors import NotAQueue, UnsupportedTable
from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.ranges import (
    EVENT,
    HEADER,
    INSTANTS,
    RANGE_SCHEMA,
    Ledger,
    LedgerHeader,
    Range,
)
from spark_mq.parquet.small_file import SmallFileEncoder
from spark_mq.storage.commit_turn import notes_by_group
from spark_mq.util.columns import sort_rows
from spark_mq.util.process import without_collections
from spark_mq.util.recent import RecentDict

LEASES_SCHEMA: Final = pa.schema(
    [
        pa.field("consumer_group", pa.string()),
        *RANGE_SCHEMA,
        pa.field("revision", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)
# The columns of a data file. Delta keeps a partition's value in the log.
FILE_SCHEMA: Final = pa.schema([f for f in LEASES_SCHEMA if f.name != "consumer_group"])
_SMALL_FILE: Final = SmallFileEncoder(FILE_SCHEMA)

LEDGER_TAG: Final = "spark_mq.ledger"
# About 60 leased ranges. A log is read by everybody, so it has no large ledgers.
MAX_TAG_BYTES: Final = 16_384
MAX_TAG_ROWS: Final = 100
_CHECKSUM_DIGITS: Final = 8
# What a range has behind its place, state and count. Most settled ones have only these.
_PLAIN: Final = tuple(Range(0, 0, "", 0))[4:]

# The fields in the detail of a header row. A newer version may write more.
_DETAILS: Final = frozenset(json.loads(LedgerHeader().to_json()))
_OF_BREAKER: Final = frozenset(each.name for each in fields(Breaker))
# Those that an older version did not write.
_ADDED: Final = frozenset(
    ("breaker", "byte_rate_full_at", "fair_time", "happened", "rate_full_at", "rate_noted_at")
)
# Up to this many rows, pyarrow's set-up of a file takes longer than its rows.
_SMALL_ROWS: Final = 200
_HEADER_COLUMNS: Final = ["last", "message_count", "revision", "detail"]
_STRINGS: Final = [f.name for f in FILE_SCHEMA if pa.types.is_string(f.type)]
_NUMBERS: Final = [
    f.name for f in FILE_SCHEMA if pa.types.is_integer(f.type) or pa.types.is_timestamp(f.type)
]

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


class FileRows(msgspec.Struct, array_like=True):
    """The rows of a ledger's data file: a header, the ranges, and the events of its commit."""

    last: int  # the columns of the header
    message_count: int
    revision: int
    detail: msgspec.Raw
    ranges: list[Range]
    events: list[tuple[str, Range]]

    @classmethod
    def of(cls, ledger: Ledger) -> FileRows:
        """Return the rows of a ledger whose ranges are a list."""
        head = ledger.head
        # The history keeps a worker's name only.
        events = [(event, r._replace(worker_id=r.worker)) for event, r in ledger.events]
        return cls(
            head.start_sequence,
            head.settled_count,
            head.revision,
            msgspec.Raw(head.to_json().encode()),
            ledger.rows or [],
            events,
        )

    def __len__(self) -> int:
        return 1 + len(self.ranges) + len(self.events)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows, each with the columns of a range, ``revision`` and ``detail``."""
        header = Range(-1, self.last, HEADER, self.message_count)
        detail = bytes(self.detail).decode()
        ranges = [(*r, None, None) for r in self.ranges]
        return [(*header, self.revision, detail), *ranges, *self.event_rows()]

    def event_rows(self) -> list[tuple[Any, ...]]:
        return [(*r._replace(state=EVENT), None, f"{event}:{r.state}") for event, r in self.events]


def to_tag(rows: FileRows) -> str | None:
    """Return the rows as a tag, or None if the log should not have so many."""
    if len(rows) > MAX_TAG_ROWS:
        return None
    short = msgspec.structs.replace(rows, ranges=_shortened(rows.ranges))
    data = msgspec.json.encode(short)
    if len(data) > MAX_TAG_BYTES:
        return None
    return f"{zlib.crc32(data):0{_CHECKSUM_DIGITS}x}{data.decode()}"


def _shortened(ranges: Sequence[Range]) -> list[Any]:
    return [r[:4] if r[4:] == _PLAIN else r for r in ranges]


_DECODER: Final = msgspec.json.Decoder(FileRows)


def rows_in_tag(file: AddFile) -> FileRows | None:
    """Return the rows of a file by its tag, or None if only the file has them."""
    text = file.tags.get(LEDGER_TAG)
    if not isinstance(text, str):
        return None
    data = text[_CHECKSUM_DIGITS:].encode("utf-8", "replace")
    if text[:_CHECKSUM_DIGITS] != f"{zlib.crc32(data):0{_CHECKSUM_DIGITS}x}":
        return None
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # by a newer version, or by nobody


def encode_rows(rows: FileRows) -> bytes:
    """Return the data file of the rows."""
    return _SMALL_FILE.encode(list(zip(*rows.rows(), strict=True)))


def to_arrow(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Return rows of a tag as a table with some columns, and null groups."""
    values = zip(*rows, strict=True) if rows else [()] * len(FILE_SCHEMA)
    by_name = dict(zip(FILE_SCHEMA.names, values, strict=True))
    columns = []
    for field_ in schema:
        if field_.name not in by_name:
            columns.append(pa.nulls(len(rows), field_.type))
        elif field_.name in INSTANTS:
            columns.append(pa.array(by_name[field_.name], pa.int64()).cast(field_.type))
        else:
            columns.append(pa.array(by_name[field_.name], field_.type))
    return pa.table(columns, schema=schema)


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
    pq.write_table(
        rows,
        sink,
        compression="snappy",
        use_dictionary=_STRINGS,
        # Numbers here ascend or repeat, so delta encoding makes the file several times smaller.
        column_encoding=dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
        write_statistics=False,
        write_page_checksum=True,  # or a flipped bit could change a ledger silently
        store_schema=False,
    )
    return memoryview(sink.getvalue())


def _file_rows(ledger: Ledger) -> pa.Table:
    """Return the rows of a data file. Their order does not matter."""
    rows = to_arrow(FileRows.of(ledger).rows(), FILE_SCHEMA)
    if ledger.rows is not None:
        return rows
    ranges = ledger.ranges
    added = [pa.nulls(len(ranges), FILE_SCHEMA.field(name).type) for name in ("revision", "detail")]
    return pa.concat_tables([rows, pa.table([*ranges.columns, *added], schema=FILE_SCHEMA)])


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
    return _head(headers[0])


def _head(header: Mapping[str, Any]) -> LedgerHeader:
    try:
        detail = json.loads(header["detail"])
        names = {*detail, *detail.get("breaker", ())}
        if unknown := sorted(names - _DETAILS - _OF_BREAKER):
            raise UnsupportedTable(
                f"cannot read the ledger of a group: this version of spark_mq does not know "
                f"{', '.join(unknown)}. Update spark_mq.",
                path="leases",
                features=unknown,
            )
        if missing := sorted(_DETAILS - _ADDED - set(detail)):
            raise ValueError(f"it lacks {', '.join(missing)}")
        stored = {
            **detail,
            "start_sequence": header["last"],
            "settled_count": header["message_count"],
            "revision": header["revision"],
            "skipped_intervals": detail["skipped"],
        }
        return msgspec.convert(stored, LedgerHeader)
    except (ValueError, TypeError, AttributeError, RecursionError, msgspec.MsgspecError) as error:
        raise NotAQueue(
            f"leases/ contains an invalid header row for a consumer group: "
            f"{type(error).__name__}: {error}",
            path="leases",
        ) from error


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
    return Ledger(replace(_head(header), group=group), tagged.ranges)


def _read_rows(store: ObjectStore, files: Sequence[AddFile], schema: pa.Schema) -> pa.Table:
    """Return the rows of files with null groups. Raise as :meth:`ObjectStore.read_parquet`."""
    return pa.concat_tables(
        decode_parquet(file.path, store.read(file.path), schema) for file in files
    )


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


def secure_files(store: ObjectStore, files: Iterable[AddFile], *, sync: bool) -> None:
    """Write small files again that are missing, and with `sync` make all of them durable."""
    for file in files:
        rows = rows_in_tag(file)
        if rows is None:
            continue
        data = encode_rows(rows)
        try:
            is_whole = store.read(file.path) == data
            # A file of another size has another version encoded.
            if is_whole or len(data) != file.size:
                if sync:
                    store.sync(file.path)
                continue
        except FileNotFoundError:
            if len(data) != file.size:
                continue  # a reader would look for the footer in another place
        store.write(file.path, data)


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
