"""A catalog on this machine that gives the answers of a test, by the REST API of Unity Catalog."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

__all__ = ["TOKEN", "CatalogStandIn"]

TOKEN: Final = "dapi-secret-of-the-catalog"

_API: Final = "/api/2.1/unity-catalog"


class CatalogStandIn:
    """Serves one external volume ``main.app.files`` and one table ``main.app.queue``.

    `answers` has the status and body of each path, which a test may change. `asked` lists the paths
    and bodies of all requests that gave the token.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, tuple[int, Any]] = {
            "/volumes/main.app.files": (200, volume()),
            "/tables/main.app.queue": (
                200,
                {"table_id": "t-1", "table_type": "EXTERNAL", "storage_location": "s3://b/q"},
            ),
            "/temporary-volume-credentials": (200, keys("one")),
            "/temporary-table-credentials": (200, keys("two")),
        }
        catalog = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                catalog._answer(self, None)

            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                catalog._answer(self, json.loads(self.rfile.read(size)))

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.options = {"databricks_host": self.url, "databricks_token": TOKEN}
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, to: BaseHTTPRequestHandler, body: Any) -> None:
        path = to.path.removeprefix(_API)
        status, found = 401, {"error_code": "UNAUTHENTICATED", "message": "who are you?"}
        if to.headers["Authorization"] == f"Bearer {TOKEN}":
            self.asked.append((path, body))
            missing = {"error_code": "NOT_FOUND", "message": f"{path} is not there"}
            status, found = self.answers.get(path, (404, missing))
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        to.send_response(status)
        if 300 <= status < 400:
            to.send_header("Location", data.decode())
        to.send_header("Content-Length", str(len(data)))
        to.end_headers()
        to.wfile.write(data)


def volume(**others: Any) -> dict[str, Any]:
    """Return what a catalog says of an external volume."""
    named = {"volume_id": "v-1", "volume_type": "EXTERNAL", "storage_location": "s3://bucket/files"}
    return {**named, **others}


def keys(name: str, until: float | None = None) -> dict[str, Any]:
    """Return an answer with credentials that expire at a time in seconds since 1970, or never."""
    given = {
        "access_key_id": f"{name}-id",
        "secret_access_key": f"{name}-secret-key",
        "session_token": f"{name}-session-token",
    }
    expires = {} if until is None else {"expiration_time": int(until * 1000)}
    return {"aws_temp_credentials": given, **expires}
