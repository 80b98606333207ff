"""Several leases in one batch, and batches that for_each_batch is not the one to settle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.harness import Stream, make_queue, numbered, values


@pytest.fixture
def pair(spark: Any, tmp_path: Path) -> tuple[Stream, Stream]:
    """Streams of two queues, with messages in both, and a checkpoint for their union."""
    streams = tuple(
        Stream(spark, make_queue(tmp_path / name), tmp_path / "checkpoint")
        for name in ("one", "two")
    )
    for stream, first in zip(streams, (0, 3), strict=True):
        stream.queue.publish(numbered(6)[first : first + 3])
    return streams[0], streams[1]


@pytest.mark.slow
def test_a_batch_of_a_union_that_reads_one_queue_settles_only_that_ones_lease(
    pair: tuple[Stream, Stream],
) -> None:
    """The other's stream stands at a batch that is done, and maybe was a replay: neither is this
    batch's affair.
    """
    one, two = pair
    leases: list[tuple[str, ...]] = []

    def process(batch: Any, lease: Any) -> None:
        leases.append(lease.lease_ids)
        if len(leases) == 1:
            two.queue.publish("006")
        elif len(leases) == 2:
            assert values(batch) == ["006"]
            assert lease.delta_options["txnVersion"] == "2"

    each = one.group.for_each_batch(process, on_error="raise", more_groups=[two.group])
    one.run(each, frame=one.frame().union(two.frame()))
    one.run(each, frame=one.frame().union(two.frame()))
    assert [len(ids) for ids in leases] == [2, 1]
    assert (one.group.stats().acked, two.group.stats().acked) == (3, 4)
