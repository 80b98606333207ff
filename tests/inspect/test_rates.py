"""The rates of a throughput."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.handles import again, lease

from spark_mq import Message
from spark_mq.testing import ManualClock, memory_queue

START = datetime(2026, 1, 2, 3, tzinfo=UTC)
"""An interval of any length begins here."""


@pytest.mark.parametrize(
    ("elapsed", "every", "rate"),
    [
        (10, "1m", 12.0),
        (60, "1m", 2.0),
        (0.1, "1m", 120.0),  # of one second, or the rate would be of no use
        (-60, "1h", 120.0),  # the clock of another machine is ahead
    ],
)
def test_an_interval_that_has_not_ended_counts_until_now(
    elapsed: float, every: str, rate: float
) -> None:
    clock = ManualClock(START)
    queue = memory_queue(clock)
    queue.publish(["x"] * 120)
    lease(queue, 120).ack()
    look = again(queue, ManualClock(START + timedelta(seconds=elapsed)))
    published, settled = look.throughput(every=every, since="3h").to_pylist()
    assert (published["published_per_second"], published["settled_per_second"]) == (rate, 0)
    assert (settled["published_per_second"], settled["settled_per_second"]) == (0, rate)


def test_a_settled_message_counts_however_it_ended() -> None:
    clock = ManualClock(START)
    queue = memory_queue(clock)
    queue.publish([Message("late", expires_at="1s")] * 6)
    clock.advance("2s")
    dropped = queue.publish(["x"] * 64).sequences[:9]
    queue.group().ensure().discard(dropped)
    held = lease(queue, 55)
    sequences = [message.sequence for message in held.messages]
    held.ack(sequences[:30])
    held.reject(sequences[30:45])
    held.nack(sequences[45:])  # it failed, and isn't settled
    queue.sweep()
    clock.advance("2m")
    table = queue.throughput(every="1m", since="3h")
    assert table.schema == again(queue).throughput(since="1m").schema, "as without a row"
    _, settled = table.to_pylist()
    ends = ("acked", "dead_lettered", "dropped", "expired", "failed")
    assert [settled[name] for name in ends] == [30, 15, 9, 6, 25]
    assert settled["settled_per_second"] == 1
