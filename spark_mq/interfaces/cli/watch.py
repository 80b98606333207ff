"""Watch queues with ``throughput``, ``changes``, ``check``, and ``web`` in a browser."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import SparkMQError
from spark_mq.inspect import THROUGHPUT_SCHEMA, Problem, QueueOverview
from spark_mq.inspect.health import HealthLimits, check_health
from spark_mq.interfaces.cli.command import NOTHING, Invocation, argument, command, option
from spark_mq.interfaces.cli.output import FAILED, OK, Rows, WrongCall, columns
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.ledger.breaker import CLOSED
from spark_mq.ledger.stats import GroupStats
from spark_mq.queue import Queue
from spark_mq.util.validation import invalid, validate_duration

_WEB_PACKAGES: Final = ("anyio", "starlette", "uvicorn")

_THROUGHPUT_COLUMNS: Final = columns(" ".join(THROUGHPUT_SCHEMA.names))
_CHANGE_COLUMNS: Final = columns("at operation group user messages detail")
_CHECK_COLUMNS: Final = columns("check group text command", text="REASON", command="RUN")

_MAX_UNSWEPT: Final = option("How long work may wait for a sweep, or none.", default="1h")
_MAX_AGE: Final = option("The greatest age of an unsettled message.")
_MAX_DEAD: Final = option("The most dead messages and dead letters.", min=0)
_ONLY_GROUP: Final = option("Only this group.", "-g", envvar="SPARK_MQ_GROUP")


@command("throughput")
def throughput(
    ctx: Invocation,
    since: str = option("How far to look back.", default="1h"),
    every: str = option("The length of an interval.", default="1m"),
    group: str | None = _ONLY_GROUP,
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
    since: str = option("How far to look back.", default="1d"),
    limit: int = option("The most changes.", "-n", min=1, default=100),
    group: str | None = _ONLY_GROUP,
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
    max_unswept: str = _MAX_UNSWEPT,
    max_age: str | None = _MAX_AGE,
    max_dead: int | None = _MAX_DEAD,
) -> Rows | str:
    """Exit with 1, a reason and the command that helps if the queue is unhealthy.

    It is unhealthy if it was not swept in time, a group is stopped, a ledger cannot be read, or a
    limit is exceeded. For a folder, all queues below it are checked.
    """
    limits = HealthLimits(_parse_limit(max_unswept), max_age, max_dead)
    place = ctx.queue_or_folder()
    if isinstance(place, Queue):
        judged, shown = [_judge(place.path, place.describe(), limits)], _CHECK_COLUMNS
    else:
        paths = place.queues()
        judged = [_judge(paths[name], overview, limits) for name, overview in place.all().items()]
        shown = [*columns("queue"), *_CHECK_COLUMNS]
    problems = [
        {"queue": verdict["queue"], **row} for verdict in judged for row in verdict["problems"]
    ]
    ctx.exit_code = FAILED if problems else OK
    if ctx.json:  # a line for each queue
        return Rows(judged, ())
    return Rows(problems, shown) if problems else "healthy"


def _judge(
    path: str, overview: QueueOverview | SparkMQError, limits: HealthLimits
) -> dict[str, Any]:
    """Return whether a queue is healthy. One that cannot be read does not hide the others."""
    groups: Mapping[str, GroupStats] = {}
    if isinstance(overview, QueueOverview):
        problems = check_health(overview, datetime.now(UTC), limits).problems
        groups = overview.groups
    else:
        problems = (Problem("unreadable", None, str(overview)),)
    rows = [{**asdict(problem), "command": _remedy(path, groups, problem)} for problem in problems]
    return {"queue": path, "healthy": not problems, "problems": rows}


def _remedy(path: str, groups: Mapping[str, GroupStats], problem: Problem) -> str:
    path = shlex.quote(path)
    if problem.group is None:
        commands = {"not_swept": f"sweep -q {path}", "too_many_dead": f"dlq failures -q {path}"}
        return f"spark-mq {commands.get(problem.check, f'queue describe {path}')}"
    of_group = f"{shlex.quote(problem.group)} -q {path}"
    stats = groups[problem.group] if problem.check == "blocked" else None
    if stats is not None and stats.breaker != CLOSED:
        return f"spark-mq group resume {of_group}"
    if stats is not None and stats.blocked:
        return f"spark-mq group resolve {of_group} --blocked --to retry"
    return f"spark-mq group describe {of_group}"


@command("web", NOTHING, prints=False)
def web(
    ctx: Invocation,
    path: str = argument(
        "A queue, or where to look for queues.", envvar="SPARK_MQ_PATH", default="."
    ),
    port: int = option("0: any free port.", min=0, max=65_535, default=9465),
    address: str = option("Where to listen.", default="127.0.0.1"),
    allow_changes: bool = option(
        "Offer changes of dead letters, groups, messages and schedules, and a sweep.", default=False
    ),
    user: str | None = option(
        "The name in the records, without a password. Default: the login name."
    ),
    trusted_proxy: list[str] | None = option(
        "An address or a network whose X-Forwarded-For is believed. Repeatable."
    ),
    max_depth: int = option("Folders between the path and a queue.", min=0, default=3),
    max_unswept: str = _MAX_UNSWEPT,
    max_age: str | None = _MAX_AGE,
    max_dead: int | None = _MAX_DEAD,
) -> None:
    """Serve a page about all queues under a path, and /metrics for Prometheus, until SIGTERM.

    By default it changes nothing, and listens on localhost. At another --address it needs
    SPARK_MQ_WEB_PASSWORD or SPARK_MQ_WEB_TOKEN.
    """
    try:
        from spark_mq.interfaces.web import Access, parse_proxies, serve
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _WEB_PACKAGES:
            raise
        raise WrongCall(
            f"the page needs {name}, which is not installed. Run: pip install 'spark-mq[web]'"
        ) from error
    access = Access(
        password=os.environ.get("SPARK_MQ_WEB_PASSWORD") or None,
        token=os.environ.get("SPARK_MQ_WEB_TOKEN") or None,
        allow_changes=allow_changes,
        user=user or _login(),
        proxies=parse_proxies(trusted_proxy or ()),
    )
    health = HealthLimits(_parse_limit(max_unswept), max_age, max_dead)
    for name, limit in (("--max-unswept", health.max_unswept), ("--max-age", max_age)):
        if limit is not None:
            validate_duration(name, limit)
    place = absolute_path(path, "PATH")
    if "://" not in place and not os.path.exists(place):
        problem = "is not there: give a queue, or a folder in which to look for queues"
        raise invalid("PATH", path, problem)
    monitor = QueueMonitor(path, ctx.storage_options, max_depth=max_depth)
    serve(
        monitor,
        access,
        address=address,
        port=port,
        health=health,
        listening=lambda url: print(f"listening on {url}", file=sys.stderr, flush=True),
    )


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "local"
