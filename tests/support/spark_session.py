"""The Spark session of the tests. Starting one takes tens of seconds.

It has Delta, unless its Spark is one that Delta has no JAR for (``make test-spark43``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq.spark import with_delta
from support.marks import without_delta

__all__ = ["new_session", "plan_of", "spark"]


def plan_of(rows: Any) -> str:
    """Return the physical plan of a DataFrame."""
    return str(rows._jdf.queryExecution().executedPlan().toString())


def new_session(warehouse: Path) -> Any:
    """Start a session, which can read and write Delta tables if its Spark has Delta."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        # The session lives for minutes: compiling better code takes longer than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.databricks.delta.snapshotPartitions": "1",
        # An idle query reports its progress each 10 seconds, and some tests wait for it.
        "spark.sql.streaming.noDataProgressEventInterval": "200",
        # Half of what conf/spark-defaults.conf says of it: the packages that Delta drags in and
        # Spark has already.
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
    if without_delta() is None:
        builder = with_delta(builder)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # the deaths that the tests arrange would fill pages
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = new_session(tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()
