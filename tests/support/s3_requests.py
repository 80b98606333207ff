"""Count the requests to an S3 endpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .s3_endpoint import Relay, serving

__all__ = ["Requests", "counting"]

Requests = list[tuple[str, str, dict[str, str]]]
"""Method, path and headers of each request."""


@contextlib.contextmanager
def counting(endpoint: str) -> Iterator[tuple[str, Requests]]:
    """The address of a proxy in front of an endpoint, and the requests that went through."""
    seen: Requests = []

    class Counting(Relay):
        def serve(self, body: bytes) -> None:
            seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            self.answer(*self.forward(body))

    with serving(Counting, endpoint) as url:
        yield url, seen
