"""The memory that Arrow takes while a block runs, and that of the heap."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

__all__ = ["at_most", "heap_in_use"]

_POOLS: list[pa.MemoryPool] = []
"""Kept for ever: buffers outlive the test that allocated them."""


@contextmanager
def at_most(size: float) -> Iterator[None]:
    """Fail if Arrow takes more bytes at once while the block runs."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield
    finally:
        pa.set_memory_pool(usual)
    assert 0 < (pool.max_memory() or 0) < size


class _Heap(ctypes.Structure):
    """mallinfo2 of glibc."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def heap_in_use() -> int:
    """Return the bytes that are allocated on the heap, where Arrow keeps all but its values."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("mallinfo2 is of glibc")
    libc.mallinfo2.restype = _Heap
    return int(libc.mallinfo2().uordblks)
