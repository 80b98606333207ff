"""A foreign Delta writer's deliver_at counts like ours, with statistics and without."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.handles import take
from support.queues import Make
from support.tables import add_file, messages_of, parquet_bytes

from spark_mq.testing import ManualClock


@pytest.mark.parametrize("with_statistics", [True, False])
def test_what_a_foreign_writer_delays_is_delayed(
    delta_queue: Make, clock: ManualClock, with_statistics: bool
) -> None:
    queue = delta_queue()
    times = pa.array([clock() + timedelta(seconds=30), None], pa.timestamp("us", "UTC"))
    rows = pa.table({"value": [b"late", b"now"], "deliver_at": times})
    if with_statistics:
        write_deltalake(messages_of(queue).path, rows, mode="append", schema_mode="merge")
    else:
        messages_of(queue).files.write("foreign.parquet", parquet_bytes(rows))
        add_file(queue, "foreign.parquet")
    assert take(queue.group()) == ["now"]
    assert queue.group().stats().delayed == 1
    clock.advance(31)  # readers round up to seconds
    assert take(queue.group()) == ["late"]
