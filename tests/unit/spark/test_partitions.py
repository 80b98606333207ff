"""How a batch is cut into partitions."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import LEASED, Range
from spark_mq.spark.partitions import QueuePlan, SlicePartition, cut_all


def plan(queue: str, sizes: list[int]) -> QueuePlan:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return QueuePlan(
        queue,
        [
            (
                FileSlice(f"{at}.parquet", 0, rows, first, 0, 100 * rows),
                Range(first, first + rows - 1, LEASED, message_count=rows),
            )
            for at, (rows, first) in enumerate(zip(sizes, starts, strict=True))
        ],
    )


@given(
    queues=st.lists(st.lists(st.integers(1, 40), max_size=4), min_size=1, max_size=3),
    at_least=st.integers(1, 50),
)
def test_a_batch_has_at_least_min_partitions_of_nearly_equal_size_in_order(
    queues: list[list[int]], at_least: int
) -> None:
    plans = [plan(f"/q/{at}", sizes) for at, sizes in enumerate(queues)]
    parts = cast(list[SlicePartition], cut_all(plans, {}, at_least))
    assert len(parts) >= min(at_least, sum(map(sum, queues)))
    for at, sizes in enumerate(queues):
        mine = [part.pieces for part in parts if part.queue == f"/q/{at}"]
        rows = [sum(piece.rows for piece, _ in pieces) for pieces in mine]
        assert not rows or max(rows) - min(rows) <= 1
        assert min(rows, default=1) > 0
        read = [
            s
            for pieces in mine
            for piece, _ in pieces
            for s in range(piece.first, piece.first + piece.rows)
        ]
        assert read == list(range(sum(sizes)))
