"""The token of the page's forms."""

from __future__ import annotations

import re
from typing import Any

from starlette.testclient import TestClient

__all__ = ["with_token"]


def with_token(client: TestClient, **query: Any) -> dict[str, Any]:
    """Return parameters as a form of the page sends them."""
    text = client.get("/letters/orders").text
    found = re.search(r'name="csrf" value="([^"]*)"', text)
    assert found, text
    return {**query, "csrf": found[1]}
