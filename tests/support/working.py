"""Run a worker beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_mq import ConsumerGroup, WorkSummary

__all__ = ["working"]


@contextmanager
def working(
    group: ConsumerGroup,
    handler: Callable[[Any], Any] = lambda _: None,
    *,
    patience: float = 30,
    **options: Any,
) -> Iterator[list[WorkSummary]]:
    """A worker that runs in the block, and ends without an error within `patience` seconds.

    The list gets its summary.
    """
    stop, failed, done = threading.Event(), list[BaseException](), list[WorkSummary]()

    def work() -> None:
        try:
            done.append(group.work(handler, **{"mode": "batch", "stop": stop, **options}))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(patience)
        assert not thread.is_alive()
    for error in failed:
        raise error
