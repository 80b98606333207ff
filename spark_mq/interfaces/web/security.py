"""Let in only permitted requests, by host, password and form token, and set safe headers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from time import monotonic
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_mq.errors import InvalidOption

__all__ = ["Access", "Guard", "is_local"]

MIN_SECRET: Final = 12  # characters of a password or a token
COOKIE: Final = "spark_mq_session"
_OPEN_PATHS: Final = frozenset({"/healthz"})  # need no password, and name no queue or group
_LOCAL_HOST: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
MAX_WRONG: Final = 20  # wrong secrets until each further try waits. A second forgives one
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Access:
    """The users who may look, and whether they may change something."""

    # For HTTP Basic, the visitor chooses the user name that the records have.
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)  # of `Authorization: Bearer`
    allow_changes: bool = False
    user: str = "local"  # the name in the records without a password
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        for name, secret in (("password", self.password), ("token", self.token)):
            if secret is not None and len(secret) < MIN_SECRET:
                raise InvalidOption(
                    f"the {name} is too short: it has {len(secret)} characters. Give one of "
                    f"{MIN_SECRET} at least",
                    option=name,
                    value=None,
                )

    @property
    def is_open(self) -> bool:
        """Return whether neither a password nor a token is needed."""
        return self.password is None and self.token is None

    def user_of(self, authorization: str | None) -> str | None:
        """Return the user that a header names and proves, or None."""
        if self.is_open:
            return self.user
        kind, _, given = (authorization or "").partition(" ")
        if kind.lower() == "bearer":
            return "token" if _equal(given.strip(), self.token) else None
        if kind.lower() != "basic":
            return None
        try:
            user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except ValueError:  # no base64, or no text
            return None
        return (user or "unknown") if _equal(password, self.password) else None

    def csrf_token(self, session: str, user: str) -> str:
        """Return the token that each form of this session and user must carry."""
        text = f"{session}\n{user}".encode()
        return hmac.new(self.key, text, hashlib.sha256).hexdigest()


def _equal(given: str, expected: str | None) -> bool:
    """Compare in a time that does not depend on the texts."""
    digests = [hashlib.sha256((text or "").encode()).digest() for text in (given, expected)]
    return hmac.compare_digest(*digests) and expected is not None


def is_local(address: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class Guard:
    """Refuses forbidden requests, and adds the headers to each answer.

    Without a password the host must be a name of this machine, so that no web site can read the
    page by a name that points here.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._forgiven_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        session, is_new = _session(headers)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                added.update(_HEADERS)
                if "cache-control" not in added:
                    added["Cache-Control"] = "no-store"
                if is_new and not refused:
                    cookie = f"{COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict"
                    added.append("Set-Cookie", cookie)
            await send(message)

        refused = self._refusal(scope, headers)
        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        user = self._access.user_of(headers.get("authorization")) or ""
        scope["state"] = {**scope.get("state", {}), "user": user, "session": session}
        await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        if self._access.is_open and not _LOCAL_HOST.fullmatch(headers.get("host", "")):
            text = "This page answers to localhost only. Use http://localhost and the port."
            return PlainTextResponse(text, 400)
        if scope["path"] in _OPEN_PATHS:
            return None
        tried, now = "authorization" in headers, monotonic()
        if tried and self._forgiven_at - now > MAX_WRONG - 1:
            # The right one waits, too: who guesses would not wait for the answer to a wrong one.
            text = "There were too many wrong passwords or tokens. Try again later."
            return PlainTextResponse(text, 429, {"Retry-After": "1"})
        if self._access.user_of(headers.get("authorization")) is None:
            if tried:
                self._forgiven_at = max(self._forgiven_at, now) + 1
            challenge = {"WWW-Authenticate": 'Basic realm="spark_mq", charset="UTF-8"'}
            return PlainTextResponse("A password or a token is needed.", 401, challenge)
        return None


def _session(headers: Headers) -> tuple[str, bool]:
    """Return the session of a request, and whether it is new."""
    try:
        known = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        known = None
    if known is not None and len(known.value) >= MIN_SECRET:
        return known.value, False
    return secrets.token_urlsafe(32), True
