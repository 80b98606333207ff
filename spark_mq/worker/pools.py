"""Call handlers in threads or as coroutines, with payloads that a format has decoded."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from queue import SimpleQueue
from typing import Any, Final

from spark_mq.errors import InvalidPayload
from spark_mq.message import Format, ReceivedMessage
from spark_mq.util.failures import describe_error, safe_text
from spark_mq.util.show import show_count
from spark_mq.worker.decisions import Reject
from spark_mq.worker.tasks import Task, WorkerLease

_log = logging.getLogger("spark_mq.worker")

Handler = Callable[[Any], Any]

_CANCEL_SECONDS: Final = 5.0  # for coroutines to end after they were cancelled


class Pool(ABC):
    """A caller of handlers, `concurrency` at a time."""

    def __init__(self, concurrency: int) -> None:
        self._all = concurrency
        self._given_up: set[Task] = set()  # their handlers still run

    @property
    def concurrency(self) -> int:
        """Return how many handlers run at a time, besides those given up."""
        return self._all - len(self._given_up)

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Add a task. Thread-safe."""

    def give_up(self, task: Task) -> None:
        """Cancel a running coroutine. A thread goes on, and is missing meanwhile."""
        self._given_up.add(task)

    @abstractmethod
    def stop(self) -> None:
        """Take no more tasks. Coroutines are cancelled, and threads end after their handler."""


class ThreadPool(Pool):
    """Calls handlers in threads, which pause by `pause`. `fail` gets what ends one."""

    def __init__(
        self,
        concurrency: int,
        pause: Callable[[float], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(concurrency)
        self._pause, self._fail = pause, fail
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()

    def start(self) -> None:
        for n in range(self._all):
            threading.Thread(target=self._serve, name=f"spark_mq handler {n}", daemon=True).start()

    def submit(self, task: Task) -> None:
        self._tasks.put(task)

    def stop(self) -> None:
        for _ in range(self._all):
            self._tasks.put(None)

    def _serve(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._fail(error)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not task.claim():
                continue
            pause = task.run()
            self._given_up.discard(task)
            if pause:
                self._pause(pause)


class CoroutinePool(Pool):
    """Calls ``async def`` handlers in one event loop, in another thread. See `ThreadPool`."""

    def __init__(self, concurrency: int, fail: Callable[[BaseException], None]) -> None:
        super().__init__(concurrency)
        self._fail = fail
        self._loop = asyncio.new_event_loop()
        self._tasks: asyncio.Queue[Task] = asyncio.Queue()
        self._running: dict[Task, asyncio.Task[Any]] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="spark_mq handlers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, task: Task) -> None:
        self._call(self._tasks.put_nowait, task)

    def give_up(self, task: Task) -> None:
        super().give_up(task)
        self._call(self._cancel_one, task)

    def stop(self) -> None:
        self._stopped = True
        self._call(self._cancel)
        self._thread.join(_CANCEL_SECONDS)

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _cancel_one(self, task: Task) -> None:
        if (runner := self._running.get(task)) is not None:
            runner.cancel()

    def _cancel(self) -> None:
        for running in asyncio.all_tasks(self._loop):
            running.cancel()

    def _serve(self) -> None:
        work = self._loop.create_task(self._run_all())
        while not work.done():
            self._run_until(work)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _run_until(self, work: asyncio.Task[Any]) -> None:
        try:
            self._loop.run_until_complete(work)
        except asyncio.CancelledError:
            pass
        except SystemExit as error:
            # asyncio raises it here as well as at the await of the task that a handler has started.
            _log.warning("a task or callback of a handler raised %s", describe_error(error))
        except BaseException as error:
            self._fail(error)

    async def _run_all(self) -> None:
        await asyncio.gather(*(self._serve_one() for _ in range(self._all)))

    async def _serve_one(self) -> None:
        try:
            await self._run()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)

    async def _run(self) -> None:
        runner = asyncio.current_task()
        assert runner is not None
        while not self._stopped:
            task = await self._tasks.get()
            if not task.claim():
                continue
            self._running[task] = runner
            try:
                result = await task.call()
            except BaseException as error:
                # Cancelled by a task inside the handler, or after its lease has ended, the runner
                # continues.
                if self._stopped and isinstance(error, asyncio.CancelledError):
                    raise
                pause = task.finish(error=error)
            else:
                pause = task.finish(result)
            del self._running[task]
            self._given_up.discard(task)
            while runner.cancelling():
                runner.uncancel()  # or a timeout of the next handler would not end it
            if pause:
                await asyncio.sleep(pause)


def is_async(handler: Any) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004 - an object may define it as async
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def decoding_messages(handler: Handler, format: Format) -> Handler:
    """Return a handler of single messages that get their ``data``."""
    if is_async(handler):

        @wraps(handler)
        async def call_async(message: ReceivedMessage) -> Any:
            # In a thread, because a format may ask a registry, and the other coroutines go on.
            return await handler(await asyncio.to_thread(_decoded, message, format))

        return call_async

    @wraps(handler)
    def call(message: ReceivedMessage) -> Any:
        return handler(_decoded(message, format))

    return call


def _decoded(message: ReceivedMessage, format: Format) -> ReceivedMessage:
    try:
        return replace(message, data=format.decode(message.value))
    except InvalidPayload as error:
        raise Reject(safe_text(error)) from None


def decoding_leases(handler: Handler, format: Format) -> Handler:
    """Return a handler of leases whose messages have their ``data``. The others are rejected."""

    @wraps(handler)
    def call(lease: WorkerLease) -> Any:
        good, reasons = list[ReceivedMessage](), dict[str, list[int]]()
        for message in lease.messages:
            try:
                good.append(replace(message, data=format.decode(message.value)))
            except InvalidPayload as error:
                reasons.setdefault(safe_text(error), []).append(message.sequence)
        lease.keep(good, reasons)
        if reasons:
            text = "group %s: rejects what cannot be decoded, %s, such as: %s (lease %s)"
            shown = show_count(sum(map(len, reasons.values())), "message")
            why = next(iter(reasons))
            _log.warning(text, lease.group.name, shown, why, lease.lease_id)
        return handler(lease) if good else None

    return call
