"""Share the Spark session of tests/spark."""

from support.spark_session import no_query_survives, spark

__all__ = ["no_query_survives", "spark"]
