"""Provide the data source and the settle functions, the only users of pyspark.

Only this package imports pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq.util.loading import lazy_names

if TYPE_CHECKING:
    from spark_mq.spark.batch_lease import BatchLease
    from spark_mq.spark.foreach_batch import for_each_batch
    from spark_mq.spark.listener import SparkMQListener, StreamProgress
    from spark_mq.spark.settle_rows import ack, nack, reject
    from spark_mq.spark.shutdown import on_sigterm, stop_query
    from spark_mq.spark.source import SparkMQDataSource
    from spark_mq.spark.spark_session import check_interpreter, register, session

__all__ = [
    "BatchLease",
    "SparkMQDataSource",
    "SparkMQListener",
    "StreamProgress",
    "ack",
    "check_interpreter",
    "for_each_batch",
    "nack",
    "on_sigterm",
    "register",
    "reject",
    "session",
    "stop_query",
]

# The module of each public name. It is loaded at first use, because Spark's Python workers load
# this package too and need none of them.
_MODULES = {
    "BatchLease": "batch_lease",
    "SparkMQDataSource": "source",
    "SparkMQListener": "listener",
    "StreamProgress": "listener",
    "ack": "settle_rows",
    "check_interpreter": "spark_session",
    "for_each_batch": "foreach_batch",
    "nack": "settle_rows",
    "on_sigterm": "shutdown",
    "register": "spark_session",
    "reject": "settle_rows",
    "session": "spark_session",
    "stop_query": "shutdown",
}

__getattr__, __dir__ = lazy_names(globals(), _MODULES)
