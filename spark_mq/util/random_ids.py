"""Make many random UUIDs as an Arrow column."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["random_ids"]

_IDS: Final = 1_000_000  # in one array, so that their text fits into it
# Octet 6 of a UUID by RFC 9562, section 5.4.
_VERSION: Final = bytes(byte & 0x0F | 0x40 for byte in range(256))
# Octet 8 of a UUID by RFC 9562, section 5.4.
_VARIANT: Final = bytes(byte & 0x3F | 0x80 for byte in range(256))


def random_ids(count: int) -> pa.ChunkedArray:
    """Return random UUIDs as text. Arrow formats them, because Python would slow down a publish."""
    parts = [_some_ids(min(_IDS, count - start)) for start in range(0, count, _IDS)]
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
