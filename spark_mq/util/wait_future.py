"""Wait for a shared future by a callback or an event loop, neither of which can cancel it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

__all__ = ["call_when_done", "wait_in_loop"]

_log = logging.getLogger(__name__)


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
