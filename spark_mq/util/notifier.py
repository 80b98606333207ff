"""Wake waiting threads and event loops when something changed or a future is done."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any
from weakref import WeakSet

from spark_mq.util.process import OnePerKey

_log = logging.getLogger(__name__)


class Notifier:
    """Sets the events of all subscribers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: WeakSet[threading.Event] = WeakSet()
        self.count = 0  # of notifications

    def notify(self) -> None:
        with self._lock:
            self.count += 1
            subscribers = list(self._subscribers)
        for event in subscribers:
            event.set()

    def subscribe(self, event: threading.Event) -> None:
        with self._lock:
            self._subscribers.add(event)

    def unsubscribe(self, event: threading.Event) -> None:
        with self._lock:
            self._subscribers.discard(event)


_notifiers: OnePerKey[str, Notifier] = OnePerKey(lambda _: Notifier())


def notifier_for(path: str) -> Notifier:
    """Return this process's only notifier for a table's path."""
    return _notifiers.get(path)


@contextlib.contextmanager
def subscribed(
    *notifiers: Notifier, event: threading.Event | None = None
) -> Iterator[threading.Event]:
    """Yield an event that each of the notifiers sets: the given one, or a new one."""
    event = event or threading.Event()
    for notifier in notifiers:
        notifier.subscribe(event)
    try:
        yield event
    finally:
        for notifier in notifiers:
            notifier.unsubscribe(event)


def call_when_done(future: Future[Any], callback: Callable[[], object]) -> None:
    """Call a function once a future is done, or now. Log its errors."""

    def call(_: Future[Any]) -> None:
        try:
            callback()
        except BaseException:  # the thread that ends the future must continue
            _log.exception("a callback failed: %r", callback)

    future.add_done_callback(call)


def wait_in_loop(future: Future[Any]) -> Generator[Any, None, None]:
    """Wait in the running event loop until a future is done."""
    import asyncio  # slow to load, and only programs with a loop wait in one

    # asyncio.wrap_future would cancel the future with the task that waits.
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def notify() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(wake)

    call_when_done(future, notify)
    yield from waiter.__await__()
