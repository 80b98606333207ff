"""Waking those who wait for messages: at once for what happens in this process, and at the right moment for what time alone changes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from weakref import WeakSet, WeakValueDictionary

__all__ = ["Notifier", "notifier_for", "subscribed"]


class Notifier:
    """Rung by whoever has changed something; sets the events of all who listen. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: WeakSet[threading.Event] = WeakSet()

    def ring(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for event in listeners:
            event.set()

    def listen(self, event: threading.Event) -> None:
        with self._lock:
            self._listeners.add(event)

    def leave(self, event: threading.Event) -> None:
        with self._lock:
            self._listeners.discard(event)


_bells: WeakValueDictionary[str, Notifier] = WeakValueDictionary()
_lock = threading.Lock()


def notifier_for(path: str) -> Notifier:
    """The bell of all handles on the table at a path in this process."""
    with _lock:
        bell = _bells.get(path)
        if bell is None:
            bell = _bells[path] = Notifier()
        return bell


@contextlib.contextmanager
def subscribed(*bells: Notifier) -> Iterator[threading.Event]:
    """An event that any of some bells sets."""
    event = threading.Event()
    for bell in bells:
        bell.listen(event)
    try:
        yield event
    finally:
        for bell in bells:
            bell.leave(event)
