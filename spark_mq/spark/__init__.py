"""The Spark side: the data source ``spark_mq``, and settling from foreachBatch. Only here is
pyspark imported."""

from __future__ import annotations

from spark_mq.spark.batch_lease import BatchLease
from spark_mq.spark.foreach_batch import for_each_batch
from spark_mq.spark.python_check import check_interpreter
from spark_mq.spark.settle_rows import ack, nack, reject
from spark_mq.spark.source import SparkMQDataSource

__all__ = [
    "BatchLease",
    "SparkMQDataSource",
    "ack",
    "check_interpreter",
    "for_each_batch",
    "nack",
    "register",
    "reject",
]


def register(spark: object) -> None:
    """Registers ``format("spark_mq")`` with a session, after a check that its Python workers can
    load it.

    Not needed where spark_mq is installed for the driver's Python: Spark finds it by itself, as
    ``pyspark_mq``.
    """
    check_interpreter(spark)
    spark.dataSource.register(SparkMQDataSource)  # type: ignore[attr-defined]
