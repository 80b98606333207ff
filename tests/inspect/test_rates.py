"""The rates of a throughput."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spark_mq.inspect import THROUGHPUT_SCHEMA
from spark_mq.inspect.activity import with_rates
from spark_mq.testing import ManualClock, memory_queue
from spark_mq.util.clock import SECOND

MINUTE = 60 * SECOND


def rates(now: int, length: int = MINUTE, **counts: int) -> tuple[float, float]:
    """The rates of the interval that begins at 0."""
    row = with_rates(counts, 0, length, now)
    return row["published_per_second"], row["settled_per_second"]


def test_a_rate_counts_publishes_and_all_that_ended() -> None:
    assert rates(MINUTE, published=120) == (2.0, 0.0)
    ended = {"acked": 30, "dead_lettered": 15, "dropped": 9, "expired": 6}
    assert rates(MINUTE, **ended) == (0.0, 1.0)
    assert rates(MINUTE, leased=60, failed=60) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("now", "length", "rate"),
    [
        (10 * SECOND, MINUTE, 12.0),
        (MINUTE, MINUTE, 2.0),
        (99 * MINUTE, MINUTE, 2.0),
        (SECOND // 10, MINUTE, 120.0),  # of one second, or the rate would be of no use
        (0, MINUTE, 120.0),
        (-MINUTE, MINUTE, 120.0),  # the clock of another machine is ahead
        (SECOND // 10, SECOND // 2, 240.0),
    ],
)
def test_an_interval_that_has_not_ended_counts_until_now(
    now: int, length: int, rate: float
) -> None:
    assert rates(now, length, published=120)[0] == rate
    assert rates(now, length, acked=120)[1] == rate


def test_a_row_has_all_columns_of_the_schema() -> None:
    assert ["at", "consumer_group", *with_rates({}, 0, 1, 1)] == THROUGHPUT_SCHEMA.names


def test_the_last_interval_has_the_rate_of_its_time_so_far() -> None:
    clock = ManualClock(datetime(2026, 1, 2, 3, tzinfo=UTC))
    queue = memory_queue(clock=clock)  # its commits have the time of this clock
    queue.publish([str(n) for n in range(720)])
    lease = queue.group("g").lease("w", max_messages=600, visibility_timeout="12h")
    lease.ack([one.sequence for one in lease.messages[:360]])
    clock.advance("30s")
    published, settled = queue.throughput(every="1h", since="1h").to_pylist()
    assert (published["published_per_second"], published["settled_per_second"]) == (24.0, 0.0)
    assert (settled["published_per_second"], settled["settled_per_second"]) == (0.0, 12.0)
    clock.advance("2h")
    published, settled = queue.throughput(every="1h", since="3h").to_pylist()
    assert published["published_per_second"] == 0.2
    assert settled["settled_per_second"] == 0.1
