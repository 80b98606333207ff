"""Convert columns of whole numbers between Python's arrays and Arrow's."""

from __future__ import annotations

from array import array

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["to_array", "to_arrow"]

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
