"""A stream of a group with a rate limit."""

from __future__ import annotations

from typing import Any

import pytest
from support.harness import Stream

from spark_mq import Queue


@pytest.mark.slow
def test_a_query_over_what_is_there_waits_for_the_limit(stream: Stream, queue: Queue) -> None:
    group = queue.group("g")
    group.configure(rate_limit="20/s", rate_burst="500ms")
    queue.publish([str(n) for n in range(25)])
    sizes: list[int] = []

    def process(batch: Any, lease: Any) -> None:
        sizes.append(batch.count())

    stream.settle_with(process)
    assert group.stats().acked == 25
    assert sum(sizes) == 25
    assert max(sizes) <= 10
