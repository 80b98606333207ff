"""The data source ``spark_mq``: a stream leases, a batch read looks, and writes publish."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_mq.spark.options import ReadOptions, WriteOptions
from spark_mq.spark.peek_reader import PeekReader
from spark_mq.spark.sink import QueueStreamWriter, QueueWriter, check_dataframe
from spark_mq.spark.stream_reader import LeaseReader


class SparkMQDataSource(DataSource):
    """A spark_mq queue as a Spark data source.

    Spark finds it by itself, as the module ``pyspark_mq``, or by :func:`spark_mq.spark.register`,
    and builds one in a Python process for each read and write that it plans.

    Examples
    --------
    >>> stream = spark.readStream.format("spark_mq").option("consumerGroup", "billing")
    ... # doctest: +SKIP
    >>> stream.load("/queues/orders").writeStream.foreachBatch(each)  # doctest: +SKIP
    >>> messages = spark.read.format("spark_mq").load("/queues/orders")  # doctest: +SKIP
    >>> messages.groupBy("state").count().show()  # doctest: +SKIP
    >>> df.select("value").write.format("spark_mq").mode("append").save("/queues/orders")
    ... # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        """Return ``spark_mq``, the name of the format."""
        return "spark_mq"

    def schema(self) -> StructType | str:
        """Return the columns of a read, as DDL if Spark has to parse a ``valueSchema``."""
        return ReadOptions.parse(self.options).columns()

    def reader(self, schema: StructType) -> PeekReader:
        """Return the reader of ``spark.read``, for some columns."""
        return PeekReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> LeaseReader:
        """Return the reader of ``spark.readStream``, which checks options in its first hook."""
        return LeaseReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        """Return the writer of ``df.write``. Raise an error for rows that cannot be published."""
        options = WriteOptions.parse(self.options)
        check_dataframe(schema, overwrite, options)
        return QueueWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:
        """Return the writer of ``df.writeStream``. Raise an error as :meth:`writer`."""
        options = WriteOptions.parse(self.options)
        check_dataframe(schema, overwrite, options)
        return QueueStreamWriter(options)
