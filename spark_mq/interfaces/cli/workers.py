"""Run sweeps and handlers with ``sweep``, ``work`` and ``replay``, and list workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from spark_mq.errors import SparkMQError
from spark_mq.group import ConsumerGroup
from spark_mq.interfaces.cli.command import (
    GROUP,
    Invocation,
    argument,
    check_sql,
    command,
    load_format,
    option,
    options_of,
    stopping,
)
from spark_mq.interfaces.cli.output import (
    FAILED,
    FailureLines,
    Left,
    Pages,
    Rows,
    WrongCall,
    columns,
    complain,
    note,
    track,
)
from spark_mq.queue import Queue
from spark_mq.util.clock import SECOND
from spark_mq.util.loading import load_handler
from spark_mq.util.progress import listening
from spark_mq.util.show import show_count
from spark_mq.util.validation import validate_duration
from spark_mq.worker.replay_report import ReplayReport
from spark_mq.worker.state import WorkSummary

_WORKER_COLUMNS: Final = columns(
    "worker_id group state leases messages oldest_lease_age seen_age processes host process_id "
    "version settled"
)


@command("sweep")
def sweep(
    ctx: Invocation,
    every: str | None = option("Repeat with this pause, such as 60s.", metavar="DURATION"),
) -> Pages:
    """Run the chores that keep the queue small.

    They run once, or --every so often until SIGTERM.
    """
    pause = None if every is None else validate_duration("--every", every) / SECOND
    return Pages(
        _reports(ctx.queue, pause), lambda report: [report if every is None else _in_a_line(report)]
    )


def _reports(queue: Queue, pause: float | None) -> Iterator[Mapping[str, Any]]:
    with stopping() as stop:
        while True:
            with track("sweeping"):
                report = asdict(queue.sweep())
            yield report
            if pause is None or stop.wait(pause):
                return


def _in_a_line(report: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={count}" for name, count in report.items())


_SHARED: Final = {
    "concurrency": option(
        "Calls of an async function at a time, not with --mode batch. Default: 100.", min=1
    ),
    "timeout": option("How long one call may take. Its messages fail then. Default: no limit."),
}
_WORK: Final = options_of(
    ConsumerGroup.work,
    mode=option("message: call it with each message. batch: each lease.", envvar="SPARK_MQ_MODE"),
    format=option(
        "What decodes the values into message.data: MODULE:NAME of a format.", metavar="FORMAT"
    ),
    max_messages=option(
        "The most messages that the worker holds. Default: 1,000. With --mode batch the most "
        "in a lease. Default: 1.",
        min=1,
    ),
    threads=option("Threads that call it.", min=1, envvar="SPARK_MQ_THREADS"),
    **_SHARED,
    worker_id=option("A label for people. Default: host and process.", envvar="SPARK_MQ_WORKER_ID"),
    visibility_timeout=option("How long a lease lasts without an extension. Default: the group's."),
    max_lease_duration=option(
        "A lease ends after this time, and later verdicts of its handler are refused."
    ),
    on_error=option("nack, reject, ack or raise."),
    ack=option("on_success, on_receive or manual."),
    shutdown_timeout=option("How long running calls have after SIGTERM or Ctrl-C."),
    until=option("empty: nothing is due. settled: no message is left."),
    heartbeat=option(
        "How often to write the file that shows the worker while it is idle: 30s to 1h, or "
        "off. Default: 30s, and off in an object store."
    ),
    sweep=option(
        "Also sweep the queue so often, 1s to 1h. Of all workers one at a time does. Default: "
        "another process sweeps."
    ),
)


@command("work", GROUP, passes=_WORK)
def work(
    ctx: Invocation,
    handler: str = argument(
        "The function, called with a message or lease. Or path/to/file.py:function.",
        metavar="MODULE:FUNCTION",
        envvar="SPARK_MQ_HANDLER",
    ),
    create_group: bool = option(
        "Create the group if it is missing, which is otherwise an error.",
        "--create-group/--no-create-group",
        default=True,
    ),
    **options: Any,
) -> WorkSummary:
    """Run a worker in plain Python until SIGTERM or Ctrl-C.

    It leases messages, calls the function with them, and settles them.
    """
    function = load_handler(handler, f"the handler {handler} cannot be used")
    options["format"] = load_format(options["format"])
    group = ctx.queue.group(str(ctx.group_name), create=create_group)
    try:
        with tracking_settled(ctx.queue, group, options["until"]):
            summary = group.work(function, **options)
    except KeyboardInterrupt as interrupt:
        for summary in interrupt.args:
            counts = {name: n for name, n in asdict(summary).items() if name != "blocked_because"}
            note(f"interrupted: {_in_a_line(counts)}")
            _explain_failures(summary)
        raise
    _explain_failures(summary)
    if summary.blocked_because:  # a warning in the log names the group and the counts
        ctx.exit_code = FAILED
    return summary


def _explain_failures(summary: WorkSummary) -> None:
    if summary.failed and not logging.getLogger("spark_mq").isEnabledFor(logging.INFO):
        note(
            "the function failed: spark-mq --verbose work shows a traceback for each kind of error"
        )


def worker_rows(groups: Iterable[ConsumerGroup]) -> Rows:
    """Return the workers of groups, also those that are idle."""
    workers = ((group.name, worker) for group in groups for worker in group.workers())
    rows = [{"group": name, **asdict(worker)} for name, worker in workers]
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
    """Print the failures of a worker, and its progress if it ends: what all workers settled."""
    if until is None:
        with listening(FailureLines()):
            yield None
        return

    def left() -> Left | None:
        with suppress(SparkMQError, OSError):
            stats = group.stats()
            return Left(stats.ready + stats.leased, 0 if until == "empty" else stats.delayed)
        return None

    due = sum(left() or ()) if group.exists() else queue.describe().retained
    with track("settled", due, left=left, **options) as shown:
        yield shown


_REPLAY: Final = options_of(
    Queue.replay,
    since=option("Only messages settled from then on: -1d, 12h or an instant.", metavar="TIME"),
    until=option("Only messages settled before then.", metavar="TIME"),
    where=option("SQL over the columns, such as \"outcome = 'acked'\"."),
    limit=option("The most messages, the newest.", "-n", min=1),
    mode=option("message: call it with each message. batch: each batch."),
    max_messages=option("The most messages in a batch, with --mode batch. Default: 1.", min=1),
    threads=option("Threads that call it.", min=1),
    **_SHARED,
    on_error=option("nack, reject or ack."),
)


@command("replay", GROUP, passes=_REPLAY)
def replay(
    ctx: Invocation,
    handler: str = argument(
        "The function, called with a message or batch. Or path/to/file.py:function.",
        metavar="MODULE:FUNCTION",
    ),
    fail_if_worse: bool = option(
        "Exit with 1 if a message was acked then, and fails or is rejected now.", default=False
    ),
    min_messages: int = option("Exit with 1 if fewer messages were replayed.", min=0, default=0),
    rows: Path | None = option(
        "Write a row for each message to this Parquet file.", metavar="FILE", dir_okay=False
    ),
    **options: Any,
) -> Pages:
    """Run a function over messages that a group has settled, and compare outcomes.

    It settles nothing. The function's own effects do happen. It exits with 0, or with 1 if
    --fail-if-worse finds a worse outcome, if fewer than --min-messages were replayed, or if all
    calls hang.
    """
    _check_folder(rows)
    check_sql("--where", options["where"])
    function = load_handler(handler, f"the handler {handler} cannot be used")
    with track("replayed"):
        report = ctx.queue.replay(function, str(ctx.group_name), **options)
    if rows is not None:
        _write(report, rows)
    if report.summary.stopped_because:
        complain(f"the replay ended early: {report.summary.stopped_because}")
        ctx.exit_code = FAILED
    if report.summary.replayed < min_messages:
        complain(
            f"{show_count(report.summary.replayed, 'message')} replayed, fewer than --min-messages "
            f"{min_messages}: give an earlier --since, or a --where that selects more"
        )
        ctx.exit_code = FAILED
    if fail_if_worse and report.is_worse:
        ctx.exit_code = FAILED
    return Pages([_plain(report)], lambda _: str(report).splitlines())


def _plain(report: ReplayReport) -> dict[str, Any]:
    errors = [asdict(error) for error in report.errors]
    return {"group": report.group, **asdict(report.summary), "errors": errors}


def _check_folder(rows: Path | None) -> None:
    """Raise WrongCall before the work if its result could not be written."""
    if rows is not None and not rows.absolute().parent.is_dir():
        raise WrongCall(f"--rows {rows} is in no folder: create {rows.parent} first")


def _write(report: ReplayReport, rows: Path) -> None:
    import pyarrow.parquet as pq  # slow to load

    pq.write_table(report.table, rows)
