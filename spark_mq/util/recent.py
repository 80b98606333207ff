"""Define sets and dicts of bounded size for caches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class RecentSet(set[T]):
    """A set that drops all its items when it has `most` and gets another one."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def add(self, item: T) -> None:
        if item not in self and len(self) >= self._most:
            self.clear()
        super().add(item)


class RecentDict(dict[K, V]):
    """A dict that drops the items set longest ago while all together weigh more than `most`.

    The item set last stays at any weight. `weigh` is called once for each item. Setting an item,
    :meth:`use` and :meth:`forget` are thread-safe, and other methods that change a dict do not know
    the weights.
    """

    def __init__(self, most: int, weigh: Callable[[V], int] = lambda value: 1) -> None:
        super().__init__()
        self._most, self._weigh = most, weigh
        self.reset()

    def reset(self) -> None:
        """Begin empty, with a free lock. A forked process has no threads that would free it."""
        super().clear()
        self._weight = 0
        self._weights: dict[K, int] = {}
        self._lock = threading.Lock()

    def __setitem__(self, key: K, value: V) -> None:
        weight = self._weigh(value)
        with self._lock:
            self._drop(key)
            super().__setitem__(key, value)
            self._weights[key] = weight
            self._weight += weight
            while len(self) > 1 and self._weight > self._most:
                self._drop(next(iter(self)))

    def use(self, key: K) -> V | None:
        """Return an item as if it were set now, or None."""
        with self._lock:
            if key in self:
                super().__setitem__(key, super().pop(key))
            return self.get(key)

    def forget(self, key: K) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: K) -> None:
        if key in self:
            super().pop(key)
            self._weight -= self._weights.pop(key, 0)
