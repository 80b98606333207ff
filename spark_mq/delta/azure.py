"""Read what names an account of Azure: connection strings, and the authority of a URI."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

_SUFFIX: Final = "core.windows.net"
_URL: Final = re.compile(
    rf"https://([^/@.?#]+)\.(?:blob|dfs)\.{re.escape(_SUFFIX)}/([^/?#]+)(.*)", re.I | re.S
)
_KEYS: Final = {
    "accountname": "account_name", "accountkey": "account_key",
    "sharedaccesssignature": "sas_key", "blobendpoint": "endpoint",
    "usedevelopmentstorage": "use_emulator",
    "defaultendpointsprotocol": "protocol", "endpointsuffix": "suffix",
}  # fmt: skip


def parse_connection_string(text: str) -> dict[str, str]:
    """Return the options of a connection string. Raise ValueError, which shows no value."""
    parts: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise ValueError('it has a part that is not of the form "Name=value"')
        if key := _KEYS.get(name.strip().lower()):  # the others are of queues, tables and files
            parts[key] = value.strip()
    protocol, suffix = parts.pop("protocol", "https").lower(), parts.pop("suffix", _SUFFIX)
    if parts.pop("use_emulator", "").lower() == "true":
        return {"use_emulator": "true"}
    endpoint = parts.get("endpoint")
    if endpoint is None and (protocol != "https" or suffix.lower() != _SUFFIX):
        endpoint = f"{protocol}://{parts.get('account_name')}.blob.{suffix}"
    if endpoint is not None:
        parts["endpoint"] = endpoint.rstrip("/")
        parts.setdefault("account_name", _account_in_endpoint(endpoint))
        if urlsplit(endpoint).scheme.lower() == "http":
            parts["allow_http"] = "true"
    if not parts.get("account_name"):
        raise ValueError("it names no account. Copy it whole, with AccountName or BlobEndpoint")
    if "account_key" not in parts and "sas_key" not in parts:
        raise ValueError("it has neither AccountKey nor SharedAccessSignature. Copy it whole")
    return parts


def _account_in_endpoint(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    folder = parts.path.strip("/")  # an emulator has the account there
    return folder.partition("/")[0] or (parts.hostname or "").partition(".")[0]


def to_abfss(text: str) -> str:
    """Return the https URL of a blob as a URI that delta-rs knows, too. Keep any other text."""
    match = _URL.fullmatch(text)
    return f"abfss://{match[2]}@{match[1].lower()}.dfs.{_SUFFIX}{match[3]}" if match else text


def account_in_authority(authority: str) -> str | None:
    """Return the account that a URI names after "@", or None."""
    return authority.partition("@")[2].partition(".")[0].lower() or None


def canonical_authority(authority: str, account: str | None) -> tuple[str, str]:
    """Return scheme and authority for all URIs of a container. `account` is of the options."""
    container, at, host = authority.partition("@")
    if at:
        return "abfs", f"{container}@{host.lower().replace('.blob.', '.dfs.', 1)}"
    if account:
        return "abfs", f"{container}@{account.lower()}.dfs.{_SUFFIX}"
    return "az", container
