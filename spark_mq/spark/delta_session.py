"""Add Delta Lake to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["with_delta"]

_INSTALL = "Run: pip install 'spark-mq[spark,delta]'"


def with_delta(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Return the builder of a session, with Delta Lake for SQL, time travel and sinks.

    The first session downloads Delta's JARs from Maven. Streams, sinks and batch reads of queues
    need no Delta in the session.

    Parameters
    ----------
    builder
        The builder of a classic session, which has not started.

    Returns
    -------
    SparkSession.Builder
        The same builder.

    Raises
    ------
    InvalidOption
        Delta Lake has no JAR for this version of Spark, or delta-spark is not installed. The error
        names the fix.

    Examples
    --------
    >>> spark = with_delta(SparkSession.builder).getOrCreate()  # doctest: +SKIP
    """
    from pyspark import __version__ as version

    if not version.startswith("4.2."):
        raise InvalidOption(
            f"Delta Lake 4.4.0 has no JAR for Spark {version}, only for 4.2. {_INSTALL}, which "
            "brings pyspark 4.2. Or leave Delta out: only SQL on a queue's tables and Delta sinks "
            "need it",
            option="pyspark",
            value=version,
        )
    try:
        from delta import configure_spark_with_delta_pip
    except ImportError as missing:
        raise InvalidOption(
            f"Delta in Spark needs delta-spark, which is not installed. {_INSTALL}",
            option="delta-spark",
            value=None,
        ) from missing
    for name, value in (
        ("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"),
        ("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"),
    ):
        builder = builder.config(name, value)
    return configure_spark_with_delta_pip(builder)
