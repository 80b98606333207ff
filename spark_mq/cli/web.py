"""Serve a page about queues with ``spark-mq web``, which needs the extra ``web``."""

from __future__ import annotations

import getpass
import os
import sys
from typing import Annotated

import typer

from spark_mq.cli.options import (
    MaxAge,
    MaxDead,
    MaxUnswept,
    StorageOptions,
    as_options,
    option,
    parse_limit,
)
from spark_mq.cli.workers import stopping
from spark_mq.errors import InvalidOption

__all__ = ["register"]

_PACKAGES = ("anyio", "starlette", "uvicorn")


def register(app: typer.Typer) -> None:
    app.command()(web)


def web(
    path: Annotated[
        str,
        typer.Argument(envvar="SPARK_MQ_PATH", help="A queue, or where to look for queues."),
    ] = ".",
    port: Annotated[int, option("--port", min=0, max=65_535, help="0: any free port.")] = 9465,
    address: Annotated[str, option("--address", help="Where to listen.")] = "127.0.0.1",
    allow_changes: Annotated[
        bool,
        option("--allow-changes", help="Offer redrive, sweep and the changes of a group."),
    ] = False,
    user: Annotated[
        str | None, option("--user", help="The name in the records, without a password.")
    ] = None,
    max_depth: Annotated[
        int, option("--max-depth", min=0, help="Folders between the path and a queue.")
    ] = 3,
    max_unswept: MaxUnswept = "1h",
    max_age: MaxAge = None,
    max_dead: MaxDead = None,
    storage_option: StorageOptions = None,
) -> None:
    """Serve a page about all queues under a path until SIGTERM. It only looks, by default.

    It listens on localhost. At another --address it needs SPARK_MQ_WEB_PASSWORD or
    SPARK_MQ_WEB_TOKEN.
    """
    try:
        from spark_mq.web import Access, Health, Looks, serve
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
    )
    unswept = parse_limit(max_unswept)
    looks = Looks(path, as_options(storage_option), max_depth=max_depth)
    with stopping():  # the server sends itself the signal again once it has ended
        serve(
            looks,
            access,
            address=address,
            port=port,
            health=Health(unswept, max_age, max_dead),
            listening=lambda url: print(f"listening on {url}", file=sys.stderr, flush=True),
        )


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "local"
