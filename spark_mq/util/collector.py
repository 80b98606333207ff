"""Keep Python's cyclic garbage collector out of work that makes millions of objects."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def without_collections(work: Callable[[], R]) -> R:
    """Return the result of work during which the collector rests, unless it is off already.

    It looks at all objects again whenever their number has grown by a quarter, and took half the
    time of a settle of 500,000 single messages. Reference counts free what a ledger leaves behind.
    """
    was_on = gc.isenabled()
    try:
        gc.disable()
        return work()
    finally:
        if was_on:
            gc.enable()
