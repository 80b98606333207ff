"""A Spark Connect server, a process of its own, and a session of it.

With --connect only: `make test-suite SUITE=connect` has the packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.spark_session import no_query_survives, spark_class

__all__ = ["no_query_survives", "server", "spark"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Connect server."""
    from support.servers import free_port

    home = tmp_path_factory.mktemp("server")
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": home / "warehouse",
    }
    arguments = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    with spark_class(
        "org.apache.spark.deploy.SparkSubmit", "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", "local[2]", *arguments, "spark-internal", port=port, log=home / "log",
    ):  # fmt: skip
        yield f"sc://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def spark(server: str) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(server).getOrCreate()
    yield session
    session.stop()
