"""A queue, for tests in Airflow's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq import Queue


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "orders", visibility_timeout="20s")
