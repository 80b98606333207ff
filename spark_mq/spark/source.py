"""The data source ``spark_mq``: a stream leases, a batch read looks, and writes publish."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_mq.spark.options import ReadOptions, WriteOptions
from spark_mq.spark.peek_reader import PeekReader
from spark_mq.spark.schema import read_schema
from spark_mq.spark.sink import QueueStreamWriter, QueueWriter, check_dataframe
from spark_mq.spark.stream_reader import LeaseReader

__all__ = ["SparkMQDataSource"]


class SparkMQDataSource(DataSource):
    """A spark_mq queue as a Spark data source.

    Spark finds it by itself, as the module ``pyspark_mq``, or by :func:`spark_mq.spark.register`.
    It builds one in a Python process for each read and write that it plans. Then it calls one of
    the methods below.

    Examples
    --------
    Lease, process and ack in a stream:

    >>> stream = spark.readStream.format("spark_mq").option("consumerGroup", "billing")
    ... # doctest: +SKIP
    >>> stream.load("/queues/orders").writeStream.foreachBatch(each)  # doctest: +SKIP

    Look without leasing:

    >>> messages = spark.read.format("spark_mq").load("/queues/orders")  # doctest: +SKIP
    >>> messages.groupBy("state").count().show()  # doctest: +SKIP

    Publish:

    >>> df.select("value").write.format("spark_mq").mode("append").save("/queues/orders")
    ... # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        """Return ``spark_mq``, the name of the format. Spark asks once, when it registers it."""
        return "spark_mq"

    def schema(self) -> StructType:
        """Return the columns of a read. Spark asks once for each ``load`` without ``.schema``.

        Returns
        -------
        StructType
            Has one more column, ``queue``, if the path is a list, and two more, ``data`` and
            ``data_error``, with the option ``valueSchema`` or ``valueFormat``. The option
            ``outcomes`` adds ``outcome`` and ``settled_at``.

        Raises
        ------
        InvalidOption
            An option is unknown or invalid.
        """
        options = ReadOptions.parse(self.options)
        return read_schema(
            options.several,
            options.value_schema,
            options.value_format,
            outcomes=options.outcomes,
        )

    def reader(self, schema: StructType) -> PeekReader:
        """Return the reader of ``spark.read``. Spark calls this once for each plan.

        Parameters
        ----------
        schema
            The columns to read, which are some of :meth:`schema`.

        Raises
        ------
        InvalidOption, InvalidSchema
            An option or a column is unknown or invalid.
        """
        return PeekReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> LeaseReader:
        """Return the reader of ``spark.readStream``.

        Spark calls this twice for each run of a query, in the process of its hooks and in one that
        pickles the reader for the tasks. The first hook checks options and columns.

        Parameters
        ----------
        schema
            The columns to read, which are some of :meth:`schema`.
        """
        return LeaseReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        """Return the writer of ``df.write``. Spark calls this once for each write.

        Parameters
        ----------
        schema
            The columns of the DataFrame.
        overwrite
            Whether the mode is "overwrite".

        Raises
        ------
        InvalidOption
            The mode is not append, or an option is unknown or invalid.
        InvalidSchema
            The DataFrame cannot be published.
        NotAQueue
            There is no queue at the path.
        """
        options = WriteOptions.parse(self.options)
        check_dataframe(schema, overwrite, options)
        return QueueWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:
        """Return the writer of ``df.writeStream``.

        Spark calls this twice for each batch: for its tasks and for its commit. Parameters and
        errors are those of :meth:`writer`, and the options of a producer are refused.
        """
        options = WriteOptions.parse(self.options)
        check_dataframe(schema, overwrite, options)
        return QueueStreamWriter(options)
