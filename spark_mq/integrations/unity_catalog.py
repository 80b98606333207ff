"""Find a volume or table of a Unity Catalog, and get short-lived credentials for its files."""

from __future__ import annotations

import errno
import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

from spark_mq.delta.storage_options import (
    ALLOW_HTTP_CATALOG,
    CATALOG_TOKENS,
    CATALOG_URLS,
    PROVIDERS,
)
from spark_mq.delta.store_errors import one_line
from spark_mq.errors import InvalidOption, StorageError

_API: Final = "/api/2.1/unity-catalog"
_NAME: Final = re.compile(r"uc://([^/.\s]+\.[^/.\s]+\.[^/.\s]+)(/.*)?", re.IGNORECASE)
_LOCAL: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_TRUE: Final = frozenset(("1", "true", "on", "yes", "y"))

TIMEOUT: Final = 10.0  # seconds until an answer of the catalog
# Seconds before their end when credentials are renewed. obstore asks for new ones then, too.
_MARGIN: Final = 300.0
_PAUSE: Final = 10.0  # seconds from a failed renewal to the next, while the credentials are valid

# What a catalog gives for a provider, and the names of its fields in obstore.
_KINDS: Final = {
    "aws": (
        "aws_temp_credentials",
        {
            "access_key_id": "access_key_id",
            "secret_access_key": "secret_access_key",
            "session_token": "token",
        },
    ),
    "azure": ("azure_user_delegation_sas", {"sas_token": "sas_token"}),
}

_GRANTS: Final = "Ask for WRITE VOLUME or MODIFY on it, and EXTERNAL USE SCHEMA on its schema"
_ADVICE: Final = {
    401: "Its token is wrong or has expired. Give another as databricks_token",
    403: _GRANTS,
    404: _GRANTS,
}

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CatalogServer:
    """The address of a catalog, and the token that it wants."""

    url: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Location:
    """Where the files of a volume or table are, and what gives their credentials."""

    url: str
    credentials: VendedCredentials


