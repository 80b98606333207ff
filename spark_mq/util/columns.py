"""Convert columns between Python's arrays and Arrow's, sort rows, and make random ids."""

from __future__ import annotations

import os
from array import array
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_BYTES = 8
_IDS: Final = 1_000_000  # in one array, so that their text fits into it
# Octet 6 of a UUID by RFC 9562, section 5.4.
_VERSION: Final = bytes(byte & 0x0F | 0x40 for byte in range(256))
# Octet 8 of a UUID by RFC 9562, section 5.4.
_VARIANT: Final = bytes(byte & 0x3F | 0x80 for byte in range(256))


def to_arrow(numbers: array[int]) -> pa.Array:
    """Return numbers as an Arrow array. They are copied, because an array in use cannot grow."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers.tobytes())])


def to_array(numbers: pa.Array | pa.ChunkedArray) -> array[int]:
    """Return a column of whole numbers or instants as an array. Nulls become 0."""
    values = array("q")
    chunks = numbers.chunks if isinstance(numbers, pa.ChunkedArray) else [numbers]
    for chunk in chunks:
        whole = pc.fill_null(chunk.cast(pa.int64()), 0)
        view = memoryview(whole.buffers()[1])
        values.frombytes(view[whole.offset * _BYTES : (whole.offset + len(whole)) * _BYTES])
    return values


def sort_rows(table: pa.Table, *names: str, descending: bool = False) -> pa.Table:
    """Return a table sorted by columns, stably. Threads of Table.sort_by could abort the exit."""
    order = "descending" if descending else "ascending"
    return table.take(pc.sort_indices(table, sort_keys=[(name, order) for name in names]))


def random_ids(count: int, *, chunk: int = _IDS) -> pa.ChunkedArray:
    """Return random UUIDs as text. Arrow formats them, because Python would slow down a publish."""
    parts = [_some_ids(min(chunk, count - start)) for start in range(0, count, chunk)]
    return pa.chunked_array(parts, pa.string())


def _some_ids(count: int) -> pa.StringArray:
    raw = bytearray(os.urandom(16 * count))
    raw[6::16] = raw[6::16].translate(_VERSION)
    raw[8::16] = raw[8::16].translate(_VARIANT)
    text = pa.py_buffer(raw.hex().encode())
    digits = pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), count, [None, text])
    digits = digits.cast(pa.binary())
    parts = [pc.binary_slice(digits, first, end) for first, end in pairwise((0, 8, 12, 16, 20, 32))]
    return pc.binary_join_element_wise(*parts, b"-").cast(pa.string())
