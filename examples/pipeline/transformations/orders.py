"""Read the queue `incoming` into a streaming table, and publish large orders into `large`."""

from __future__ import annotations

import os
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

HOME = os.environ["QUEUES"]  # the folder of the queues, an absolute path or a URL


def read(group: str) -> Any:
    """Return a stream of the queue. Each flow reads with a group of its own."""
    spark = SparkSession.active()
    stream = spark.readStream.format("spark_mq").option("consumerGroup", group)
    return stream.load(f"{HOME}/incoming").selectExpr(
        "sequence", "get_json_object(CAST(value AS STRING), '$.amount') AS amount", "value"
    )


@dp.table
def orders() -> Any:
    return read("pipeline-orders").select("sequence", "amount")


dp.create_sink("large", "spark_mq", {"path": f"{HOME}/large"})


@dp.append_flow(target="large")
def publish_large() -> Any:
    return read("pipeline-large").where("CAST(amount AS INT) >= 100").select("value")
