"""A proxy in front of fake-gcs-server that adds XML uploads, which obstore sends.

The server has only the JSON API for uploads, which is as atomic: ``ifGenerationMatch`` in the query
is the header ``x-goog-if-generation-match``. Its XML listings ignore ``start-after`` and have ETags
without quotes, and it answers a range of an empty file with an invalid one.
"""

from __future__ import annotations

import html
import json
import re
import uuid
from typing import ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from .relays import Relay

Reply = tuple[int, bytes, dict[str, str]]


class GcsProxy(Relay):
    parts: ClassVar[dict[str, dict[int, bytes]]] = {}
    """The parts of each unfinished upload."""

    def serve(self, body: bytes) -> None:
        target = urlsplit(self.path)
        asked = parse_qs(target.query, keep_blank_values=True)
        _, bucket, *name = target.path.split("/", 2)
        if self.command in ("PUT", "POST") and name and bucket not in ("storage", "upload"):
            reply = self.upload(bucket, unquote(name[0]), asked, body)
        else:
            reply = self.forward(body)
            if "list-type" in asked:
                reply = self.listing(asked.get("start-after", [""])[0], reply)
            elif reply[2].get("Content-Range") == "bytes 0--1/0":
                reply = 416, b"", {}
        self.answer(*reply)

    def upload(self, bucket: str, name: str, asked: dict[str, list[str]], body: bytes) -> Reply:
        """Do what an XML upload asks, at once or in parts."""
        if "uploads" in asked:
            upload = uuid.uuid4().hex
            self.parts[upload] = {}
            return 200, _xml("InitiateMultipartUploadResult", "UploadId", upload), {}
        if "partNumber" in asked:
            number = int(asked["partNumber"][0])
            self.parts[asked["uploadId"][0]][number] = body
            return 200, b"", {"ETag": f'"{number}"'}
        if "uploadId" not in asked:
            return self.put(bucket, name, body)
        parts = self.parts.pop(asked["uploadId"][0])
        status, _, headers = self.put(bucket, name, b"".join(parts[n] for n in sorted(parts)))
        etag = headers.get("ETag", "")
        return status, _xml("CompleteMultipartUploadResult", "ETag", etag), headers

    def put(self, bucket: str, name: str, body: bytes) -> Reply:
        query = f"uploadType=media&name={quote(name, safe='')}"
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None:
            query += f"&ifGenerationMatch={wanted}"
        self.command, self.path = "POST", f"/upload/storage/v1/b/{bucket}/o?{query}"
        self.headers.replace_header("Content-Length", str(len(body)))
        status, data, headers = self.forward(body)
        if status == 200:
            headers["ETag"] = f'"{json.loads(data)["etag"]}"'
        return status, data, headers

    @staticmethod
    def listing(start: str, reply: Reply) -> Reply:
        """Quote a listing's ETags, and leave out what it has up to a name."""
        status, data, headers = reply

        def kept(found: re.Match[str]) -> str:
            (key,) = re.findall(r"<Key>(.*?)</Key>", found[0])
            text = re.sub(r"<ETag>(.*?)</ETag>", r'<ETag>"\1"</ETag>', found[0])
            return text if html.unescape(key) > start else ""

        text = re.sub(r"<Contents>.*?</Contents>", kept, data.decode(), flags=re.S)
        return status, text.encode(), headers


def _xml(outer: str, inner: str, text: str) -> bytes:
    return f"<{outer}><{inner}>{text}</{inner}></{outer}>".encode()
