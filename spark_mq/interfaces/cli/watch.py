"""Look back at a queue, and judge it: ``throughput``, ``changes`` and ``check``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

from spark_mq.errors import InvalidOption, QueueNotFound, SparkMQError
from spark_mq.inspect.health import Problem
from spark_mq.interfaces.cli.command import Invocation, command, option
from spark_mq.interfaces.cli.output import FAILED, OK, Column, Rows
from spark_mq.ledger.breaker import CLOSED
from spark_mq.queue import Queue

__all__ = ["MaxAge", "MaxDead", "MaxUnswept", "parse_limit"]

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

MaxUnswept = Annotated[str, option("How long work may wait for a sweep, or none.")]
MaxAge = Annotated[str | None, option("The greatest age of an unsettled message.")]
MaxDead = Annotated[int | None, option("The most dead messages and dead letters.", min=0)]
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


def parse_limit(text: str) -> str | None:
    """Return a limit, or None for "none"."""
    return None if text.lower() == "none" else text


@command("check")
def check(
    ctx: Invocation,
    max_unswept: MaxUnswept = "1h",
    max_age: MaxAge = None,
    max_dead: MaxDead = None,
) -> Rows | str:
    """Exit with 1, a reason and the command that helps if the queue is unhealthy.

    It is unhealthy if it was not swept in time, a group is stopped, a ledger cannot be read, or a
    limit is exceeded. For a folder, all queues below it are checked.
    """
    limits: dict[str, Any] = {
        "max_unswept": parse_limit(max_unswept),
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
