"""Found by Spark itself: a top-level module named ``pyspark_*`` with a ``DefaultSource`` is
registered without a call.

``spark.readStream.format("spark_mq")`` works wherever this package is installed for the driver's
Python.
"""

from spark_mq.spark.source import SparkMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