class VendedCredentials:
    """Give obstore credentials, and renew them before they expire. Thread-safe.

    `ask` returns an answer of the catalog. It raises OSError.
    """

    def __init__(
        self,
        name: str,
        provider: str,
        ask: Callable[[], Mapping[str, Any]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._name, self._ask, self._now = name, ask, now
        self._kind, self._fields = _KINDS[provider]
        self._lock = threading.Lock()
        self._keys: dict[str, Any] = {}
        self._renew_at = self._expires = -math.inf

    def __call__(self) -> dict[str, Any]:
        """Return current credentials as obstore takes them. Raise OSError if there are none."""
        valid = self._now() < self._expires
        # While they are valid, one thread asks for others and no thread waits for it.
        if self._now() >= self._renew_at and self._lock.acquire(blocking=not valid):
            try:
                if self._now() >= self._renew_at:  # no other thread has renewed them
                    self._renew(valid)
            finally:
                self._lock.release()
        return self._keys

    def secrets(self) -> list[str]:
        """Return what no error may show."""
        return [value for value in self._keys.values() if isinstance(value, str)]

    def _renew(self, valid: bool) -> None:
        now = self._now()
        try:
            self._take(self._ask(), now)
        except OSError as error:
            if not valid:
                raise
            self._renew_at = now + _PAUSE
            text = "the credentials of %s were not renewed, and are valid for %.0f s more: %s"
            _logger.warning(text, self._name, self._expires - now, one_line(error))

    def _take(self, answer: Mapping[str, Any], now: float) -> None:
        given_keys = answer.get(self._kind)
        if not given_keys:
            given = ", ".join(sorted(name for name, value in answer.items() if value))
            text = f"The catalog gave {given or 'nothing'} for {self._name}, and no {self._kind}"
            raise PermissionError(errno.EACCES, text)
        keys = {name: given_keys.get(given) or None for given, name in self._fields.items()}
        # Milliseconds since 1970, by some servers as text. Absent or 0 if they do not expire.
        until = int(answer.get("expiration_time") or 0) / 1000
        # The keys first, because other threads read without the lock.
        self._keys = {**keys, "expires_at": datetime.fromtimestamp(until, UTC) if until else None}
        self._expires = until or math.inf
        self._renew_at = self._expires - min(_MARGIN, (self._expires - now) / 2)


def parse_name(path: str, option: str = "path") -> tuple[str, str]:
    """Return the full name of a volume or table, and the folder below it. Raise InvalidOption."""
    parts = _NAME.fullmatch(path.rstrip("/"))
    if parts is None:
        raise InvalidOption(
            f"Using {option}={path.partition('?')[0]!r} failed: it names no volume or table. Use "
            "the form uc://catalog.schema.volume/folder.",
            option=option,
        )
    return parts[1], parts[2] or ""


def catalog_server(
    options: Mapping[str, str], environment: Mapping[str, str], path: str
) -> CatalogServer:
    """Return the catalog that options name, or else the environment. Raise InvalidOption."""
    given = {name.lower(): str(value) for name, value in options.items()}
    around = {name.lower(): value for name, value in environment.items()}

    def first(*names: str) -> str:
        values = (place.get(name) for place in (given, around) for name in names)
        return next((value for value in values if value), "")

    text = first(*CATALOG_URLS)
    if not text:
        raise InvalidOption(
            f"Using {path} failed: no catalog is named. Give the storage options databricks_host "
            "and databricks_token, or environment variables of these names in capitals.",
            option="databricks_host",
        )
    parts = urlsplit(text if "://" in text else f"https://{text}")
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    plain = first(ALLOW_HTTP_CATALOG).lower() in _TRUE or parts.hostname in _LOCAL
    if parts.scheme != "https" and not (parts.scheme == "http" and plain):
        raise InvalidOption(
            f"Using databricks_host={place} failed: others could read the token on its way. Use "
            f"https, or set {ALLOW_HTTP_CATALOG}=true in a network of your own.",
            option="databricks_host",
        )
    folder = parts.path.rstrip("/").removesuffix(_API)
    return CatalogServer(place + folder, first(*CATALOG_TOKENS) or None)


def locate(path: str, options: Mapping[str, str], environment: Mapping[str, str]) -> Location:
    """Return the place of a path in a catalog. Raise InvalidOption or StorageError."""
    name, folder = parse_name(path)
    server = catalog_server(options, environment, path)
    try:
        place = _securable(server, name)
        place.credentials()
    except OSError as error:
        text = f"opening {path} failed, nothing was changed: {one_line(error)}"
        raise StorageError(text, path=path, landed=False) from error
    return Location(place.url.rstrip("/") + folder, place.credentials)


@lru_cache(maxsize=64)  # the tables of a queue and all handles of a process share credentials
def _securable(server: CatalogServer, name: str) -> Location:
    for kind in ("volume", "table"):
        securable = _request(server, f"/{kind}s/{quote(name, safe='')}", missing_ok=True)
        if securable is not None:
            break
    else:
        raise _refused(
            name,
            f"the catalog at {server.url} has no volume or table of this name, or does not show "
            "it to this token. Create an external volume",
        )
    sort, url = securable.get(f"{kind}_type"), str(securable.get("storage_location"))
    if sort != "EXTERNAL":
        raise _refused(
            name,
            f"it is a {kind} of the type {sort}, and the catalog owns the files of that. Use an "
            f"external {kind}",
        )
    provider = PROVIDERS.get(urlsplit(url).scheme.lower())
    if provider not in _KINDS:
        raise _refused(
            name,
            f"its files are at {url}, for which spark_mq takes no keys of a catalog. Use that path",
        )
    operation = "WRITE_VOLUME" if kind == "volume" else "READ_WRITE"
    wanted = {f"{kind}_id": securable[f"{kind}_id"], "operation": operation}

    def ask() -> Mapping[str, Any]:
        return _request(server, f"/temporary-{kind}-credentials", wanted) or {}

    return Location(url, VendedCredentials(f"uc://{name}", provider, ask))


def _refused(name: str, cause: str) -> InvalidOption:
    return InvalidOption(f"Using uc://{name} failed: {cause}.", option="path")


def _request(
    server: CatalogServer,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    missing_ok: bool = False,
) -> dict[str, Any] | None:
    """Return an answer of the catalog, or None if it has no such thing. Raise OSError."""
    # Here, because it takes a while to load and few processes need it.
    from http.client import HTTPException
    from urllib import error as errors
    from urllib import request

    class _NoRedirects(request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Follow no redirect, because the token is for this server alone."""

    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if server.token:
        headers["Authorization"] = f"Bearer {server.token}"
    data = None if body is None else json.dumps(body).encode()
    asked = request.Request(f"{server.url}{_API}{path}", data, headers)
    try:
        with request.build_opener(_NoRedirects).open(asked, timeout=TIMEOUT) as reply:
            return dict(json.load(reply))
    except errors.HTTPError as error:
        status, said = error.code, _said(error)
    except (OSError, HTTPException, ValueError, TypeError) as error:
        text = f"The catalog at {server.url} gave no answer: {one_line(error)}. Retry"
        raise ConnectionError(errno.EIO, text) from None
    if status == 404 and missing_ok:
        return None
    text = f"The catalog at {server.url} answered {status}{said}"
    text = text.replace(server.token, "***") if server.token else text
    if advice := _ADVICE.get(status):
        raise PermissionError(errno.EACCES, f"{text}. {advice}")
    raise OSError(errno.EIO, f"{text}. Retry")


def _said(error: Any) -> str:
    try:
        answer = json.loads(error.read(10_000))
        return f": {one_line(ValueError(answer.get('message') or answer.get('error_code')))}"
    except (OSError, ValueError, AttributeError):
        return ""
