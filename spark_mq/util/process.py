"""Look after this process: its threads, its garbage collector, and handles from before a fork.

A forked process has the parent's locks as they were, perhaps held by threads that it does not have.
delta-rs and obstore do not survive a fork either.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from spark_mq.errors import UsedAfterFork

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

_forks = 0  # between the first process and this one


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - one number a process
    _forks += 1


def call_in_forks(action: Callable[[], object]) -> None:
    """Call a function in each process that is forked from now on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


call_in_forks(_count_fork)


class ForkGuard:
    """Remembers the process that made a handle. Errors name the handle by `what`."""

    __slots__ = ("_forks", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._forks = _forks

    @property
    def is_foreign(self) -> bool:
        """Return whether this process was forked after the handle was made."""
        return self._forks != _forks

    def check(self) -> None:
        """Raise UsedAfterFork in a process that was forked after the handle was made."""
        if self._forks != _forks:
            raise UsedAfterFork(
                f"using {self._what} failed: it was opened before this process was forked. Start "
                f"processes by spawn or forkserver, and open the queue in each of them",
                what=self._what,
            )


class OnePerKey(Generic[_K, _V]):
    """This process's only object for each key, as long as somebody holds it. Thread-safe."""

    def __init__(self, make: Callable[[_K], _V]) -> None:
        self._make = make
        self._found: WeakValueDictionary[_K, _V] = WeakValueDictionary()
        self._renew_lock()
        call_in_forks(self._renew_lock)  # another thread may hold it now

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def get(self, key: _K) -> _V:
        with self._lock:
            value = self._found.get(key)
            if value is None:
                value = self._found[key] = self._make(key)
            return value


@contextmanager
def in_background(
    work: Callable[[threading.Event], None], name: str, patience: float | None = None
) -> Iterator[None]:
    """Run work in a thread beside the block. Then set its event, and wait `patience` seconds."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(patience)


def without_collections(work: Callable[[], _V]) -> _V:
    """Return the result of work during which the garbage collector rests, unless it is off already.

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
