"""A payload file that nobody can read for a while costs a stream's messages no delivery, however
often it is restarted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from support.harness import Stream, make_queue, numbered
from support.tables import group_ledger_of, messages_of


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["spark", "python"])
def test_a_stream_that_is_restarted_in_an_outage_delivers_each_message_once(
    spark: Any, tmp_path: Path, reader: str
) -> None:
    queue = make_queue(tmp_path / "queue", max_delivery_attempts=3)
    queue.publish(numbered(4))
    stream = Stream(spark, queue, tmp_path / "checkpoint")
    (file,) = Path(messages_of(queue).path).glob("*.parquet")
    hidden, away, seen = tmp_path / "hidden", [True], list[tuple[str, int]]()

    def process(batch: Any, lease: Any) -> None:
        if away and not file.is_symlink():
            file.rename(hidden)
            file.symlink_to(file)  # to read it fails, and it is not missing
        rows = batch.select("value", "delivery_count").collect()
        seen.extend((bytes(row.value).decode(), row.delivery_count) for row in rows)

    def run() -> None:
        stream.run(stream.group.for_each_batch(process, reader=reader))

    for _ in range(4):  # more often than a message may be delivered
        with pytest.raises(StreamingQueryException):
            run()
    assert {(r.state, r.delivery_count) for r in group_ledger_of(stream.group).current()} == {
        ("available", 0)
    }
    away.clear()
    hidden.rename(file)
    run()
    assert sorted(seen) == [(value, 1) for value in numbered(4)]
    assert stream.group.stats().acked == 4
