"""Visit the page: by a client, with the cookie of an earlier visit, or by every link."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.interfaces.web import Access, HealthLimits, create_app

__all__ = ["after_a_visit", "client_of", "crawl"]


def client_of(
    place: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    health: Mapping[str, Any] | None = None,
    **access: Any,
) -> TestClient:
    """Return a client of the page of a queue or of all below a folder, by default as alice."""
    monitor = QueueMonitor(str(place), storage_options, clock=clock)
    app = create_app(monitor, Access(**{"user": "alice", **access}), HealthLimits(**health or {}))
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


def after_a_visit(client: TestClient, **query: Any) -> dict[str, Any]:
    """Return parameters, after a visit from which the client has the cookie of its session."""
    assert client.get("/").status_code == 200
    return query


def crawl(client: TestClient) -> Iterator[tuple[str, str]]:
    """Yield the address and the HTML of each page and part that links lead to.

    Of the many forms for a setting it looks at one in each group.
    """
    wanted, seen = ["/"], set[str]()
    while wanted:
        address = wanted.pop()
        if address in seen or re.match(r"/static/|.*&setting=(?!sink$)", address):
            continue
        seen.add(address)
        answer = client.get(address)
        assert answer.status_code == 200, (address, answer.text)
        yield address, answer.text
        links = re.findall(r'(?:href|hx-get)="(/[^"]*)"', answer.text)
        wanted += map(html.unescape, links)
