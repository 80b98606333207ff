"""Provide the data source and the settle functions, the only users of pyspark.

Only this package imports pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq.util.loading import lazy_names

if TYPE_CHECKING:
    from spark_mq.spark.batch_lease import BatchLease
    from spark_mq.spark.delta_session import with_delta
    from spark_mq.spark.foreach_batch import for_each_batch
    from spark_mq.spark.listener import SparkMQListener, StreamProgress
    from spark_mq.spark.python_check import check_interpreter
    from spark_mq.spark.settle_rows import ack, nack, reject
    from spark_mq.spark.shutdown import on_sigterm, stop_query
    from spark_mq.spark.source import SparkMQDataSource

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
    "stop_query",
    "with_delta",
]

# The module of each public name. It is loaded at first use, because Spark's Python workers load
# this package too and need none of them.
_MODULES = {
    "BatchLease": "batch_lease",
    "SparkMQDataSource": "source",
    "SparkMQListener": "listener",
    "StreamProgress": "listener",
    "ack": "settle_rows",
    "check_interpreter": "python_check",
    "for_each_batch": "foreach_batch",
    "nack": "settle_rows",
    "on_sigterm": "shutdown",
    "reject": "settle_rows",
    "stop_query": "shutdown",
    "with_delta": "delta_session",
}

__getattr__, __dir__ = lazy_names(globals(), _MODULES)


def register(spark: object) -> None:
    """Register ``format("spark_mq")`` and the table functions with a session.

    The functions are ``spark_mq_stats(path)``, ``spark_mq_leases(path)``,
    ``spark_mq_trace(path, sequence)`` and ``spark_mq_history(path)``.

    If spark_mq is installed for the driver's Python, Spark finds the source by itself, as
    ``pyspark_mq``. It does not find the table functions.

    Parameters
    ----------
    spark
        The session.

    Raises
    ------
    InvalidOption
        The Python of the session's workers cannot load spark_mq. This is checked first.

    Examples
    --------
    >>> register(spark)  # doctest: +SKIP
    """
    from spark_mq.spark.python_check import check_interpreter
    from spark_mq.spark.source import SparkMQDataSource
    from spark_mq.spark.tables import register_tables

    check_interpreter(spark)
    spark.dataSource.register(SparkMQDataSource)  # type: ignore[attr-defined]
    register_tables(spark)
