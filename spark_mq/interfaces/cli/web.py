"""Serve a page about queues, and their metrics: ``web``."""

from __future__ import annotations

import getpass
import os
import sys
from typing import Annotated, Final

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import InvalidOption
from spark_mq.interfaces.cli.command import NOTHING, Invocation, argument, command, option
from spark_mq.interfaces.cli.watch import MaxAge, MaxDead, MaxUnswept, parse_limit
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.util.validation import short_repr, validate_duration

__all__: list[str] = []

_PACKAGES: Final = ("anyio", "starlette", "uvicorn")


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
    max_unswept: MaxUnswept = "1h",
    max_age: MaxAge = None,
    max_dead: MaxDead = None,
) -> None:
    """Serve a page about all queues under a path, and /metrics for Prometheus, until SIGTERM.

    It only looks, by default, and listens on localhost. At another --address it needs
    SPARK_MQ_WEB_PASSWORD or SPARK_MQ_WEB_TOKEN.
    """
    try:
        from spark_mq.interfaces.web import Access, HealthLimits, parse_proxies, serve
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _PACKAGES:
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
    unswept = parse_limit(max_unswept)
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
