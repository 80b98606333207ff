"""Convert columns between Python's arrays and Arrow's, and sort rows."""

from __future__ import annotations

from array import array

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["sort_rows", "to_array", "to_arrow"]

_BYTES = 8


def to_arrow(numbers: array[int]) -> pa.Array:
    """Return numbers as an Arrow array. They are copied, because an array in use cannot grow."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers.tobytes())])


def to_array(numbers: pa.Array | pa.ChunkedArray, null: int = 0) -> array[int]:
    """Return a column of whole numbers or instants as an array. Nulls become `null`."""
    found = array("q")
    chunks = numbers.chunks if isinstance(numbers, pa.ChunkedArray) else [numbers]
    for chunk in chunks:
        whole = pc.fill_null(chunk.cast(pa.int64()), null)
        values = memoryview(whole.buffers()[1])
        found.frombytes(values[whole.offset * _BYTES : (whole.offset + len(whole)) * _BYTES])
    return found


def sort_rows(table: pa.Table, *names: str, descending: bool = False) -> pa.Table:
    """Return a table sorted by columns. Equal rows keep their order.

    Unlike ``Table.sort_by`` it starts no threads. One that frees Python's bytes at the end of the
    process would abort it.
    """
    order = "descending" if descending else "ascending"
    return table.take(pc.sort_indices(table, sort_keys=[(name, order) for name in names]))
