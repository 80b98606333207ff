"""A Spark session for queues in an object store, with the clock of the stories.

It has no JAR for a store: the source and the sink bring their own access.
"""

from faulty_store import proxy
from support.queues import clock
from support.spark_session import spark

__all__ = ["clock", "proxy", "spark"]
