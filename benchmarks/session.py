"""The Spark session of the benchmarks: two cores, with Delta and Spark's own Kafka source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SETTINGS = {
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    # What Delta drags in and Spark has already.
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


@contextlib.contextmanager
def session(folder: Path, **settings: str) -> Iterator[Any]:
    """A session, stopped at the end.

    All of a run share one JVM: the first that starts sets its class path and memory.
    """
    from delta import configure_spark_with_delta_pip
    from peers.kafka import CONNECTOR
    from pyspark.sql import SparkSession

    from spark_mq.spark import register

    builder = SparkSession.builder.master("local[2]").appName("spark_mq benchmarks")
    for name, value in {
        **SETTINGS,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = configure_spark_with_delta_pip(builder, [CONNECTOR]).getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        yield spark
    finally:
        spark.stop()
