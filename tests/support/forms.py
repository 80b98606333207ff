"""A visitor of the page who has been there before."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

__all__ = ["after_a_visit"]


def after_a_visit(client: TestClient, **query: Any) -> dict[str, Any]:
    """Return parameters, after a visit from which the client has the cookie of its session."""
    assert client.get("/").status_code == 200
    return query
