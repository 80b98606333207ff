"""Define the methods of a group that need Spark. Nothing here imports pyspark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from spark_mq.util.clock import Duration
from spark_mq.util.loading import integration


class GroupStreams:
    """The methods of a group that need Spark."""

    def read_stream(self, spark: Any, *, more_groups: Iterable[Any] = (), **options: Any) -> Any:
        """Return a streaming DataFrame that leases the messages of this group. Needs pyspark.

        It is ``spark.readStream.format("spark_mq")`` with the queue, the group, its start and the
        storage options of this handle.

        Parameters
        ----------
        more_groups
            The same group in other queues, which the stream reads, too. Also give them to
            :meth:`for_each_batch`.
        **options
            Further options of the source, such as ``maxMessagesPerTrigger=10_000`` or
            ``valueSchema="id INT"``.

        Raises
        ------
        InvalidOption
            An option is unknown or invalid, or the handle names it already, or a further group has
            another name or other storage options.
        """
        reads = _spark_side("group_reads", "read_stream")
        return reads.read_stream(self, spark, more_groups, options)

    def read(self, spark: Any, **options: Any) -> Any:
        """Return a DataFrame of the messages as this group sees them. It leases nothing.

        It is ``spark.read.format("spark_mq")`` with the queue, the group and the storage options of
        this handle, and has a row for each retained message, with its state. The group must exist.
        Needs pyspark. The options are further ones of the source, such as ``outcomes=True``. Raises
        InvalidOption if one is unknown or invalid, or if the handle names it already.
        """
        return _spark_side("group_reads", "read").read(self, spark, options)

    def for_each_batch(
        self,
        process: Callable[..., Any],
        on_error: str = "nack",
        more_groups: Iterable[Any] = (),
        ack: str = "on_success",
        *,
        reader: str = "spark",
        invalid: str = "keep",
        sweep: Duration | None = None,
    ) -> Callable[[Any, int], None]:
        """Return a foreachBatch function that settles the rest of each batch.

        Needs pyspark. See :func:`spark_mq.spark.for_each_batch` for the parameters.
        """
        each: Callable[[Any, int], None] = _spark_side(
            "for_each_batch", "for_each_batch"
        ).for_each_batch(
            self, process, on_error, more_groups, ack, reader=reader, invalid=invalid, sweep=sweep
        )
        return each


def _spark_side(job: str, method: str) -> ModuleType:
    try:
        module: ModuleType = integration(job)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{method} needs pyspark, which cannot be imported: install spark-mq[spark]",
            name=error.name,
        ) from error
    return module
