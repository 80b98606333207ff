"""Sets and dicts of bounded size, for what is only kept to save work."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["RecentDict", "RecentSet"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class RecentSet(set[T]):
    """A set that begins again when it is full.

    Parameters
    ----------
    most
        The most items.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def add(self, item: T) -> None:
        """Add an item. If the set is full, drop all others."""
        if len(self) >= self._most:
            self.clear()
        super().add(item)


class RecentDict(dict[K, V]):
    """A dict that drops the items that were set longest ago. Thread-safe.

    Parameters
    ----------
    most
        The most items.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        while len(self) > self._most:
            try:
                self.pop(next(iter(self)), None)
            except (RuntimeError, StopIteration):
                return  # another thread has changed it, and drops the rest
