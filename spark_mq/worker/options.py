"""Validate the options of a worker for plain Python, and run it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.handler import HandlerPolicy
from spark_mq.ledger.acquire import Acquire
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.work_report import WorkSummary
from spark_mq.util.clock import SECOND, Duration
from spark_mq.util.user import worker_name
from spark_mq.util.validation import (
    validate_callable,
    validate_choice,
    validate_count,
    validate_duration,
)
from spark_mq.worker.feed import GroupFeed
from spark_mq.worker.pools import CoroutinePool, Pool, ThreadPool, is_async
from spark_mq.worker.run import WorkerRun
from spark_mq.worker.state import WorkState
from spark_mq.worker.tasks import LeaseTasks, MessageTasks, TaskOptions

__all__ = ["WorkOptions", "run_worker"]

MODES: Final = ("batch", "message")
UNTIL: Final = ("empty", "settled")
DEFAULT_MAX_MESSAGES: Final = 1_000  # held with mode="message"
DEFAULT_CONCURRENCY: Final = 100
DEFAULT_SETTLE_LINGER: Final = 0.1  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """The options of :meth:`spark_mq.ConsumerGroup.work`, not validated yet."""

    mode: str = "batch"
    worker_id: str | None = None
    threads: int = 1
    concurrency: int | None = None
    max_messages: int | None = None
    visibility_timeout: Duration | None = None
    max_lease_duration: Duration = "30m"
    on_error: str = "nack"
    ack: str = "on_success"
    shutdown_timeout: Duration = "30s"
    stop: threading.Event | None = None
    poll_interval: Duration = "500ms"
    settle_linger: Duration | None = None
    until: str | None = None
    fail_on_data_loss: bool = True

    def lease_command(self, most: int) -> Acquire:
        """Return the options of a lease. ``most`` is the default of ``max_messages``."""
        timeout = None
        if self.visibility_timeout is not None:
            timeout = validate_duration("visibility_timeout", self.visibility_timeout)
        name = worker_name(self.worker_id)
        messages = validate_count(
            "max_messages", most if self.max_messages is None else self.max_messages
        )
        return Acquire(name, messages, timeout, self.fail_on_data_loss, max_timeout=self.limit())

    def limit(self) -> int:
        """Return the longest duration of a lease in microseconds."""
        return validate_duration("max_lease_duration", self.max_lease_duration)

    def task_options(self, batches: bool) -> TaskOptions:
        if batches:
            linger = 0.0
        elif self.settle_linger is None:
            linger = DEFAULT_SETTLE_LINGER
        else:
            linger = self.seconds("settle_linger", zero=True)
        return TaskOptions(
            self.lease_command(1 if batches else DEFAULT_MAX_MESSAGES),
            HandlerPolicy.validated(self.on_error, self.ack),
            self.limit(),
            self.seconds("poll_interval"),
            linger,
            self._end(),
        )

    def _end(self) -> str | None:
        return None if self.until is None else validate_choice("until", self.until, UNTIL)

    def seconds(self, option: str, *, zero: bool = False) -> float:
        return validate_duration(option, getattr(self, option), zero=zero) / SECOND


Served = Sequence[tuple[GroupLedger, Callable[[Any], Any]]]


def run_worker(served: Served, options: WorkOptions) -> WorkSummary:
    """Validate the options, and work until the end."""
    batches = validate_choice("mode", options.mode, MODES) == "batch"
    for _, handler in served:
        validate_callable("handler", handler, "lease" if batches else "message")
    if batches:
        _refuse_message_options(served, options)
    elif options.ack == "manual":
        raise InvalidOption(
            "ack='manual' needs mode='batch': a handler of single messages decides by what it "
            "returns or raises. Use ack='on_success' or ack='on_receive'.",
            option="ack",
            value="manual",
        )
    make = LeaseTasks if batches else MessageTasks
    rules = options.task_options(batches)
    shutdown_timeout = options.seconds("shutdown_timeout", zero=True)
    state = WorkState(options.stop or threading.Event())
    pool = _pool([handler for _, handler in served], options, state)
    feeds = [
        GroupFeed(ledger, make(ledger, handler, rules, pool), rules, pool, state)
        for ledger, handler in served
    ]
    return WorkerRun(feeds, pool, state, rules.poll).run(shutdown_timeout)


def _refuse_message_options(served: Served, options: WorkOptions) -> None:
    for option, given in (
        ("more_groups", len(served) > 1),
        ("concurrency", options.concurrency is not None),
        ("settle_linger", options.settle_linger is not None),
        ("an async handler", is_async(served[0][1])),
    ):
        if given:
            raise InvalidOption(
                f"{option} needs mode='message': a handler of leases is called in threads, for one "
                "group. Use mode='message', or call work for each group in a thread of its own.",
                option=option.split()[-1],
                value=None,
            )


def _pool(handlers: Sequence[Callable[[Any], Any]], options: WorkOptions, state: WorkState) -> Pool:
    kinds = {is_async(handler) for handler in handlers}
    if len(kinds) > 1:
        raise InvalidOption(
            "some handlers are async and some are not: call work once for each kind",
            option="handler",
            value=None,
        )
    threads = validate_count("threads", options.threads, most=1_000)
    if kinds == {False}:
        if options.concurrency is not None:
            raise InvalidOption(
                f"concurrency={options.concurrency!r} is for async handlers: give threads, or "
                "declare the handler with async def",
                option="concurrency",
                value=options.concurrency,
            )
        return ThreadPool(threads, state.stop, state.fail)
    if threads != 1:
        raise InvalidOption(
            f"threads={threads} is not for async handlers: give concurrency",
            option="threads",
            value=threads,
        )
    given = DEFAULT_CONCURRENCY if options.concurrency is None else options.concurrency
    return CoroutinePool(validate_count("concurrency", given, most=100_000), state.fail)
