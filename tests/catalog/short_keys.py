"""An STS on this machine whose keys work for some seconds at a real S3 server.

A catalog calls it as AWS STS. For each session it makes an account of versitygw, and deletes it
when the session ends, so that the server refuses keys that were not renewed.
"""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trustme
from support.relays import Relay, serving

__all__ = ["ShortKeys", "short_keys"]

HOST: Final = "sts.us-east-1.amazonaws.com"

_ANSWER: Final = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleResult><Credentials><AccessKeyId>{key}</AccessKeyId>
<SecretAccessKey>{secret}</SecretAccessKey><SessionToken></SessionToken>
<Expiration>{until:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>r:s</AssumedRoleId>
</AssumedRoleUser></AssumeRoleResult></AssumeRoleResponse>"""


class ShortKeys:
    """The sessions of the STS.

    `life` is the number of seconds that the next keys work. `given` has all keys, `ended` those
    that work no longer.
    """

    def __init__(self, admin: list[str], life: float) -> None:
        self.life, self.given, self.ended = life, list[str](), list[str]()
        self._admin = admin
        self.timers = list[threading.Timer]()

    def serve(self, to: Relay, _: bytes) -> None:
        to.answer(200, self._new_session().encode(), {"Content-Type": "text/xml"})

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
        self.timers.append(timer)
        self.given.append(key)
        return _ANSWER.format(key=key, secret=secret, until=until)


@contextlib.contextmanager
def short_keys(
    admin: list[str], folder: Path, life: float
) -> Iterator[tuple[ShortKeys, dict[str, str]]]:
    """Run the STS. Yield its keys, and the environment in which a program reaches it, over TLS."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    authority.cert_pem.write_to_path(folder / "ca.pem")

    class Tunnel(Relay):
        def do_CONNECT(self) -> None:
            """Be the host that the caller wants to reach."""
            self.send_response(200)
            self.end_headers()
            with context.wrap_socket(self.connection, server_side=True) as secure:
                self.rfile, self.wfile = secure.makefile("rb"), secure.makefile("wb")
                self.handle_one_request()
            self.close_connection = True

    keys = ShortKeys(admin, life)
    with serving(keys.serve, handler=Tunnel) as proxy:
        yield keys, {"HTTPS_PROXY": proxy, "SSL_CERT_FILE": str(folder / "ca.pem")}
    for timer in keys.timers:
        timer.cancel()
