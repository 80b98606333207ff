"""Serve the metrics of a queue to Prometheus with ``spark-mq metrics``."""

from __future__ import annotations

import gzip
import socket
import sys
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_mq.cli.options import QueuePath, StorageOptions, open_queue, option
from spark_mq.cli.output import complain
from spark_mq.cli.workers import stopping
from spark_mq.errors import SparkMQError
from spark_mq.inspect.prometheus import CONTENT_TYPE, exposition
from spark_mq.util.listening import host_of, listen

if TYPE_CHECKING:
    from spark_mq.inspect.overview import QueueOverview

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(metrics)


def metrics(
    queue: QueuePath,
    port: Annotated[int, option("--port", min=0, max=65_535, help="0: any free port.")] = 9464,
    address: Annotated[str, option("--address", help="Where to listen.")] = "127.0.0.1",
    storage_option: StorageOptions = None,
) -> None:
    """Serve the metrics of a queue to Prometheus until SIGTERM. Each request looks at the queue."""
    opened = open_queue(queue, storage_option)
    with listen(address, port) as listener:
        server = _server(listener, lambda: exposition(_look(opened)))
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        place = f"{host_of(address)}:{listener.getsockname()[1]}"
        print(f"listening on http://{place}/metrics", file=sys.stderr, flush=True)
        with stopping() as stop:
            stop.wait()
        server.shutdown()
        server.server_close()
        thread.join()


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


def _look(queue: Any) -> Mapping[str, QueueOverview | None]:
    """Return the overview of a queue by its path, or None if the look fails."""
    try:
        return {queue.path: queue.describe(lanes=True)}
    except (SparkMQError, OSError) as error:
        complain(str(error))
        return {queue.path: None}
