"""A proxy in front of a store that keeps its connections, delays each request, and counts by kind.

One process with one loop. Each connection of a client has one of its own to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

__all__ = ["counts", "delayed"]

COUNTS = "/__counts"
PLACES = (
    (r"list-type=2.*prefix=[^&]*_requests", "requests"),
    (r"list-type=2.*prefix=[^&]*_delta_log", "log"),
    (r"/_requests/", "requests"),
    (r"/_delta_log/\d+\.json", "log"),
    (r"/_delta_log/", "checkpoint"),
    (r"\.parquet", "data"),
)
"""What a path is, by the first pattern that it has."""
EXPECTS = re.compile(rb"(?im)^expect: *100-continue\r\n")


@contextlib.contextmanager
def delayed(target: str, seconds: float) -> Iterator[str]:
    """The address of a proxy, in a process of its own."""
    command = [sys.executable, __file__, target, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            yield proxy.stdout.readline().strip()
        finally:
            proxy.kill()


def counts(url: str) -> Counter[str]:
    """Requests so far, by method, table and what was asked for."""
    with urllib.request.urlopen(url + COUNTS, timeout=30) as reply:
        return Counter(json.load(reply))


def kind(method: str, path: str) -> str:
    path = unquote(path)
    table = re.search(r"\b(leases|messages|commits|history)\b", path)
    what = next((name for pattern, name in PLACES if re.search(pattern, path)), "other")
    if method == "GET" and "list-type=2" in path:
        method = "LIST"
    return f"{method} {table[1] if table else 'queue'} {what}"


async def _message(
    reader: asyncio.StreamReader, *, head: bool = False, sender: asyncio.StreamWriter | None = None
) -> tuple[bytes, bytes]:
    """Read one message: its lines up to the empty one, and its body as it was sent.

    A sender that asks whether to continue gets its answer here, and its receiver is not asked.
    """
    lines = await reader.readuntil(b"\r\n\r\n")
    if sender is not None and EXPECTS.search(lines):
        lines = EXPECTS.sub(b"", lines)
        sender.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    lower = lines.lower()
    if head or lines.startswith((b"HTTP/1.1 204", b"HTTP/1.1 304")):
        return lines, b""
    if b"transfer-encoding: chunked" in lower:
        body = b""
        while True:
            size = await reader.readuntil(b"\r\n")
            body += size + await reader.readexactly(int(size.split(b";")[0], 16) + 2)
            if size.strip() == b"0":
                return lines, body
    length = re.search(rb"\r\ncontent-length: *(\d+)", lower)
    return lines, await reader.readexactly(int(length[1])) if length else b""


async def _serve(target: str, seconds: float) -> None:
    seen: Counter[str] = Counter()
    parts = urlsplit(target)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                lines, body = await _message(reader, sender=writer)
                method, path, _ = lines.split(b" ", 2)
                if path == COUNTS.encode():
                    data = json.dumps(seen).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data))
                    writer.write(data)
                    continue
                seen[kind(method.decode(), path.decode())] += 1
                await asyncio.sleep(seconds)
                if server is None:
                    server = await asyncio.open_connection(parts.hostname, parts.port)
                server[1].write(lines + body)
                answer = await _message(server[0], head=method == b"HEAD")
                writer.write(b"".join(answer))
                await writer.drain()
        for one in (writer, server and server[1]):
            if one:
                one.close()

    proxy = await asyncio.start_server(client, "127.0.0.1", 0, backlog=1_000, limit=2**20)
    print(f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}", flush=True)
    await proxy.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2])))
