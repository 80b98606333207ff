"""An S3 endpoint on this machine that answers as late as a real one, and counts what it is asked.
moto behind a proxy, a process each.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from support.s3_endpoint import BUCKET, Relay, moto, relay, storage_options

__all__ = ["SlowS3", "slow_s3"]

COUNTS = "/__counts"


class SlowS3:
    """``options``: the storage options to use it; ``root``: its bucket."""

    def __init__(self, url: str) -> None:
        self.url, self.root = url, f"s3://{BUCKET}"
        self.options = storage_options(url)

    def counts(self) -> Counter[str]:
        """Requests so far, by kind: GET, HEAD, PUT, LIST, DELETE."""
        with urllib.request.urlopen(self.url + COUNTS, timeout=30) as reply:
            return Counter(json.load(reply))

    def total(self) -> int:
        """All of them."""
        return self.counts().total()


@contextlib.contextmanager
def slow_s3(seconds: float) -> Iterator[SlowS3]:
    """An endpoint whose every answer takes so many seconds more than moto's own."""
    with (
        moto() as target,
        subprocess.Popen(
            [sys.executable, __file__, target, str(seconds)], stdout=subprocess.PIPE, text=True
        ) as proxy,
    ):
        try:
            assert proxy.stdout is not None
            yield SlowS3(proxy.stdout.readline().strip())
        finally:
            proxy.kill()


class _Handler(Relay):
    seconds = 0.0
    asked: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()

    def serve(self, body: bytes) -> None:
        if self.path == COUNTS:
            self.answer(200, json.dumps(self.asked).encode(), {})
            return
        kind = "LIST" if self.command == "GET" and "list-type=2" in self.path else self.command
        with self.lock:
            self.asked[kind] += 1
        time.sleep(self.seconds)  # the latency itself
        self.answer(*self.forward(body))


if __name__ == "__main__":
    _Handler.seconds = float(sys.argv[2])
    relay(_Handler, sys.argv[1]).serve_forever()
