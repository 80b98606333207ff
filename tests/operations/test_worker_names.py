"""A worker's name is a label. Its process tells it from all others."""

from __future__ import annotations

import logging
import re

import pytest
from support.handles import again, lease
from support.people import another_process
from support.tables import group_ledger_of

from spark_mq import Queue
from spark_mq.testing import ManualClock, memory_queue

BUSY = "last_attempt: a message that may end its worker is leased alone"


def test_all_workers_of_a_process_wait_and_the_group_says_why(clock: ManualClock) -> None:
    queue = memory_queue(clock, max_delivery_attempts=2, clock_skew="0s", visibility_timeout="60s")
    group = queue.group()
    queue.publish(["suspect", "suspect"])
    with another_process("killed"):
        for _ in range(2):
            lease(queue, 1)
        clock.advance(61)
        group.expire()
    queue.publish(["c", "d"])
    last = lease(queue, 1)
    for handle in (group, again(queue).group()):
        for name in ("w", "other", None):
            assert handle.lease(name) is None
        assert handle.blocked_because == BUSY
    with another_process("another"):
        assert group.blocked_because == ""
    last.ack()
    assert group.blocked_because == ""
    assert group.lease("other").messages[0].delivery_count == 2


def test_everybody_sees_only_the_name(clock: ManualClock) -> None:
    """Most views are in tests/cli/views.txt."""
    queue = memory_queue(clock, clock_skew="0s", visibility_timeout="60s", retention="10s")
    queue.publish(["a", "b"])
    group = queue.group()
    mine = group.lease("label", max_messages=2)
    (held,) = group_ledger_of(group).current()
    assert re.fullmatch(r"\w{10}~label", held.worker_id)
    clock.advance(30)
    (blocker,) = queue.blockers()
    assert (blocker.blocks, blocker.worker_id) == ("trim", "label")
    clock.advance(31)
    group.expire()
    assert [error.error for error in group.last_errors()] == [
        f"lease {mine.lease_id} of label expired"
    ]


def test_the_log_names_the_workers_whose_leases_expired(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish([str(number) for number in range(1_500)])
    group = queue.group("billing")
    group.lease("one", max_messages=1_000)
    group.lease("two", max_messages=200)
    clock.advance("2h")
    with caplog.at_level(logging.WARNING, logger="spark_mq"):
        group.lease("three")
        group.lease("four")
    lines = [record.getMessage() for record in caplog.records if "expired" in record.getMessage()]
    assert lines == [
        "group billing: the leases of one, two expired, with 1,200 messages. Their workers died, "
        "hung, or did not reach the store"
    ]
