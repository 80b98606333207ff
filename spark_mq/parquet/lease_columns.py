"""Read the columns that decide which messages are leased, and when, and sort by them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_filter import HEADER, KEY_PREFIX, RowRuns
from spark_mq.ledger.message_index import DeliveryTimes, FileSlice, TimedRun
from spark_mq.ledger.slots import MAX_PRIORITY, SlotLayout, encode_slots
from spark_mq.parquet.files import read_unless_damaged
from spark_mq.parquet.reader import MessageReader
from spark_mq.parquet.schema import TIME_COLUMNS, clamp_instants, effective_priorities
from spark_mq.util.clock import LATEST, SECOND
from spark_mq.util.columns import to_array

SLOT_COLUMNS: Final = ("key", "priority")
_BATCH_ROWS: Final = 2**16
_SAMPLE: Final = 1_000  # keys that show whether many rows share a key
_FILTER_COLUMNS: Final = ("key", "headers")


class SortedBySlot(NamedTuple):
    """Messages in the order of their slots."""

    table: pa.Table
    slots: str  # which rows are in which slot, empty without lanes and priorities
    places: pa.Array | None  # the row of each given message, None if the order is as given


def sort_by_slot(table: pa.Table, lanes: int) -> SortedBySlot:
    """Sort messages by slot, with a stable sort."""
    if not lanes and not _has_priorities(table):
        return SortedBySlot(table, "", None)
    numbers = _numbers(table, SlotLayout(lanes))
    runs, places = pc.run_end_encode(numbers), None
    if not _is_sorted(runs.values):
        order = pc.sort_indices(numbers).cast(pa.int64())  # stable
        table, places = table.take(order), pc.inverse_permutation(order)
        runs = pc.run_end_encode(numbers.take(order))
    slots = encode_slots(lanes, _counted(runs)) if table.num_rows else ""
    return SortedBySlot(table, slots, places)


def _has_priorities(table: pa.Table) -> bool:
    if "priority" not in table.schema.names:
        return False
    return bool(pc.any(pc.not_equal(table["priority"], 0)).as_py())


def _numbers(table: pa.Table, layout: SlotLayout) -> pa.Array:
    rows, names = table.num_rows, table.schema.names
    lane: Any = layout.lanes
    if layout.lanes and "key" in names:
        lane = _lanes(_whole(table["key"]), layout.lanes)
    level: Any = MAX_PRIORITY
    if "priority" in names:
        given = _whole(table["priority"]).cast(pa.int32())
        level = pc.subtract(MAX_PRIORITY, effective_priorities(given))
    numbers = pc.add(pc.multiply(level, layout.width), lane)
    if isinstance(numbers, pa.Scalar):
        return pa.repeat(pa.scalar(numbers.as_py(), pa.int32()), rows)
    return numbers.cast(pa.int32())


def _lanes(keys: pa.Array, lanes: int) -> pa.Array:
    """Return the lane of each key. Keys of many rows are hashed once."""
    if not pa.types.is_dictionary(keys.type):
        if not keys.null_count and mostly_differ(keys):
            return _hashed(keys, lanes)
        keys = keys.dictionary_encode()
    return pc.fill_null(_hashed(keys.dictionary, lanes).take(keys.indices), lanes)


def mostly_differ(keys: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether most keys of a sample are different ones."""
    step = max(1, len(keys) // _SAMPLE)
    some = keys.take(pa.array(range(0, len(keys), step), pa.int64()))
    return bool(2 * pc.count_distinct(some).as_py() > len(some))


def _hashed(keys: pa.Array, lanes: int) -> pa.Array:
    """Return the lane of each key. No key may be null."""
    hashes = array("I", map(crc32, keys.cast(pa.binary()).to_pylist()))
    numbers = pa.Array.from_buffers(pa.uint32(), len(hashes), [None, pa.py_buffer(hashes)])
    whole = pc.multiply(pc.divide(numbers, lanes), lanes)
    return pc.subtract(numbers, whole).cast(pa.int32())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole


def _is_sorted(numbers: pa.Array) -> bool:
    """Return whether the values of runs rise. Neighbours always differ."""
    if len(numbers) < 2:
        return True
    return bool(pc.all(pc.greater(numbers[1:], numbers[:-1])).as_py())


def _counted(runs: pa.RunEndEncodedArray) -> Iterator[tuple[int, int]]:
    ends, numbers = runs.run_ends.to_pylist(), runs.values.to_pylist()
    counts = (end - start for start, end in pairwise((0, *ends)))
    return zip(numbers, counts, strict=True)


def may_have(stats: Mapping[str, Any], *names: str) -> bool:
    """Return whether a file may have a value in a column, by its ``add`` action's statistics."""
    nulls, rows = stats.get("nullCount") or {}, stats.get("numRecords")
    return rows is None or any(nulls.get(name) != rows for name in names)


def read_slots(files: ObjectStore, path: str, lanes: int) -> str:
    """Return a foreign file's slots, or "" if it has none or is damaged. Raise OSError."""
    columns = SLOT_COLUMNS if lanes else SLOT_COLUMNS[1:]
    read = partial(_read_runs, path=path, layout=SlotLayout(lanes), columns=columns)
    runs = read_unless_damaged(files, path, read)
    if not runs or (not lanes and all(number == MAX_PRIORITY for number, _ in runs)):
        return ""
    return encode_slots(lanes, runs)


def _read_runs(
    files: ObjectStore, path: str, layout: SlotLayout, columns: Sequence[str]
) -> list[tuple[int, int]]:
    """Return the runs of a file's rows in one slot. A key that many rows share is held once."""
    with files.open(path) as raw:
        footer = pq.ParquetFile(raw)
        present = [name for name in columns if name in footer.schema_arrow.names]
        if not present:
            rows = footer.metadata.num_rows
            return [(layout.number(0, None), rows)] if rows else []
        shared = [name for name in present if name == "key"]
        file = pq.ParquetFile(raw, metadata=footer.metadata, read_dictionary=shared)
        merged: list[tuple[int, int]] = []
        for batch in file.iter_batches(_BATCH_ROWS, columns=present):
            runs = pc.run_end_encode(_numbers(pa.table(batch), layout))
            for number, rows in _counted(runs):
                if merged and merged[-1][0] == number:
                    rows += merged.pop()[1]
                merged.append((number, rows))
        return merged


def read_delivery_times(files: ObjectStore, path: str) -> DeliveryTimes | None:
    """Return a file's delivery times, or None if it has none or is damaged. Raise OSError."""
    columns = read_unless_damaged(files, path, partial(_read_columns, path=path))
    if columns is None or all(value is None for column in columns for value in column):
        return None
    return DeliveryTimes.of(_runs(columns))


def _read_columns(files: ObjectStore, path: str) -> list[list[int | None]]:
    with files.open(path) as raw:
        file = pq.ParquetFile(raw, coerce_int96_timestamp_unit="us")
        present = [name for name in TIME_COLUMNS if name in file.schema_arrow.names]
        table = file.read(columns=present)
    return [
        clamp_instants(table[name]).cast(pa.int64()).to_pylist()
        if name in present
        else [None] * table.num_rows
        for name in TIME_COLUMNS
    ]


def _runs(columns: Iterable[list[int | None]]) -> list[TimedRun]:
    runs: list[TimedRun] = []
    for deliver_at, expires_at in zip(*columns, strict=True):
        # Rounded up, so no message is early, and neighbours with equal times share a run.
        due = None if deliver_at is None else min(LATEST, -(-deliver_at // SECOND) * SECOND)
        if runs and runs[-1][1:] == (due, expires_at):
            runs[-1] = (runs[-1][0] + 1, due, expires_at)
        else:
            runs.append((1, due, expires_at))
    return runs


def match_rows(files: ObjectStore, piece: FileSlice, wanted: Mapping[str, Any]) -> RowRuns:
    """Return the rows of a file that a filter matches, with all of a damaged row group."""
    columns = [name for name in _FILTER_COLUMNS if name != "headers" or HEADER in wanted]
    reader, masks = MessageReader(files, columns), list[pa.Array]()

    def read(store: ObjectStore, part: FileSlice) -> pa.Table:
        own = reader if store is files else MessageReader(store, columns)
        return own.try_read(part)

    for part in reader.split_by_row_group(piece):
        rows = read_unless_damaged(files, piece.path, partial(read, part=part))
        if rows is None:
            masks.append(pa.repeat(pa.scalar(True), part.rows))
        else:
            masks.append(matching_rows(rows, wanted))
    return _row_runs(pa.chunked_array(masks, pa.bool_()).combine_chunks())


def matching_rows(rows: pa.Table, wanted: Mapping[str, Any]) -> pa.Array:
    """Return for each row whether all conditions hold. Texts are compared byte by byte."""
    masks = [
        _has_value(rows["headers"].combine_chunks(), name, values)
        for name, values in wanted.get(HEADER, {}).items()
    ]
    if prefixes := wanted.get(KEY_PREFIX):
        keys = rows["key"].combine_chunks()
        begins = reduce(pc.or_, (pc.starts_with(keys, prefix) for prefix in prefixes))
        masks.append(pc.fill_null(begins, False))
    return reduce(pc.and_, masks)


def _has_value(headers: pa.Array, name: str, values: list[str]) -> pa.Array:
    given = pc.map_lookup(headers, name, "all")
    right = pc.is_in(pc.list_flatten(given), pa.array(values, pa.string()))
    rows = pc.list_parent_indices(given).filter(right)
    return pc.is_in(pa.arange(0, len(headers)), rows)


def _row_runs(mask: pa.Array) -> RowRuns:
    runs = pc.run_end_encode(mask, run_end_type=pa.int64())
    return RowRuns(to_array(runs.run_ends), bool(mask[0].as_py()))
