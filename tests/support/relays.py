"""Servers that answer as a test says, and proxies in front of a store."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, urlsplit

from support.processes import SPAWN

__all__ = ["Relay", "Requests", "counting", "running", "serving"]

Requests = list[tuple[str, str, dict[str, str]]]
"""Method, path and headers of each request."""


_OF_A_CONNECTION = ("transfer-encoding", "connection", "content-length", "date", "server")


class Relay(BaseHTTPRequestHandler):
    """A request to a proxy: :meth:`serve` says what becomes of it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits for the caller's delayed acknowledgement
    target: SplitResult

    def serve(self, body: bytes) -> None:
        raise NotImplementedError

    def forward(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """What the endpoint says to it: status, data, headers."""
        upstream = http.client.HTTPConnection(
            self.target.hostname or "", self.target.port, timeout=60
        )
        upstream.request(self.command, self.path, body, dict(self.headers))
        reply = upstream.getresponse()
        data, headers = reply.read(), dict(reply.getheaders())
        upstream.close()
        return reply.status, data, headers

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _OF_A_CONNECTION:
                self.send_header(name, value)
        size = str(len(data))
        if self.command == "HEAD":
            # In any case of letters: that of Azurite is not that of S3's servers.
            named = {name.lower(): value for name, value in headers.items()}
            size = named.get("content-length", "0")
        self.send_header("Content-Length", size)
        with contextlib.suppress(OSError):  # the client may have given up
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def _serve(self) -> None:
        self.serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve


def _relay(handler: type[Relay], endpoint: str) -> tuple[ThreadingHTTPServer, str]:
    """A server of requests to an endpoint, and its address."""
    handler.target = urlsplit(endpoint)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    return server, f"http://127.0.0.1:{server.server_address[1]}"


def _serve(handler: type[Relay], endpoint: str, pipe: Any) -> None:
    server, address = _relay(handler, endpoint)
    pipe.send(address)
    server.serve_forever()


@contextlib.contextmanager
def running(handler: type[Relay], endpoint: str) -> Iterator[str]:
    """Run a proxy as a process. Yield its address."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(handler, endpoint, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def serving(
    serve: Callable[[Relay, bytes], None],
    endpoint: str = "http://127.0.0.1:1",
    *,
    handler: type[Relay] = Relay,
) -> Iterator[str]:
    """Let a function serve each request, by a thread for each connection. Yield the address."""

    class Serving(handler):  # type: ignore[misc, valid-type]
        def serve(self, body: bytes) -> None:
            serve(self, body)

    server, address = _relay(Serving, endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


@contextlib.contextmanager
def counting(endpoint: str) -> Iterator[tuple[str, Requests]]:
    """The address of a proxy in front of an endpoint, and the requests that went through."""
    seen: Requests = []

    def serve(to: Relay, body: bytes) -> None:
        seen.append((to.command, to.path, {k.lower(): v for k, v in to.headers.items()}))
        to.answer(*to.forward(body))

    with serving(serve, endpoint) as url:
        yield url, seen
