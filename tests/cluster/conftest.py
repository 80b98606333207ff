"""A standalone cluster and a session on it, for all tests here.

They run with --cluster only: they take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.spark_session import new_session


@pytest.fixture(scope="session", name="cluster")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from spark_cluster import cluster

    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def spark(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A driver of the cluster that speculates as soon as it may."""
    from gates import GatedSource

    settings = {
        "spark.master": cluster.url,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.execution.pythonUDF.arrow.enabled": "false",
        "spark.task.maxFailures": "8",  # tests kill many a one
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "200ms",
    }
    session = new_session(tmp_path_factory.mktemp("warehouse"), settings)
    session.dataSource.register(GatedSource)
    yield session
    session.stop()
