"""Wake waiting threads of this process when something changed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from weakref import WeakSet, WeakValueDictionary

from spark_mq.util.process import ForkSafeLock

__all__ = ["Notifier", "notifier_for", "subscribed"]


class Notifier:
    """Sets the events of all subscribers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: WeakSet[threading.Event] = WeakSet()

    def notify(self) -> None:
        with self._lock:
            subscribers = list(self._subscribers)
        for event in subscribers:
            event.set()

    def subscribe(self, event: threading.Event) -> None:
        with self._lock:
            self._subscribers.add(event)

    def unsubscribe(self, event: threading.Event) -> None:
        with self._lock:
            self._subscribers.discard(event)


_notifiers: WeakValueDictionary[str, Notifier] = WeakValueDictionary()
_lock = ForkSafeLock()


def notifier_for(path: str) -> Notifier:
    """Return this process's only notifier for a table's path."""
    with _lock:
        notifier = _notifiers.get(path)
        if notifier is None:
            notifier = _notifiers[path] = Notifier()
        return notifier


@contextlib.contextmanager
def subscribed(*notifiers: Notifier) -> Iterator[threading.Event]:
    """Yield an event that each of the notifiers sets."""
    event = threading.Event()
    for notifier in notifiers:
        notifier.subscribe(event)
    try:
        yield event
    finally:
        for notifier in notifiers:
            notifier.unsubscribe(event)
