"""A catalog whose keys work for ten seconds, and a Spark session. With --catalog only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.spark_session import spark
from unity_server import UnityServer, unity_server

__all__ = ["spark", "unity"]


@pytest.fixture(scope="session")
def unity() -> Iterator[UnityServer]:
    with unity_server(life=10) as server:
        yield server
