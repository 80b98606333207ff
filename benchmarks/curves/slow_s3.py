"""An S3 endpoint on this machine that answers as late as a real one, and counts what it is asked. moto behind a proxy, a process each."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

__all__ = ["SlowS3", "slow_s3"]

COUNTS = "/__counts"
BUCKET = "queues"


class SlowS3:
    """``options``: the storage options to use it; ``root``: its bucket."""

    def __init__(self, url: str) -> None:
        self.url, self.root = url, f"s3://{BUCKET}"
        self.options = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def counts(self) -> Counter[str]:
        """Requests so far, by kind: GET, HEAD, PUT, LIST, DELETE."""
        with urllib.request.urlopen(self.url + COUNTS, timeout=30) as reply:
            return Counter(json.load(reply))

    def total(self) -> int:
        """All of them."""
        return self.counts().total()


@contextlib.contextmanager
def slow_s3(seconds: float) -> Iterator[SlowS3]:
    """An endpoint whose every answer takes so many seconds more than moto's own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = subprocess.DEVNULL
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=quiet, stderr=quiet))
        stack.callback(store.kill)
        target = f"http://127.0.0.1:{port}"
        deadline, answered = time.monotonic() + 60, threading.Event()
        while not answered.is_set():
            assert store.poll() is None, "moto's server did not start: make bench installs it"
            assert time.monotonic() < deadline, "moto's server does not answer"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{target}/moto-api/"):
                answered.set()
            answered.wait(0.1)
        with urllib.request.urlopen(urllib.request.Request(f"{target}/{BUCKET}", method="PUT")):
            pass
        proxy = stack.enter_context(subprocess.Popen([sys.executable, __file__, target, str(seconds)], stdout=subprocess.PIPE, text=True))
        stack.callback(proxy.kill)
        assert proxy.stdout is not None
        yield SlowS3(proxy.stdout.readline().strip())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    target = urlsplit("")
    seconds = 0.0
    asked: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == COUNTS:
            self._answer(200, json.dumps(self.asked).encode(), {})
            return
        kind = "LIST" if self.command == "GET" and "list-type=2" in self.path else self.command
        with self.lock:
            self.asked[kind] += 1
        time.sleep(self.seconds)  # the latency itself
        upstream = http.client.HTTPConnection(self.target.hostname or "", self.target.port, timeout=60)
        upstream.request(self.command, self.path, body, dict(self.headers))
        reply = upstream.getresponse()
        data, headers = reply.read(), dict(reply.getheaders())
        upstream.close()
        self._answer(reply.status, data, headers)

    def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data)))
        with contextlib.suppress(OSError):  # whoever asked may have given up
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve


if __name__ == "__main__":
    _Handler.target, _Handler.seconds = urlsplit(sys.argv[1]), float(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
