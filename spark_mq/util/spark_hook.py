"""Hold the function that makes foreachBatch functions.

The package sets it on import. The Spark side stands above the modules that call it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["for_each_batch"]

for_each_batch: Callable[..., Callable[[Any, int], None]] | None = None
