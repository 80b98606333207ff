"""What ``for_each_batch`` hands over, beside what the source's own tasks give."""

from __future__ import annotations

from typing import Any

from support.harness import Stream
from support.spark_session import is_read_by_spark


def read_twice(
    stream: Stream, *, by_spark: bool | None, frame: Any = None, read: bool = False, **options: Any
) -> list[list[Any]]:
    """Return the rows of each batch, or of its ``lease.read()``, which are those of the source.

    Spark's own reader gives all of them, or none, or with None any.
    """
    own, batches = list[Any](), list[list[Any]]()

    def process(batch: Any, lease: Any) -> None:
        rows = lease.read().orderBy("sequence") if read else batch
        assert rows.schema == own[-1].schema
        assert by_spark in (None, is_read_by_spark(rows))
        batches.append(rows.collect())
        assert batches[-1] == own[-1].collect()

    each = stream.group.for_each_batch(process, on_error="raise", **options)

    def keep(batch: Any, batch_id: int) -> None:
        own.append(batch)
        each(batch, batch_id)

    stream.run(keep, frame=frame)
    return batches
