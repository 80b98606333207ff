"""Convert a ledger to rows of ``leases/``, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.errors import NotAQueue, UnsupportedTable
from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.ranges import (
    EVENT,
    HEADER,
    RANGE_SCHEMA,
    Ledger,
    LedgerHeader,
    LogFingerprint,
    Range,
    to_ranges,
    to_table,
)
from spark_mq.parquet.small_file import SmallFileEncoder
from spark_mq.util.columns import sort_rows

__all__ = [
    "LEASES_SCHEMA",
    "MAX_SMALL_BYTES",
    "decode_small",
    "encode_ledger",
    "events_of",
    "from_rows",
    "to_rows",
]

LEASES_SCHEMA: Final = pa.schema(
    [
        pa.field("consumer_group", pa.string()),
        *RANGE_SCHEMA,
        pa.field("revision", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)


# The fields in the detail of a header row. A newer version may write more.
_DETAILS: Final = frozenset(json.loads(LedgerHeader().to_json()))
# The columns of a data file. Delta keeps a partition's value in the log.
_FILE_SCHEMA: Final = pa.schema([f for f in LEASES_SCHEMA if f.name != "consumer_group"])
_SMALL_FILE: Final = SmallFileEncoder(_FILE_SCHEMA)
# Up to this many rows, pyarrow's set-up of a file takes longer than its rows.
_SMALL_ROWS: Final = 200
MAX_SMALL_BYTES: Final = 256 * 1024  # a larger data file is not one of few rows
_LARGE_ROWS: Final = 1_000  # from this many rows on, the encoding of numbers is worth its set-up
_STRINGS: Final = [f.name for f in _FILE_SCHEMA if pa.types.is_string(f.type)]
_NUMBERS: Final = [
    f.name for f in _FILE_SCHEMA if pa.types.is_integer(f.type) or pa.types.is_timestamp(f.type)
]


def encode_ledger(ledger: Ledger) -> tuple[bytes | memoryview, int]:
    """Return the data file of a ledger, and its number of rows."""
    count = 1 + ledger.size + len(ledger.events)
    if ledger.rows is None or count > _SMALL_ROWS:
        return _encode_table(_file_rows(ledger)), count
    header = (*_header_range(ledger.head), ledger.head.revision, ledger.head.to_json())
    rows: list[tuple[Any, ...]] = [header]
    rows += [(*r, None, None) for r in ledger.rows]
    rows += [(*r._replace(state=EVENT), None, f"{event}:{r.state}") for event, r in ledger.events]
    return _SMALL_FILE.encode(list(zip(*rows, strict=True))), count


def decode_small(data: bytes, schema: pa.Schema) -> pa.Table | None:
    """Return a data file's rows with null groups, or None if only pyarrow can read it."""
    found = _SMALL_FILE.decode(data, schema.names)
    if found is None:
        return None
    rows = len(next(iter(found.values()), ()))
    columns = [found[f.name] if f.name in found else pa.nulls(rows, f.type) for f in schema]
    return pa.table(columns, schema=schema)


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
    others = [_header_range(head), *(r._replace(state=EVENT) for _, r in events)]
    details = [head.to_json(), *(f"{event}:{r.state}" for event, r in events)]
    count, ranges = len(others), ledger.ranges
    more = [
        pa.array([head.revision, *[None] * (count - 1)], pa.int64()),
        pa.array(details, pa.string()),
    ]
    nulls = [pa.nulls(len(ranges), array.type) for array in more]
    parts = ([*to_table(others).columns, *more], [*ranges.columns, *nulls])
    return pa.concat_tables([pa.table(columns, schema=_FILE_SCHEMA) for columns in parts])


def to_rows(group: str, ledger: Ledger) -> pa.Table:
    """Return a ledger as rows: its header, its ranges, and the events since the version before."""
    head, events = ledger.head, ledger.events
    header = to_table([_header_range(head)])
    happened = to_table(r._replace(state=EVENT) for _, r in events)
    details = [f"{event}:{r.state}" for event, r in events]
    return pa.concat_tables(
        [
            _rows(group, header, [head.revision], [head.to_json()]),
            _rows(group, ledger.ranges),
            _rows(group, happened, detail=details),
        ]
    )


def _header_range(head: LedgerHeader) -> Range:
    return Range(-1, head.start_sequence, HEADER, head.settled_count)


def _rows(
    group: str,
    ranges: pa.Table,
    revision: list[int] | None = None,
    detail: list[str] | None = None,
) -> pa.Table:
    n = ranges.num_rows
    return pa.table(
        [
            pa.repeat(pa.scalar(group, pa.string()), n),
            *ranges.columns,
            pa.nulls(n, pa.int64()) if revision is None else pa.array(revision, pa.int64()),
            pa.nulls(n, pa.string()) if detail is None else pa.array(detail, pa.string()),
        ],
        schema=LEASES_SCHEMA,
    )


def from_rows(rows: pa.Table) -> Ledger:
    """Return the ledger in the rows of a group. Raise NotAQueue if others wrote there."""
    return _from_few(rows) if rows.num_rows <= _SMALL_ROWS else _from_many(rows)


def _from_few(rows: pa.Table) -> Ledger:
    """Return the ledger in a few rows. Each filter of Arrow would take longer than a row."""
    found = list(to_ranges(rows))
    rest = zip(found, rows["revision"].to_pylist(), rows["detail"].to_pylist(), strict=True)
    head = _only_head(
        [
            {**r._asdict(), "revision": revision, "detail": detail}
            for r, revision, detail in rest
            if r.state == HEADER
        ]
    )
    ranges = [r for r in found if r.state not in (HEADER, EVENT)]
    if any(r.first is None for r in ranges):
        raise NotAQueue(
            "a range of a consumer group in leases/ has no first sequence; something else has "
            "written there",
            path="leases",
        )
    return Ledger(head, sorted(ranges, key=attrgetter("first")))


def _from_many(rows: pa.Table) -> Ledger:
    head = _only_head(rows.filter(pc.equal(rows["state"], HEADER)).to_pylist())
    ranges = rows.filter(
        pc.invert(pc.is_in(rows["state"], value_set=pa.array([HEADER, EVENT])))
    ).select(RANGE_SCHEMA.names)
    return Ledger(head, sort_rows(ranges, "first"))


def _only_head(headers: Sequence[Mapping[str, Any]]) -> LedgerHeader:
    if len(headers) != 1:
        raise NotAQueue(
            f"leases/ has {len(headers)} header rows for a consumer group, not one: another "
            f"program has written there",
            path="leases",
        )
    try:
        return _head(headers[0])
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
    )
    if None in (head.start_sequence, head.settled_count, head.revision) or not isinstance(
        head.leases_without_fresh, int
    ):
        raise ValueError("a number is missing")
    if not isinstance(head.settings, dict) or not all(
        isinstance(count, int) for count in head.counters.values()
    ):
        raise TypeError("settings or counters have the wrong type")
    return head


def events_of(rows: pa.Table) -> pa.Table:
    """Return the events of a commit, in RANGE_SCHEMA and ``event``. ``state`` is that after it."""
    happened = rows.filter(pc.equal(rows["state"], EVENT))
    parts = pc.split_pattern(happened["detail"], ":")
    state = happened.schema.names.index("state")
    table = happened.set_column(state, "state", pc.list_element(parts, 1))
    return table.select(RANGE_SCHEMA.names).append_column("event", pc.list_element(parts, 0))
