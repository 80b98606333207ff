"""Visit the page with the cookie of an earlier visit, or by following every link."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

from starlette.testclient import TestClient

__all__ = ["after_a_visit", "crawl"]


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
