"""Serve the metrics of a queue, or a page about queues: ``metrics`` and ``web``."""

from __future__ import annotations

import getpass
import gzip
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, Final

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import InvalidOption, SparkMQError
from spark_mq.inspect.overview import QueueOverview
from spark_mq.integrations.prometheus import CONTENT_TYPE, exposition
from spark_mq.interfaces.cli.command import NOTHING, Invocation, argument, command, option, stopping
from spark_mq.interfaces.cli.output import complain
from spark_mq.interfaces.cli.watch import MaxAge, MaxDead, MaxUnswept, parse_limit
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.util.listening import host_of, listen
from spark_mq.util.validation import short_repr, validate_duration

__all__: list[str] = []

_PACKAGES: Final = ("anyio", "starlette", "uvicorn")

_Port = Annotated[int, option("0: any free port.", min=0, max=65_535)]
_Address = Annotated[str, option("Where to listen.")]


@command("metrics", prints=False)
def metrics(ctx: Invocation, port: _Port = 9464, address: _Address = "127.0.0.1") -> None:
    """Serve the metrics of a queue to Prometheus until SIGTERM. Each request reads the queue."""
    queue = ctx.queue
    with listen(address, port) as listener:
        server = _server(listener, lambda: exposition(_overview_by_path(queue)))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with stopping() as stop:
            _say_listening(f"http://{host_of(address)}:{listener.getsockname()[1]}/metrics")
            stop.wait()
        server.shutdown()
        server.server_close()
        thread.join()


def _say_listening(url: str) -> None:
    print(f"listening on {url}", file=sys.stderr, flush=True)


def _server(listener: socket.socket, content: Callable[[], bytes]) -> ThreadingHTTPServer:
    """Return a server that answers a request for any path with the current content."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds until a silent client loses its connection

        def do_GET(self) -> None:
            body = content()
            packed = "gzip" in self.headers.get("Accept-Encoding", "")
            if packed:
                body = gzip.compress(body, 1)
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing, because a scrape is no news."""

    server = ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    return server


def _overview_by_path(queue: Any) -> Mapping[str, QueueOverview | None]:
    """Return the overview of a queue by its path, or None if it cannot be read."""
    try:
        return {queue.path: queue.describe(lanes=True, durations=True)}
    except (SparkMQError, OSError) as error:
        complain(str(error))
        return {queue.path: None}


@command("web", NOTHING, prints=False)
def web(
    ctx: Invocation,
    path: Annotated[
        str, argument("A queue, or where to look for queues.", envvar="SPARK_MQ_PATH")
    ] = ".",
    port: _Port = 9465,
    address: _Address = "127.0.0.1",
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
    """Serve a page about all queues under a path until SIGTERM. It only looks, by default.

    It listens on localhost. At another --address it needs SPARK_MQ_WEB_PASSWORD or
    SPARK_MQ_WEB_TOKEN.
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
