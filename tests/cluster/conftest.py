"""A standalone cluster and a session on it, for all tests here.

They run with --cluster only: they take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session", name="cluster")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from support.cluster import cluster

    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def spark(cluster: Any) -> Iterator[Any]:
    """A driver of the cluster that speculates as soon as it may."""
    from pyspark.sql import SparkSession
    from support.gates import GatedSource

    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.pythonUDF.arrow.enabled": "false",
        "spark.task.maxFailures": "8",  # tests kill many a one
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "200ms",
    }
    builder = SparkSession.builder.master(cluster.url).appName("spark_mq on a cluster")
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # the deaths that the tests arrange would fill pages
    session.dataSource.register(GatedSource)
    yield session
    session.stop()
