"""Run sweeps, workers and jobs with ``sweep``, ``work`` and ``jobs``."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_mq.cli.exits import FAILED, NOT_FOUND
from spark_mq.cli.options import (
    Every,
    Group,
    Output,
    OutputFormat,
    QueuePath,
    StorageOptions,
    open_queue,
    option,
)
from spark_mq.cli.output import busy, complain, emit, emit_one, track
from spark_mq.errors import InvalidOption
from spark_mq.group import ConsumerGroup
from spark_mq.lease import Lease
from spark_mq.per_message.pool import is_async
from spark_mq.queue import Queue
from spark_mq.util.clock import SECOND
from spark_mq.util.validation import validate_duration

__all__ = ["load_handler", "register", "stopping"]

_Handler = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FUNCTION",
        envvar="SPARK_MQ_HANDLER",
        help="The function, called with a lease or message. Or path/to/file.py:function.",
    ),
]
_Mode = Annotated[
    str, option("--mode", help="batch: call it with each lease. message: each message.")
]
_MaxMessages = Annotated[
    int | None,
    option("--max-messages", min=1, help="The most messages in a lease. Default: 1, or 1000."),
]
_Concurrency = Annotated[
    int | None, option("--concurrency", min=1, help="Calls of an async function at a time.")
]
_WorkerId = Annotated[
    str | None, option("--worker-id", help="A label for people. Default: host and process.")
]
_VisibilityTimeout = Annotated[
    str | None, option("--visibility-timeout", help="Default: the group's.")
]
_MaxLeaseDuration = Annotated[
    str, option("--max-lease-duration", help="A lease ends after this time.")
]
_ShutdownTimeout = Annotated[
    str, option("--shutdown-timeout", help="How long handlers have at the end.")
]
_Until = Annotated[
    str | None, option("--until", help="empty: nothing is due. settled: no message is left.")
]
_CreateGroup = Annotated[
    bool, option("--create-group/--no-create-group", help="Create the group if it is missing.")
]
_Threads = Annotated[int, option("--threads", min=1, help="Threads that call it.")]
_OnError = Annotated[str, option("--on-error", help="nack, reject, ack or raise.")]
_Ack = Annotated[str, option("--ack", help="after, first or manual.")]


def register(app: typer.Typer) -> None:
    for command in (sweep, work, jobs):
        app.command()(command)


def sweep(
    queue: QueuePath,
    every: Every = None,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Run the chores that keep the queue small.

    They run once, or --every so often until SIGTERM.
    """
    opened = open_queue(queue, storage_option)
    pause = None if every is None else validate_duration("--every", every) / SECOND
    with stopping() as stop:
        while True:
            with busy("sweeping"):
                report = asdict(opened.sweep())
            if pause is None or output is OutputFormat.json:
                emit_one(report, output)
            else:
                print("  ".join(f"{name}={count}" for name, count in report.items()))
            sys.stdout.flush()
            if pause is None or stop.wait(pause):
                return


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set, so that running work can end first."""
    stop = threading.Event()
    before = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, lambda *_: stop.set())
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def work(
    handler: _Handler,
    queue: QueuePath,
    group: Group = "default",
    mode: _Mode = "batch",
    max_messages: _MaxMessages = None,
    threads: _Threads = 1,
    concurrency: _Concurrency = None,
    worker_id: _WorkerId = None,
    visibility_timeout: _VisibilityTimeout = None,
    max_lease_duration: _MaxLeaseDuration = "30m",
    on_error: _OnError = "nack",
    ack: _Ack = "after",
    shutdown_timeout: _ShutdownTimeout = "30s",
    until: _Until = None,
    create_group: _CreateGroup = True,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Run a worker in plain Python until SIGTERM or Ctrl-C.

    It leases messages, calls the function with them, and settles them.
    """
    function = load_handler(handler)
    opened = open_queue(queue, storage_option)
    worked = opened.group(group, create=create_group)
    with _progress(function, until is not None, lambda: _waiting(opened, worked)) as counted:
        summary = worked.work(
            counted,
            mode=mode,
            concurrency=concurrency,
            worker_id=worker_id,
            threads=threads,
            max_messages=max_messages,
            visibility_timeout=visibility_timeout,
            max_lease_duration=max_lease_duration,
            on_error=on_error,
            ack=ack,
            shutdown_timeout=shutdown_timeout,
            until=until,
        )
    emit_one(summary, output)
    if summary.blocked_because:  # a warning in the log names the group and the counts
        raise typer.Exit(FAILED)


def _waiting(queue: Queue, group: ConsumerGroup) -> int:
    """Count the due messages, which are all retained ones if the group is missing."""
    return group.stats().ready if group.exists() else queue.describe().retained


@contextmanager
def _progress(
    handler: Callable[[Any], Any], ends: bool, waiting: Callable[[], int]
) -> Iterator[Callable[[Any], Any]]:
    """Show the progress of a worker that ends, and yield a handler that counts messages."""
    if not ends:
        yield handler
        return
    lock, done = threading.Lock(), 0
    with track("worked", waiting()) as show:

        def count(given: Any) -> None:
            nonlocal done
            with lock:
                done += len(given) if isinstance(given, Lease) else 1
                show(done)

        yield _counted(handler, count)


def _counted(handler: Callable[[Any], Any], count: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Return a handler that counts its messages, async if the given one is."""

    def call(given: Any) -> Any:
        try:
            return handler(given)
        finally:
            count(given)

    async def call_async(given: Any) -> Any:
        try:
            return await handler(given)
        finally:
            count(given)

    return call_async if is_async(handler) else call


def load_handler(text: str) -> Callable[[Any], Any]:
    """Return the function that MODULE:FUNCTION or path/to/file.py:function names."""
    where, colon, name = text.rpartition(":")
    if not (where and colon and name):
        raise _bad_handler(text, "it names no function. Give MODULE:FUNCTION")
    module, folder = where, Path.cwd()
    if where.endswith(".py"):
        module, folder = Path(where).stem, Path(where).resolve().parent
        if not Path(where).is_file():
            raise _bad_handler(text, f"there is no file {where}")
    sys.path.insert(0, str(folder))
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise _bad_handler(text, f"the module cannot be imported ({error})") from error
    function = getattr(found, name, None)
    if not callable(function):
        raise _bad_handler(text, f"{found.__file__} has no function {name!r}")
    checked: Callable[[Any], Any] = function
    return checked


def _bad_handler(text: str, problem: str) -> InvalidOption:
    return InvalidOption(
        f"the handler {text} cannot be used: {problem}", option="handler", value=text
    )


def jobs(output: Output = OutputFormat.table) -> None:
    """Print the paths of the jobs for spark-submit."""
    folders = [Path(__file__).parents[2] / "jobs"]
    spec = importlib.util.find_spec("spark_mq_jobs")
    if spec is not None and spec.submodule_search_locations:
        folders.insert(0, Path(next(iter(spec.submodule_search_locations))))
    for folder in folders:
        paths = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
        if paths:
            emit([{"job": p.stem, "path": str(p)} for p in paths], _JOB_COLUMNS, output)
            return
    complain("the jobs are not installed")
    raise typer.Exit(NOT_FOUND)


_JOB_COLUMNS = [("JOB", "job"), ("PATH", "path")]
