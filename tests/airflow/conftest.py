"""A queue and Airflow's processes, for tests in Airflow's environment."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow_processes import Airflow
from support.servers import listens

from spark_mq import Queue

ROOT = Path(__file__).parents[2]


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "orders", visibility_timeout="20s")


@pytest.fixture
def airflow(tmp_path: Path, queue: Queue, request: pytest.FixtureRequest) -> Iterator[Airflow]:
    """All but a triggerer, with the file of DAGs that the test module names."""
    made = Airflow(tmp_path / "home", queue)
    try:
        shutil.copy(ROOT / request.module.DAGS, made.home / "dags")
        made.run("db", "migrate")
        if hasattr(request.module, "prepare"):
            request.module.prepare(made)
        made.start("api-server")
        made.until(lambda: listens(made.port))  # a task that starts before would fail
        made.start("scheduler")
        made.start("dag-processor")
        yield made
    finally:
        for process in list(made.running):
            made.kill(process)
