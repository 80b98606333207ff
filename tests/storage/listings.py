"""Listings of an S3 bucket as they were some time ago, for the faulty proxy: what a store says that answers LIST from a cache."""

from __future__ import annotations

import threading
import time
import urllib.request
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

__all__ = ["StaleListings"]

_NS: Final = "{http://s3.amazonaws.com/doc/2006-03-01/}"
Entry = tuple[str, str, str, str]
"""Key, time of writing, ETag, size."""


class StaleListings:
    """Answers LIST from a snapshot that is renewed once it is `seconds` old; 0: not at all, the store itself answers."""

    def __init__(self) -> None:
        self.endpoint = ""
        self._seconds = 0.0
        self._lock = threading.Lock()
        self._taken: dict[str, tuple[float, list[Entry]]] = {}  # by bucket and first folder

    def set(self, seconds: float) -> None:
        with self._lock:
            self._seconds, self._taken = seconds, {}

    def remember(self, path: str) -> None:
        """Takes the snapshot of a folder now: from here on it grows old."""
        with self._lock:
            self._snapshot(path)

    def answer(self, path: str) -> bytes | None:
        """What LIST says; None for another request, or where the store itself is to answer."""
        split = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(split.query, keep_blank_values=True).items()}
        if not self._seconds or query.get("list-type") != "2":
            return None
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        with self._lock:
            entries = self._snapshot(f"{split.path.strip('/')}/{prefix.partition('/')[0]}")
        return _listing(entries, prefix, after, query.get("delimiter", ""))

    def _snapshot(self, folder: str) -> list[Entry]:
        at, entries = self._taken.get(folder, (0.0, []))
        if folder not in self._taken or time.monotonic() - at > self._seconds:
            entries = _all(self.endpoint, *folder.split("/", 1))
            self._taken[folder] = (time.monotonic(), entries)
        return entries


def _all(endpoint: str, bucket: str, folder: str) -> list[Entry]:
    """All that lies in a folder of a bucket now."""
    found: list[Entry] = []
    token = ""
    while True:
        more = f"&continuation-token={quote(token, safe='')}" if token else ""
        with urllib.request.urlopen(f"{endpoint}/{bucket}?list-type=2&prefix={quote(folder)}/{more}", timeout=30) as reply:
            root = ElementTree.fromstring(reply.read())
        for entry in root.iter(f"{_NS}Contents"):
            key, at, tag, size = (entry.findtext(f"{_NS}{name}") or "" for name in ("Key", "LastModified", "ETag", "Size"))
            found.append((key, at, tag, size))
        token = root.findtext(f"{_NS}NextContinuationToken") or ""
        if not token:
            return found


def _listing(entries: list[Entry], prefix: str, after: str, delimiter: str) -> bytes:
    contents, folders = [], set()
    for key, at, tag, size in entries:
        if not key.startswith(prefix) or key <= after:
            continue
        rest = key[len(prefix) :]
        if delimiter and delimiter in rest:
            folders.add(prefix + rest.split(delimiter, 1)[0] + delimiter)
            continue
        contents.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{at}</LastModified><ETag>{escape(tag)}</ETag><Size>{size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    common = [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(contents)}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
        + "".join(contents + common)
        + "</ListBucketResult>"
    ).encode()
