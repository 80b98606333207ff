"""Find the rows of a data file that a group's filter matches. It reads only key and headers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_filter import HEADER, KEY_PREFIX
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.selection import RowRuns
from spark_mq.parquet.files import read_unless_damaged
from spark_mq.parquet.reader import MessageReader
from spark_mq.util.columns import to_array

_COLUMNS: Final = ("key", "headers")


def match_rows(files: ObjectStore, piece: FileSlice, wanted: Mapping[str, Any]) -> RowRuns:
    """Return which rows of a whole file a filter matches. Raise OSError.

    The rows of a damaged row group count as matching, so its payload is treated as in any group.
    """
    columns = [name for name in _COLUMNS if name != "headers" or HEADER in wanted]
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
    return _runs(pa.chunked_array(masks, pa.bool_()).combine_chunks())


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
    """Return for each row whether one header of a name has one of some values."""
    given = pc.map_lookup(headers, name, "all")
    right = pc.is_in(pc.list_flatten(given), pa.array(values, pa.string()))
    rows = pc.list_parent_indices(given).filter(right)
    return pc.is_in(pa.arange(0, len(headers)), rows)


def _runs(mask: pa.Array) -> RowRuns:
    runs = pc.run_end_encode(mask, run_end_type=pa.int64())
    return RowRuns(to_array(runs.run_ends), bool(mask[0].as_py()))
