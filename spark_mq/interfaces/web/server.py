"""Serve the page until a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from spark_mq.errors import InvalidOption, SparkMQError
from spark_mq.inspect import QueueOverview
from spark_mq.inspect.health import HealthLimits
from spark_mq.interfaces.monitor import HOUR, QueueMonitor
from spark_mq.interfaces.web.app import create_app
from spark_mq.interfaces.web.security import Access, is_local
from spark_mq.util.signals import calling_on_signal

_log = logging.getLogger(__name__)

# Seconds for a client to take an answer and to send the head of the next request.
REQUEST_SECONDS: Final = 10.0
# Above it, the connection that has been idle longest is dropped.
MAX_CONNECTIONS: Final = 200


class BoundedProtocol(H11Protocol):
    """Closes connections without a request, for which uvicorn has no setting.

    Its `timeout_keep_alive` ends with any byte after an answer. Its `limit_concurrency` counts half
    a request as one, and refuses those of others.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._end_if_idle)
        if len(self.connections) > MAX_CONNECTIONS:
            ours = cast("set[BoundedProtocol]", self.connections)
            idle = [connection for connection in ours if connection._is_idle]
            min(idle, key=lambda connection: connection._deadline.when())._end()

    def on_response_complete(self) -> None:
        self._deadline.cancel()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._end_if_idle)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _end_if_idle(self) -> None:
        if self._is_idle:
            self._end()

    def _end(self) -> None:
        self.connections.discard(self)  # others may connect before the loop calls connection_lost
        self.transport.abort()


class _Server(uvicorn.Server):
    """Leaves signals to its caller. uvicorn would miss those that come before it listens."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


def serve(
    monitor: QueueMonitor,
    access: Access,
    *,
    address: str,
    port: int,
    health: HealthLimits | None = None,
    listening: Callable[[str], None],
) -> None:
    """Serve the page until SIGTERM or Ctrl-C, and call `listening`. Raise InvalidOption."""
    if access.is_open and not is_local(address):
        raise InvalidOption(
            f"--address {address} is open to other machines: set SPARK_MQ_WEB_PASSWORD or "
            "SPARK_MQ_WEB_TOKEN",
            option="--address",
            value=address,
        )
    with _listen(address, port) as listener:
        config = uvicorn.Config(
            create_app(monitor, access, health),
            access_log=False,
            http=BoundedProtocol,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=10,
            ws="none",
        )
        # So that the first visitor does not wait until all ledgers are read.
        threading.Thread(target=_read_once, args=[monitor], daemon=True).start()
        server = _Server(config)
        end = partial(server.handle_exit, frame=None)
        with calling_on_signal(end, signal.SIGTERM, signal.SIGINT):
            listening(f"http://{_host_of(address)}:{listener.getsockname()[1]}/")
            server.run(sockets=[listener])


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=128)
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {address}:{port}: {error.strerror}. Give another --port",
            option="--port",
            value=port,
        ) from error


def _host_of(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _read_once(monitor: QueueMonitor) -> None:
    """Read all queues and their last hour. The pages show the errors."""
    try:
        for name, overview in monitor.all().items():
            if isinstance(overview, QueueOverview):
                monitor.past(name, HOUR)
    except (SparkMQError, OSError) as error:
        _log.warning("the first read of %s failed: %s", monitor.path, error)
