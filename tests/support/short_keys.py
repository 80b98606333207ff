"""An STS on this machine whose keys work for some seconds at a real S3 server.

A catalog calls it as AWS STS. For each session it makes an account of versitygw, and deletes it
when the session ends, so that the server refuses keys that were not renewed.
"""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
import uuid
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

__all__ = ["ShortKeys"]

HOST: Final = "sts.us-east-1.amazonaws.com"

_ANSWER: Final = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleResult><Credentials><AccessKeyId>{key}</AccessKeyId>
<SecretAccessKey>{secret}</SecretAccessKey><SessionToken></SessionToken>
<Expiration>{until:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>r:s</AssumedRoleId>
</AssumedRoleUser></AssumeRoleResult></AssumeRoleResponse>"""


class ShortKeys:
    """Runs until :meth:`close`. The caller reaches it by a proxy's address, over TLS.

    `life` is the number of seconds that the next keys work. `given` has all keys, `ended` those
    that work no longer.
    """

    def __init__(self, admin: list[str], folder: Path, life: float) -> None:
        self.life, self.given, self.ended = life, list[str](), list[str]()
        self._admin = admin
        self._timers = list[threading.Timer]()
        self.authority = _certificates(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "sts.pem", folder / "sts.key")
        keys = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                """Be the host that the caller wants to reach."""
                self.send_response(200)
                self.end_headers()
                with context.wrap_socket(self.connection, server_side=True) as secure:
                    self.rfile, self.wfile = secure.makefile("rb"), secure.makefile("wb")
                    self.handle_one_request()
                self.close_connection = True

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                data = keys._new_session().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/xml")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.wfile.flush()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.proxy = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for timer in self._timers:
            timer.cancel()

    def end(self, key: str) -> None:
        """End a session: the store refuses its keys from now on."""
        subprocess.run([*self._admin, "delete-user", "-a", key], check=True, capture_output=True)
        self.ended.append(key)

    def _new_session(self) -> str:
        key, secret = f"AKIA{uuid.uuid4().hex[:16].upper()}", uuid.uuid4().hex
        made = ["create-user", "-a", key, "-s", secret, "-r", "admin"]
        subprocess.run([*self._admin, *made], check=True, capture_output=True)
        # In whole seconds, as STS says it, so that no key ends before its time.
        until = datetime.fromtimestamp(int(time.time() + self.life), UTC)
        timer = threading.Timer(self.life, self.end, [key])
        timer.daemon = True
        timer.start()
        self._timers.append(timer)
        self.given.append(key)
        return _ANSWER.format(key=key, secret=secret, until=until)


def _certificates(folder: Path) -> Path:
    """Write a certificate of the host, and return that of the authority that signed it."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(
        *new, "-x509", "-days", "2", "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.pem"
    )
    openssl(*new, "-subj", f"/CN={HOST}", "-keyout", "sts.key", "-out", "sts.csr")
    (folder / "names").write_text(f"subjectAltName=DNS:{HOST}\nbasicConstraints=CA:FALSE\n")
    openssl(
        "x509", "-req", "-days", "2", "-in", "sts.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
        "-CAcreateserial", "-extfile", "names", "-out", "sts.pem",
    )  # fmt: skip
    return folder / "ca.pem"
