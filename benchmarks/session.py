"""The Spark session of the benchmarks: two cores, with Delta and Spark's own Kafka source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "1",
}


@contextlib.contextmanager
def session(folder: Path, **settings: str) -> Iterator[Any]:
    """A session, stopped at the end.

    All of a run share one JVM: the first that starts sets its class path and memory. So Delta's
    settings are given to each, because `spark_mq.spark.session` adds them to the first one only.
    """
    from peers.kafka import CONNECTOR

    from spark_mq import spark
    from spark_mq.spark.spark_session import delta_settings

    own = {"spark.jars.packages": CONNECTOR, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    started = spark.session(
        "spark_mq benchmarks", delta_settings({**SETTINGS, **own, **settings}, {}), quiet=True
    )
    try:
        started.sparkContext.setLogLevel("ERROR")
        yield started
    finally:
        started.stop()
