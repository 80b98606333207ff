"""Carry a small ledger in the log, as a tag of its data file.

The tag has the rows of the file: a checksum and JSON. So nobody has to read the file but SQL, and a
commit need not wait until a disk has it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from spark_mq.delta.actions import AddFile
from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.ranges import EVENT, HEADER, INSTANTS, RANGE_SCHEMA, Ledger, Range
from spark_mq.parquet.small_file import SmallFileEncoder

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
