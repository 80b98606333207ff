"""Add trace headers to the messages of a table, and read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["add_headers", "trace_headers"]

TRACE_HEADERS: Final = ("traceparent", "tracestate")
_HEADERS: Final = pa.map_(pa.string(), pa.string())


def add_headers(column: pa.ChunkedArray, extra: Mapping[str, str]) -> pa.Array:
    """Add `extra` to the headers (null or a map) of each message without ``traceparent``."""
    rows = column.combine_chunks()
    if isinstance(rows, pa.ChunkedArray):
        rows = pa.concat_arrays(rows.chunks) if rows.num_chunks else pa.array([], _HEADERS)
    own = rows.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    parents, pairs = pc.list_parent_indices(own), pc.list_flatten(own)
    keys, values = pairs.field("key"), pairs.field("value")
    traced = pc.unique(parents.filter(pc.is_in(keys, value_set=pa.array(TRACE_HEADERS[:1]))))
    every = pa.array(range(len(rows)), parents.type)
    new = every.filter(pc.invert(pc.is_in(every, value_set=traced)))
    for name, value in extra.items():
        parents = pa.concat_arrays([parents, new])
        keys = pa.concat_arrays([keys, pa.repeat(name, len(new))])
        values = pa.concat_arrays([values, pa.repeat(value, len(new))])
    order = pc.sort_indices(parents)  # stable, so the own headers of a row stay first
    # In the order of the rows, because `every` names each of them first.
    sizes = pc.value_counts(pa.concat_arrays([every, parents])).field("counts")
    ends = pc.cumulative_sum(pc.subtract(sizes, 1))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    return pa.MapArray.from_arrays(offsets, keys.take(order), values.take(order))


def trace_headers(column: pa.ChunkedArray) -> Iterator[dict[str, str]]:
    """Yield the trace headers of each message that has some."""
    for row in column:
        found = {name: value for name, value in row.as_py() or () if name in TRACE_HEADERS}
        if found:
            yield found
