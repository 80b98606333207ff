"""Share the Spark session of tests/spark."""

from support.spark_session import spark

__all__ = ["spark"]
