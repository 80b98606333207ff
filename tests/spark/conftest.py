"""One Spark session for all streaming tests: starting one takes tens of seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Freezer, Stream, make_queue

from spark_mq import Queue


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Half of what conf/spark-defaults.conf says of it: the packages that Delta drags in and Spark has already.
        "spark.jars.excludes": ",".join(
            f"org.apache.{name}"
            for name in (
                "hadoop:hadoop-client-api",
                "hadoop:hadoop-client-runtime",
                "logging.log4j:log4j-api",
                "logging.log4j:log4j-core",
                "logging.log4j:log4j-slf4j2-impl",
            )
        ),
    }
    builder = SparkSession.builder.master("local[2]").appName("spark_mq tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = configure_spark_with_delta_pip(builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # the deaths that the tests arrange would fill pages
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_query_survives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test left running is stopped, and what it froze is let go."""
    yield
    for frozen in Freezer.all:
        frozen.release.set()
    Freezer.all.clear()
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """A queue whose leases last as long as any test: what comes again does so for another reason than time."""
    return make_queue(tmp_path / "queue")


@pytest.fixture
def stream(spark: Any, queue: Queue, tmp_path: Path) -> Stream:
    return Stream(spark, queue, tmp_path / "checkpoint")
