"""Write data files of ``messages/``. A later commit publishes them."""

from __future__ import annotations

import contextlib
import io
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.parquet.lease_columns import mostly_differ, sort_by_slot
from spark_mq.parquet.schema import FILE_SCHEMA, TIME_COLUMNS

SLOTS_TAG: Final = "spark_mq.slots"  # in an ``add`` action: the slots of the rows
BATCH_TAG: Final = "spark_mq.batch"  # and their message batch
REPLACES_TAG: Final = "spark_mq.replaces"  # the messages that those of the commit replace
GROUP_TAG: Final = "spark_mq.group"  # the only group that gets the messages

# Row groups are small, because a lease decodes each row group that it touches.
ROW_GROUP_ROWS: Final = 5_000
ROW_GROUP_BYTES: Final = 2 * 2**20  # of values, and one value more
# Large values count more often, because a reader knows only the mean size in a row group.
_LARGE_BYTES: Final = 64 * 2**10
_LARGE_WEIGHT: Final = 3
# Fewer bytes of values are always compressed. Three samples have this size together.
_SAMPLE_BYTES: Final = 2**18
# The columns as Parquet names them.
_LEAVES: Final = [
    *(f.name for f in FILE_SCHEMA if f.name != "headers"),
    "headers.key_value.key",
    "headers.key_value.value",
]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that no commit has published yet."""

    path: str  # relative to ``messages/``
    size: int  # in bytes
    rows: int
    timed: bool = False  # some message has a deliver_at or expires_at
    synced: bool = True  # it is on the local disk. If not, its commit syncs it
    slots: str = ""  # which rows are in which slot, empty without lanes and priorities
    # The row of each given message, if they were sorted.
    places: pa.Array | None = field(default=None, compare=False, repr=False)
    prioritised: bool = False  # some message has a priority
    fence: int = -1  # the last list of leftovers when it was written, or -1 if unknown
    group: str = ""  # the only group that gets the messages; empty if all do

    @property
    def tags(self) -> dict[str, str]:
        texts = {SLOTS_TAG: self.slots, GROUP_TAG: self.group}
        return {name: text for name, text in texts.items() if text}

    @property
    def stats(self) -> str:
        empty = {} if self.timed else dict.fromkeys(TIME_COLUMNS, self.rows)
        if not self.prioritised:
            empty["priority"] = self.rows
        return json.dumps({"numRecords": self.rows, "nullCount": empty})


def write_file(
    files: ObjectStore, table: pa.Table, *, sync: bool = True, lanes: int = 0, fence: int = -1
) -> WrittenFile:
    """Write messages as a data file, sorted by slot. Raise StorageError."""
    table, slots, places = sort_by_slot(table, lanes)
    whole = pa.table([_column(table, field) for field in FILE_SCHEMA], schema=FILE_SCHEMA)
    data = _encoded(whole)
    path = f"part-{uuid.uuid4()}.parquet"
    with wrap_store_errors(files.root, "publishing to"):
        files.write(path, data, sync=sync)
    timed = any(whole[name].null_count < whole.num_rows for name in TIME_COLUMNS)
    prioritised = whole["priority"].null_count < whole.num_rows
    return WrittenFile(
        path, len(data), whole.num_rows, timed, sync, slots, places, prioritised, fence
    )


def discard_files(files: ObjectStore, written: Iterable[WrittenFile]) -> None:
    for file in written:
        with contextlib.suppress(OSError):
            files.delete(file.path)


def _column(table: pa.Table, field: pa.Field) -> Any:
    if field.name in table.schema.names:
        return table[field.name].cast(field.type)
    return pa.nulls(table.num_rows, field.type)


def _encoded(table: pa.Table) -> bytes:
    codecs = dict.fromkeys(_LEAVES, "snappy")
    if not _is_compressible(table["value"]):
        codecs["value"] = "none"
    buffer = io.BytesIO()
    options: dict[str, Any] = {
        "compression": codecs,
        # A read of a row group reads the whole dictionary too.
        "use_dictionary": [] if mostly_differ(table["key"]) else ["key"],
        # A reader skips a column whose statistics show that all of it is null.
        "write_statistics": ["message_id", "key", "published_at", "priority", *TIME_COLUMNS],
        "write_page_checksum": True,  # Readers find flipped bits by it.
    }
    with pq.ParquetWriter(buffer, table.schema, **options) as writer:
        start = 0
        for end in _cuts(table["value"]):
            writer.write_table(table.slice(start, end - start), ROW_GROUP_ROWS)
            start = end
    return buffer.getvalue()


def _cuts(values: pa.ChunkedArray) -> list[int]:
    """Return the ends of parts with ROW_GROUP_BYTES of values, so that large ones stand apart."""
    if values.nbytes <= ROW_GROUP_BYTES // _LARGE_WEIGHT:
        return [len(values)]
    sizes = pc.fill_null(pc.binary_length(values), 0).cast(pa.int64())
    weights = pc.if_else(pc.greater(sizes, _LARGE_BYTES), _LARGE_WEIGHT, 1)
    parts = pc.divide(pc.cumulative_sum(pc.multiply(sizes, weights)), ROW_GROUP_BYTES)
    ends: list[int] = pc.run_end_encode(parts.combine_chunks()).run_ends.to_pylist()
    return ends


def _is_compressible(values: pa.ChunkedArray) -> bool:
    """Return whether three samples shrink by 5 %. Values may be compressed or encrypted already."""
    if values.nbytes < _SAMPLE_BYTES:
        return True
    size = _SAMPLE_BYTES // 3
    rows = max(1, len(values) * size // values.nbytes)
    samples = [
        # Of a larger value only a part, because a copy of it may not fit in memory.
        pc.binary_slice(values.slice(at, rows), start, start + size).drop_null().to_pylist()
        for at, start in zip(
            (0, (len(values) - rows) // 2, len(values) - rows),
            (max(0, (values.nbytes // len(values) - size) * part // 2) for part in range(3)),
            strict=True,
        )
    ]
    # A page holds the length of each value in front of it.
    pages = [b"".join(len(v).to_bytes(4, "little") + v for v in sample) for sample in samples]
    packed = sum(len(pa.compress(page, "snappy", asbytes=True)) for page in pages)
    return packed < 0.95 * max(1, sum(map(len, pages)))
