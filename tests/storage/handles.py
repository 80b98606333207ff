"""What the storage tests share: second handles, and injected faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from spark_mq import Lease, Queue


def again(queue: Queue, clock: Any = None) -> Queue:
    """A second handle on the same queue, as another process has it: nothing cached, nothing shared but the storage."""
    if queue.path == "memory":
        return Queue(queue.path, queue.settings, queue.log, queue.leases, clock=clock or queue.clock, dead_letters=queue.dead_letters)
    return Queue.open(queue.path, storage_options=queue.storage_options, clock=clock or queue.clock)


def lease(queue: Queue, count: int = 10, group: str = "default") -> Lease:
    """A lease that is expected to hold something."""
    found = queue.group(group).lease("w", max_messages=count)
    assert found is not None
    return found


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits for a condition, for so long at most."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        pause.wait(0.002)


class Injected:
    """Wraps a function: at its n-th call something happens before, or an error is raised before or after it has done its work."""

    def __init__(
        self,
        real: Callable[..., Any],
        *,
        before: Callable[[], Any] | None = None,
        after: Callable[[], Any] | None = None,
        fail: BaseException | None = None,
        at: int = 1,
    ) -> None:
        self.real, self.before, self.after, self.fail, self.at, self.calls = real, before, after, fail, at, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        now = self.calls == self.at
        if now and self.before is not None:
            self.before()
        result = self.real(*args, **options)
        if now and self.after is not None:
            self.after()
        if now and self.fail is not None:
            raise self.fail
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return lambda *args, **options: self(instance, *args, **options)
