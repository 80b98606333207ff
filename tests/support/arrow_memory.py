"""The memory that Arrow takes while a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

__all__ = ["at_most"]

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
