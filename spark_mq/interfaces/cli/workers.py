"""Run sweeps and workers with ``sweep`` and ``work``, and list workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from spark_mq.errors import SparkMQError
from spark_mq.group import ConsumerGroup
from spark_mq.interfaces.cli.command import (
    GROUP,
    Invocation,
    argument,
    command,
    option,
    stopping,
)
from spark_mq.interfaces.cli.output import FAILED, Column, Pages, Rows
from spark_mq.interfaces.cli.progress import track
from spark_mq.queue import Queue
from spark_mq.util.clock import SECOND
from spark_mq.util.loading import load_handler
from spark_mq.util.validation import validate_duration
from spark_mq.worker.state import WorkSummary

__all__ = ["Concurrency", "tracking_settled", "worker_cells", "worker_rows"]

Concurrency = Annotated[
    int | None,
    option("Calls of an async function at a time, with --mode message. Default: 100.", min=1),
]

_WORKER_COLUMNS: Final[list[Column]] = [
    ("WORKER", "worker_id"), ("GROUP", "group"), ("STATE", "state"), ("LEASES", "leases"),
    ("MESSAGES", "messages"), ("OLDEST", "oldest_lease_age"), ("SEEN", "seen_age"),
    ("PROCESSES", "processes"), ("HOST", "host"), ("PROCESS", "process_id"),
    ("VERSION", "version"), ("SETTLED", "settled"),
]  # fmt: skip


@command("sweep")
def sweep(
    ctx: Invocation,
    every: Annotated[
        str | None, option("Repeat with this pause, such as 60s.", metavar="DURATION")
    ] = None,
) -> Pages:
    """Run the chores that keep the queue small.

    They run once, or --every so often until SIGTERM.
    """
    pause = None if every is None else validate_duration("--every", every) / SECOND
    return Pages(
        _reports(ctx.queue, pause), lambda report: [report if every is None else _in_a_line(report)]
    )


def _reports(queue: Queue, pause: float | None) -> Iterator[Mapping[str, Any]]:
    """Sweep and yield the report, once or with a pause until a signal."""
    with stopping() as stop:
        while True:
            with track("sweeping"):
                report = asdict(queue.sweep())
            yield report
            if pause is None or stop.wait(pause):
                return


def _in_a_line(report: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={count}" for name, count in report.items())


@command("work", GROUP)
def work(
    ctx: Invocation,
    handler: Annotated[
        str,
        argument(
            "The function, called with a lease or message. Or path/to/file.py:function.",
            metavar="MODULE:FUNCTION",
            envvar="SPARK_MQ_HANDLER",
        ),
    ],
    mode: Annotated[
        str,
        option("batch: call it with each lease. message: each message.", envvar="SPARK_MQ_MODE"),
    ] = "batch",
    max_messages: Annotated[
        int | None,
        option(
            "The most messages in a lease. Default: 1. With --mode message the most that the "
            "worker holds. Default: 1,000.",
            min=1,
        ),
    ] = None,
    threads: Annotated[int, option("Threads that call it.", min=1, envvar="SPARK_MQ_THREADS")] = 1,
    concurrency: Concurrency = None,
    worker_id: Annotated[
        str | None,
        option("A label for people. Default: host and process.", envvar="SPARK_MQ_WORKER_ID"),
    ] = None,
    visibility_timeout: Annotated[
        str | None, option("How long a lease lasts without an extension. Default: the group's.")
    ] = None,
    max_lease_duration: Annotated[
        str, option("A lease ends after this time, and later verdicts of its handler are refused.")
    ] = "30m",
    timeout: Annotated[
        str | None, option("How long one call may take. Its messages fail then. Default: no limit.")
    ] = None,
    on_error: Annotated[str, option("nack, reject, ack or raise.")] = "nack",
    ack: Annotated[str, option("on_success, on_receive or manual.")] = "on_success",
    shutdown_timeout: Annotated[
        str, option("How long running calls have after SIGTERM or Ctrl-C.")
    ] = "30s",
    until: Annotated[
        str | None, option("empty: nothing is due. settled: no message is left.")
    ] = None,
    heartbeat: Annotated[
        str | None,
        option(
            "How often to write the file that shows the worker while it is idle: 30s to 1h, or "
            "off. Default: 30s, and off in an object store."
        ),
    ] = None,
    create_group: Annotated[
        bool,
        option(
            "Create the group if it is missing, which is otherwise an error.",
            "--create-group/--no-create-group",
        ),
    ] = True,
) -> WorkSummary:
    """Run a worker in plain Python until SIGTERM or Ctrl-C.

    It leases messages, calls the function with them, and settles them.
    """
    function = load_handler(handler, f"the handler {handler} cannot be used")
    group = ctx.queue.group(str(ctx.group_name), create=create_group)
    with tracking_settled(ctx.queue, group, until):
        summary = group.work(
            function,
            mode=mode,
            concurrency=concurrency,
            worker_id=worker_id,
            threads=threads,
            max_messages=max_messages,
            visibility_timeout=visibility_timeout,
            max_lease_duration=max_lease_duration,
            timeout=timeout,
            on_error=on_error,
            ack=ack,
            shutdown_timeout=shutdown_timeout,
            until=until,
            heartbeat=heartbeat,
        )
    if summary.blocked_because:  # a warning in the log names the group and the counts
        ctx.exit_code = FAILED
    return summary


def worker_rows(groups: Iterable[ConsumerGroup]) -> Rows:
    """Return the workers of groups, also those that are idle."""
    found = ((group.name, worker) for group in groups for worker in group.workers())
    rows = [{"group": name, **asdict(worker)} for name, worker in found]
    return Rows(rows, _WORKER_COLUMNS, worker_cells)


def worker_cells(worker: Mapping[str, Any]) -> dict[str, Any]:
    """Return a worker with the age of its oldest lease, and the time since it was seen."""
    now = datetime.now(UTC)
    times = {"oldest_lease_age": worker["since"], "seen_age": worker["seen_at"]}
    ages = {name: at and max(timedelta(), now - at) for name, at in times.items()}
    return {**worker, **ages}


@contextmanager
def tracking_settled(
    queue: Queue,
    group: ConsumerGroup,
    until: str | None,
    **options: Any,
) -> Iterator[object]:
    """Show the progress of a worker that ends: what all workers of the group have settled."""
    if until is None:
        yield None
        return

    def left() -> int | None:
        with suppress(SparkMQError):
            stats = group.stats()
            return stats.ready + stats.leased + (0 if until == "empty" else stats.delayed)
        return None

    due = left() if group.exists() else queue.describe().retained
    with track("settled", due, left=left, **options) as shown:
        yield shown
