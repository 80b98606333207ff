"""Run moto's S3 server, with conditional writes that are atomic as in S3.

moto looks whether a name exists and writes the object later, without a lock between the two. Under
load two requests with ``If-None-Match: *`` for one name succeed, which no S3 endpoint may allow.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import run_simple

__all__ = ["OneConditionalWriteAtATime", "serve"]

_Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class OneConditionalWriteAtATime:
    """Let one conditional write at a time into an application."""

    def __init__(self, application: _Application) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request."""
        if "HTTP_IF_NONE_MATCH" not in environ and "HTTP_IF_MATCH" not in environ:
            return self._application(environ, start_response)
        with self._lock:
            return list(self._application(environ, start_response))


def serve(port: int) -> None:
    """Serve until the process is killed."""
    application = DomainDispatcherApplication(create_backend_app)
    run_simple(
        "127.0.0.1",
        port,
        OneConditionalWriteAtATime(application),
        threaded=True,
        request_handler=MotoRequestHandler,
    )


if __name__ == "__main__":
    serve(int(sys.argv[1]))
