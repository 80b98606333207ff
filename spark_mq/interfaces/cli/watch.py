"""Watch queues with ``throughput``, ``changes``, ``check``, and ``web`` in a browser."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import InvalidOption, QueueNotFound, SparkMQError
from spark_mq.inspect.health import Problem
from spark_mq.interfaces.cli.command import NOTHING, Invocation, argument, command, option
from spark_mq.interfaces.cli.output import FAILED, OK, Column, Rows
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.ledger.breaker import CLOSED
from spark_mq.queue import Queue
from spark_mq.util.validation import short_repr, validate_duration

__all__: list[str] = []

_WEB_PACKAGES: Final = ("anyio", "starlette", "uvicorn")

_THROUGHPUT_COLUMNS: Final[list[Column]] = [
    ("AT", "at"), ("GROUP", "consumer_group"), ("PUBLISHED", "published"), ("LEASED", "leased"),
    ("FAILED", "failed"), ("ACKED", "acked"), ("DEAD LETTERED", "dead_lettered"),
    ("DROPPED", "dropped"), ("EXPIRED", "expired"), ("PUBLISHED/S", "published_per_second"),
    ("SETTLED/S", "settled_per_second"),
]  # fmt: skip
_CHANGE_COLUMNS: Final[list[Column]] = [
    ("AT", "at"), ("CHANGE", "operation"), ("GROUP", "group"), ("USER", "user"),
    ("MESSAGES", "messages"), ("DETAIL", "detail"),
]  # fmt: skip
_CHECK_COLUMNS: Final[list[Column]] = [
    ("CHECK", "check"), ("GROUP", "group"), ("REASON", "text"), ("RUN", "command"),
]  # fmt: skip

_MaxUnswept = Annotated[str, option("How long work may wait for a sweep, or none.")]
_MaxAge = Annotated[str | None, option("The greatest age of an unsettled message.")]
_MaxDead = Annotated[int | None, option("The most dead messages and dead letters.", min=0)]
_OnlyGroup = Annotated[str | None, option("Only this group.", "-g", envvar="SPARK_MQ_GROUP")]


@command("throughput")
def throughput(
    ctx: Invocation,
    since: Annotated[str, option("How far to look back.")] = "1h",
    every: Annotated[str, option("The length of an interval.")] = "1m",
    group: _OnlyGroup = None,
) -> Rows:
    """Show the throughput of a queue in each interval.

    It counts messages that were published, leased, failed and settled. The rates are those of
    publishes, and of messages that were acked, dead-lettered, dropped or expired.
    """
    if group is not None:
        ctx.existing_group(group)
    table = ctx.queue.throughput(since=since, every=every, group=group)
    return Rows(table.to_pylist(), _THROUGHPUT_COLUMNS)


@command("changes")
def changes(
    ctx: Invocation,
    since: Annotated[str, option("How far to look back.")] = "1d",
    limit: Annotated[int, option("The most changes.", "-n", min=1)] = 100,
    group: _OnlyGroup = None,
) -> Rows:
    """Show the changes that people made, the newest first.

    These are settings, pauses, seeks, redrives and changes of single messages, each with its user.
    """
    if group is not None:
        ctx.existing_group(group)
    return Rows(ctx.queue.changes(limit, since=since, group=group), _CHANGE_COLUMNS)


def _parse_limit(text: str) -> str | None:
    """Return a limit, or None for "none"."""
    return None if text.lower() == "none" else text


@command("check")
def check(
    ctx: Invocation,
    max_unswept: _MaxUnswept = "1h",
    max_age: _MaxAge = None,
    max_dead: _MaxDead = None,
) -> Rows | str:
    """Exit with 1, a reason and the command that helps if the queue is unhealthy.

    It is unhealthy if it was not swept in time, a group is stopped, a ledger cannot be read, or a
    limit is exceeded. For a folder, all queues below it are checked.
    """
    limits: dict[str, Any] = {
        "max_unswept": _parse_limit(max_unswept),
        "max_age": max_age,
        "max_dead": max_dead,
    }
    try:
        judged, columns = [_judge(ctx.queue, limits)], _CHECK_COLUMNS
    except QueueNotFound:
        paths = Queue.find_all(str(ctx.path), storage_options=ctx.storage_options)
        if not paths:
            raise
        judged = [_judge_path(path, limits, ctx.storage_options) for path in paths]
        columns = [("QUEUE", "queue"), *_CHECK_COLUMNS]
    problems = [
        {"queue": verdict["queue"], **row} for verdict in judged for row in verdict["problems"]
    ]
    ctx.exit_code = FAILED if problems else OK
    if ctx.json:  # a line for each queue
        return Rows(judged, ())
    return Rows(problems, columns) if problems else "healthy"


def _judge(queue: Queue, limits: Mapping[str, Any]) -> dict[str, Any]:
    health = queue.health(**limits)
    problems = [
        {**asdict(problem), "command": _remedy(queue, problem)} for problem in health.problems
    ]
    return {"queue": queue.path, "healthy": health.healthy, "problems": problems}


def _judge_path(path: str, limits: Mapping[str, Any], options: dict[str, str]) -> dict[str, Any]:
    """Return the same for a queue of a folder. One that cannot be read does not hide the others."""
    try:
        return _judge(Queue.open(path, storage_options=options), limits)
    except InvalidOption:
        raise
    except SparkMQError as error:
        advice = f"spark-mq queue describe {shlex.quote(path)}"
        problem = {**asdict(Problem("unreadable", None, str(error))), "command": advice}
        return {"queue": path, "healthy": False, "problems": [problem]}


def _remedy(queue: Queue, problem: Problem) -> str:
    path = shlex.quote(queue.path)
    if problem.group is None:
        commands = {"not_swept": f"sweep -q {path}", "too_many_dead": f"dlq failures -q {path}"}
        return f"spark-mq {commands.get(problem.check, f'queue describe {path}')}"
    of_group = f"{shlex.quote(problem.group)} -q {path}"
    stats = queue.group(problem.group).stats() if problem.check == "blocked" else None
    if stats is not None and stats.breaker != CLOSED:
        return f"spark-mq group resume {of_group}"
    if stats is not None and stats.blocked:
        return f"spark-mq group resolve {of_group} --blocked --to retry"
    return f"spark-mq group describe {of_group}"


def _say_listening(url: str) -> None:
    print(f"listening on {url}", file=sys.stderr, flush=True)


@command("web", NOTHING, prints=False)
def web(
    ctx: Invocation,
    path: Annotated[
        str, argument("A queue, or where to look for queues.", envvar="SPARK_MQ_PATH")
    ] = ".",
    port: Annotated[int, option("0: any free port.", min=0, max=65_535)] = 9465,
    address: Annotated[str, option("Where to listen.")] = "127.0.0.1",
    allow_changes: Annotated[
        bool,
        option("Offer changes of dead letters, groups, messages and schedules, and a sweep."),
    ] = False,
    user: Annotated[
        str | None, option("The name in the records, without a password. Default: the login name.")
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        option("An address or a network whose X-Forwarded-For is believed. Repeatable."),
    ] = None,
    max_depth: Annotated[int, option("Folders between the path and a queue.", min=0)] = 3,
    max_unswept: _MaxUnswept = "1h",
    max_age: _MaxAge = None,
    max_dead: _MaxDead = None,
) -> None:
    """Serve a page about all queues under a path, and /metrics for Prometheus, until SIGTERM.

    By default it changes nothing, and listens on localhost. At another --address it needs
    SPARK_MQ_WEB_PASSWORD or SPARK_MQ_WEB_TOKEN.
    """
    try:
        from spark_mq.interfaces.web import Access, HealthLimits, parse_proxies, serve
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _WEB_PACKAGES:
            raise
        raise InvalidOption(
            f"the page needs {name}, which is not installed. Run: pip install 'spark-mq[web]'",
            option="web",
            value=None,
        ) from error
    access = Access(
        password=os.environ.get("SPARK_MQ_WEB_PASSWORD") or None,
        token=os.environ.get("SPARK_MQ_WEB_TOKEN") or None,
        allow_changes=allow_changes,
        user=user or _login(),
        proxies=parse_proxies(trusted_proxy or ()),
    )
    unswept = _parse_limit(max_unswept)
    for name, limit in (("--max-unswept", unswept), ("--max-age", max_age)):
        if limit is not None:
            validate_duration(name, limit)
    place = absolute_path(path, "PATH")
    if "://" not in place and not os.path.exists(place):
        raise InvalidOption(
            f"PATH={short_repr(path)} is not there: give a queue, or a folder in which to look "
            "for queues",
            option="PATH",
            value=path,
        )
    monitor = QueueMonitor(path, ctx.storage_options, max_depth=max_depth)
    serve(
        monitor,
        access,
        address=address,
        port=port,
        health=HealthLimits(unswept, max_age, max_dead),
        listening=_say_listening,
    )


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "local"
