"""Run work in a thread beside a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(
    work: Callable[[threading.Event], None], name: str, patience: float | None = None
) -> Iterator[None]:
    """Run work during the block. At the end, set its event and wait for it, or some seconds."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(patience)
