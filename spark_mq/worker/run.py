"""Validate the options of a worker for plain Python, and run it."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.handler import HandlerPolicy
from spark_mq.ledger.acquire import Acquire
from spark_mq.message import Format, check_format
from spark_mq.operations.acquire import LOCAL_POLL
from spark_mq.operations.context import GroupLedger
from spark_mq.util.clock import SECOND, Duration
from spark_mq.util.show import show_count, show_some
from spark_mq.util.signals import taking_signals
from spark_mq.util.user import identify_worker, worker_name
from spark_mq.util.validation import (
    validate_callable,
    validate_choice,
    validate_count,
    validate_duration,
)
from spark_mq.worker.feed import GroupFeed
from spark_mq.worker.pools import (
    CoroutinePool,
    Pool,
    ThreadPool,
    decoding_leases,
    decoding_messages,
    is_async,
)
from spark_mq.worker.state import WorkState, WorkSummary, why_left
from spark_mq.worker.tasks import LeaseTasks, MessageTasks, TaskOptions
from spark_mq.worker.upkeep import heartbeats, sweeping

_log = logging.getLogger("spark_mq.worker")

_GIVE_BACK_SECONDS: Final = 10.0  # for the feeds to give back their messages after a second Ctrl-C
_SHOWN: Final = 5  # handlers that a text names
MODES: Final = ("batch", "message")
UNTIL: Final = ("empty", "settled")
DEFAULT_MAX_MESSAGES: Final = 1_000  # held with mode="message"
DEFAULT_CONCURRENCY: Final = 100
DEFAULT_SETTLE_LINGER: Final = 0.1  # seconds


class ThreadWatch:
    """Runs functions in threads, and waits for their end, a signal or the event `stop`.

    SIGTERM and the first Ctrl-C set the event. A second Ctrl-C ends the wait for the threads. From
    the third on, Ctrl-C raises KeyboardInterrupt immediately. `on_interrupt` is called once, in the
    waiting thread, after the first Ctrl-C.
    """

    def __init__(
        self,
        calls: Sequence[Callable[[], None]],
        stop: threading.Event,
        poll: float,
        on_interrupt: Callable[[], None],
    ) -> None:
        self._threads = [
            threading.Thread(target=self._call, args=(call,), name="spark_mq feed", daemon=True)
            for call in calls
        ]
        self._stop, self._poll, self._on_interrupt = stop, poll, on_interrupt
        # Signal numbers, and 0 if a thread has ended.
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._ended = list[Callable[[], None]]()
        self._interrupts = 0
        self._signalled = self._reported = False

    @property
    def signalled(self) -> bool:
        """Return whether a signal has set the event."""
        return self._signalled

    @property
    def interrupted(self) -> bool:
        """Return whether Ctrl-C was pressed."""
        return self._interrupts > 0

    @property
    def hurried(self) -> bool:
        """Return whether Ctrl-C was pressed twice, so that the work must end without a delay."""
        return self._interrupts > 1

    def run(self, finish: Callable[[], None]) -> None:
        """Start the threads, wait until the work has to end, and call `finish`."""
        with self.signals():
            for thread in self._threads:
                thread.start()
            try:
                self._wait_for_stop()
            finally:
                finish()

    def join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)

    def raise_end(self, error: BaseException | None, summary: WorkSummary) -> None:
        """Raise KeyboardInterrupt after Ctrl-C, or else a thread's error, if there is one."""
        if self.interrupted:
            raise KeyboardInterrupt(summary) from error
        if error is not None:
            raise error

    def signals(self) -> contextlib.AbstractContextManager[None]:
        """Obey SIGTERM and Ctrl-C in the block, which only the main thread can do."""
        return taking_signals(self._on_signal, signal.SIGINT, signal.SIGTERM)

    def _call(self, call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            self._ended.append(call)
            self._signals.put(0)

    def _wait_for_stop(self) -> None:
        """Wait for the event, a signal, or the end of all threads."""
        while self._alive() and not self._stop.is_set():
            self._take_signal(self._poll)

    def wait_for_end(self, seconds: float) -> None:
        """Wait some seconds for the end of all threads, or until a second Ctrl-C."""
        deadline = time.monotonic() + seconds
        while self._alive() and not self.hurried:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._take_signal(min(left, self._poll))

    def _alive(self) -> bool:
        return len(self._ended) < len(self._threads)

    def _take_signal(self, seconds: float) -> None:
        number = 0
        with contextlib.suppress(Empty):
            number = self._signals.get(timeout=seconds)
        if number:
            self._signalled = True
            self._stop.set()
        if number == signal.SIGINT and not self._reported:
            self._reported = True
            self._on_interrupt()

    def _on_signal(self, number: int) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 2:
            raise KeyboardInterrupt
        self._signals.put(number)


def describe_wait(running: Sequence[tuple[str, float]], seconds: float) -> str:
    """Return what a worker waits for after Ctrl-C, by each handler's work and monotonic start."""
    now = time.monotonic()
    shown = [f"{work} (running for {now - since:.1f} s)" for work, since in running]
    handlers = show_count(len(running), "handler")
    return (
        f"Ctrl-C: waiting up to {seconds:g} s for {handlers}: {show_some(shown, _SHOWN)}. "
        "Press Ctrl-C again to end at once and give their messages back"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """The options of :meth:`spark_mq.ConsumerGroup.work`, not validated yet."""

    mode: str
    threads: int
    concurrency: int | None
    max_messages: int | None
    timeout: Duration | None
    on_error: str
    stop: threading.Event | None
    format: Format | None
    # What a shadow replay leaves out.
    worker_id: str | None = None
    visibility_timeout: Duration | None = None
    max_lease_duration: Duration = "30m"
    ack: str = "on_success"
    shutdown_timeout: Duration = 0
    poll_interval: Duration | None = None
    settle_linger: Duration | None = None
    until: str | None = None
    fail_on_data_loss: bool = False
    heartbeat: Duration | None = None
    sweep: Duration | None = None

    def task_options(self, batches: bool) -> TaskOptions:
        """Validate what a feed needs."""
        limit = validate_duration("max_lease_duration", self.max_lease_duration)
        timeout, messages, linger = None, self.max_messages, 0.0
        if self.visibility_timeout is not None:
            timeout = validate_duration("visibility_timeout", self.visibility_timeout)
        if messages is None:
            messages = 1 if batches else DEFAULT_MAX_MESSAGES
        if self.settle_linger is not None:
            linger = self.seconds("settle_linger", zero=True)
        elif not batches:
            linger = DEFAULT_SETTLE_LINGER
        lease = Acquire(
            identify_worker(worker_name(self.worker_id)),
            validate_count("max_messages", messages, text=False),
            timeout,
            self.fail_on_data_loss,
            max_timeout=limit,
        )
        policy = HandlerPolicy.validated(self.on_error, self.ack)
        until = None if self.until is None else validate_choice("until", self.until, UNTIL)
        poll = None if self.poll_interval is None else self.seconds("poll_interval")
        return TaskOptions(lease, policy, limit, poll, linger, until, self._time_limit(limit))

    def _time_limit(self, lease_limit: int) -> float | None:
        """Return the seconds that a call of a handler may take, or None."""
        if self.timeout is None:
            return None
        microseconds = validate_duration("timeout", self.timeout)
        if microseconds >= lease_limit:
            raise InvalidOption(
                f"timeout={self.timeout!r} is not below max_lease_duration="
                f"{self.max_lease_duration!r}, which would end the lease first. Use a shorter "
                "timeout, or a longer max_lease_duration",
                option="timeout",
                value=self.timeout,
            )
        return microseconds / SECOND

    def seconds(self, option: str, *, zero: bool = False) -> float:
        return validate_duration(option, getattr(self, option), zero=zero) / SECOND


Served = Sequence[tuple[GroupLedger, Callable[[Any], Any]]]


def run_worker(served: Served, options: WorkOptions) -> WorkSummary:
    """Validate the options, and work until the end."""
    batches = check_handlers(served, options)
    if not batches:
        _refuse_sinks(served)
    if not batches and options.ack == "manual":
        raise InvalidOption(
            "ack='manual' needs mode='batch': a handler of single messages decides by what it "
            "returns or raises. Use ack='on_success' or ack='on_receive'.",
            option="ack",
            value="manual",
        )
    kind = LeaseTasks if batches else MessageTasks
    rules = options.task_options(batches)
    shutdown_timeout = options.seconds("shutdown_timeout", zero=True)
    state = WorkState(options.stop)
    served = decoding(served, options, batches)
    pool = make_pool([handler for _, handler in served], options, state)
    feeds = [
        GroupFeed(ledger, kind(handler, rules), rules, pool, state) for ledger, handler in served
    ]
    queues = [ledger.queue for ledger, _ in served]
    with heartbeats(feeds, state, options.heartbeat), sweeping(queues, options.sweep, state):
        return _run(feeds, pool, state, shutdown_timeout, options.stop)


def check_handlers(served: Served, options: WorkOptions) -> bool:
    """Return whether handlers take batches. Raise InvalidOption if they do not fit the options."""
    batches = validate_choice("mode", options.mode, MODES) == "batch"
    for _, handler in served:
        validate_callable("handler", handler, "lease" if batches else "message")
    if batches:
        _refuse_message_options(served, options)
    return batches


def _refuse_sinks(served: Served) -> None:
    """Raise InvalidOption for a group whose sink a handler of single messages cannot write to."""
    for ledger, _ in served:
        if (sink := ledger.settings().sink) is not None:
            raise InvalidOption(
                f"group {ledger.name!r} has the sink {sink}, and mode='message' has no "
                "lease.append. Use mode='batch', or group.configure(sink=None)",
                option="mode",
                value="message",
            )


def _run(
    feeds: Sequence[GroupFeed],
    pool: Pool,
    state: WorkState,
    grace: float,
    given: threading.Event | None,
) -> WorkSummary:
    """Work until the end, and then give running handlers `grace` seconds."""

    def report_wait() -> None:
        if running := [task for feed in feeds for task in feed.running()]:
            _log.warning("%s", describe_wait(running, grace))

    def finish() -> None:
        if watch.signalled and given is not None:
            given.set()  # the signal is for the whole program, so for all workers of the event
        state.end()
        watch.wait_for_end(grace)
        state.hurried = watch.hurried
        state.over.set()
        state.end()
        watch.join(_GIVE_BACK_SECONDS if watch.hurried else 1.0)
        pool.stop()

    watch = ThreadWatch([feed.run for feed in feeds], state.stop, LOCAL_POLL, report_wait)
    pool.start()
    watch.run(finish)
    watch.raise_end(state.error, state.summary)
    if state.finished:
        state.summary.blocked_because = why_left([feed.ledger for feed in feeds])
    return state.summary


def decoding(served: Served, options: WorkOptions, batches: bool) -> Served:
    """Return the groups with handlers that get decoded messages, if there is a format."""
    if options.format is None:
        return served
    format = check_format(options.format)
    if options.ack == "on_receive":
        raise InvalidOption(
            "format cannot be used with ack='on_receive', which acks invalid payloads first. Use "
            "ack='on_success', or message.decode(format) in the handler",
            option="format",
            value="on_receive",
        )
    if batches:
        return [(ledger, decoding_leases(handler, format)) for ledger, handler in served]
    return [(ledger, decoding_messages(handler, format)) for ledger, handler in served]


def _refuse_message_options(served: Served, options: WorkOptions) -> None:
    others, handler = [ledger.name for ledger, _ in served[1:]], served[0][1]
    for option, value in (
        ("more_groups", others or None),
        ("concurrency", options.concurrency),
        ("settle_linger", options.settle_linger),
        ("an async handler", handler if is_async(handler) else None),
    ):
        if value is not None:
            raise InvalidOption(
                f"{option} needs mode='message': a handler of leases is called in threads, for one "
                "group. Use mode='message', or call work for each group in a thread of its own.",
                option=option.split()[-1],
                value=value,
            )


def make_pool(
    handlers: Sequence[Callable[[Any], Any]], options: WorkOptions, state: WorkState
) -> Pool:
    """Return the pool that calls the handlers. Raise InvalidOption."""
    kinds = {is_async(handler) for handler in handlers}
    if len(kinds) > 1:
        raise InvalidOption(
            "some handlers are async and some are not: call work once for each kind",
            option="handler",
            value=list(handlers),
        )
    threads = validate_count("threads", options.threads, most=1_000, text=False)
    if kinds == {False}:
        if options.concurrency is not None:
            raise InvalidOption(
                f"concurrency={options.concurrency!r} is for async handlers: give threads, or "
                "declare the handler with async def",
                option="concurrency",
                value=options.concurrency,
            )
        return ThreadPool(threads, state.pause, state.fail)
    if threads != 1:
        raise InvalidOption(
            f"threads={threads} is not for async handlers: give concurrency",
            option="threads",
            value=threads,
        )
    given = DEFAULT_CONCURRENCY if options.concurrency is None else options.concurrency
    return CoroutinePool(validate_count("concurrency", given, most=100_000, text=False), state.fail)
