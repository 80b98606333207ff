"""Let in only permitted requests, by host, password and session, and set safe headers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from time import monotonic
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_mq.errors import InvalidOption
from spark_mq.util.recent import RecentDict

MIN_SECRET: Final = 12  # characters of a password or a token
COOKIE: Final = "spark_mq_session"
_OPEN_PATHS: Final = frozenset({"/healthz"})  # need no password, and name no queue or group
_LOCAL_HOST: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
MAX_WRONG: Final = 20  # wrong secrets of a client until its next try waits. A second forgives one
MAX_CLIENTS: Final = 10_000  # whose wrong secrets are counted. Those of the others are forgotten
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
    proxies: tuple[IPv4Network | IPv6Network, ...] = ()  # whose X-Forwarded-For is believed

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
        return self._sign(f"{session}\n{user}")

    def new_session(self) -> str:
        """Return the session of a visitor who was let in. Nobody else can make one up."""
        name = secrets.token_urlsafe(32)
        return f"{name}.{self._sign(name)}"

    def session_in(self, cookies: str) -> str | None:
        """Return the session that a visitor was given before, or None."""
        try:
            cookie = SimpleCookie(cookies).get(COOKIE)
        except CookieError:
            return None
        name, _, signature = ("" if cookie is None else cookie.value).partition(".")
        return f"{name}.{signature}" if _equal(signature, self._sign(name)) else None

    def _sign(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


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


def parse_proxies(given: Iterable[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the addresses and networks of the option --trusted-proxy. Raise InvalidOption."""
    networks = []
    for text in given:
        try:
            networks.append(ip_network(text))
        except ValueError as error:
            raise InvalidOption(
                f"--trusted-proxy {text!r} is neither an address nor a network: {error}. Give one "
                "such as 10.0.0.7 or 10.0.0.0/8",
                option="--trusted-proxy",
                value=text,
            ) from error
    return tuple(networks)


class _Guesses:
    """Counts the wrong secrets of each client by its address, or by its IPv6 network of 64 bits."""

    def __init__(self, proxies: tuple[IPv4Network | IPv6Network, ...]) -> None:
        self._proxies = proxies
        self._forgiven_at = RecentDict[bytes, float](MAX_CLIENTS)

    def are_too_many(self, client: bytes) -> bool:
        return self._forgiven_at.get(client, 0.0) - monotonic() > MAX_WRONG - 1

    def add(self, client: bytes) -> None:
        self._forgiven_at[client] = max(self._forgiven_at.get(client, 0.0), monotonic()) + 1

    def client_of(self, scope: Scope, headers: Headers) -> bytes:
        """Return who sent a request: the last address before the proxies that are trusted."""
        peer = (scope.get("client") or ("",))[0]
        forwarded = ",".join(headers.getlist("x-forwarded-for")).split(",")
        client = peer.encode()
        for hop in (peer, *reversed(forwarded)):
            if (address := _address(hop.strip())) is None:
                break
            client = address.packed if address.version == 4 else address.packed[:8]
            if not any(address in network for network in self._proxies):
                break
        return client


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address, which may have a port behind it."""
    host = text[1:].partition("]")[0] if text.startswith("[") else text
    if host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


class Guard:
    """Refuses forbidden requests, and adds the headers to each answer.

    Without a password the host must be a name of this machine, so that no web site can read the
    page by a name that points here.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._guesses = _Guesses(access.proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        known = self._access.session_in(headers.get("cookie", ""))
        session = known or self._access.new_session()
        user = self._access.user_of(headers.get("authorization"))
        refused = self._refusal(scope, headers, user, known)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                added.update(_HEADERS)
                if "cache-control" not in added:
                    added["Cache-Control"] = "no-store"
                if known is None and user is not None and refused is None:
                    cookie = f"{COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict"
                    added.append("Set-Cookie", cookie)
            await send(message)

        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        given = {"user": user or "", "session": session, "is_new": known is None}
        scope["state"] = {**scope.get("state", {}), **given}
        await self._app(scope, receive, send_guarded)

    def _refusal(
        self, scope: Scope, headers: Headers, user: str | None, session: str | None
    ) -> PlainTextResponse | None:
        if self._access.is_open and not _LOCAL_HOST.fullmatch(headers.get("host", "")):
            text = "This page answers to localhost only. Use http://localhost and the port."
            return PlainTextResponse(text, 400)
        if scope["path"] in _OPEN_PATHS:
            return None
        authorization = headers.get("authorization")
        if user is not None and (
            self._access.is_open or session or (authorization or "").lower().startswith("bearer ")
        ):
            return None
        client = self._guesses.client_of(scope, headers)
        if authorization is not None and self._guesses.are_too_many(client):
            # A first visit with the right password waits, too: somebody who guesses it would not
            # wait for the answer to a wrong one. A token is not chosen by people.
            text = "There were too many wrong passwords or tokens. Try again later."
            return PlainTextResponse(text, 429, {"Retry-After": "1"})
        if user is not None:
            return None
        if authorization is not None:
            self._guesses.add(client)
        challenge = {"WWW-Authenticate": 'Basic realm="spark_mq", charset="UTF-8"'}
        return PlainTextResponse("A password or a token is needed.", 401, challenge)
