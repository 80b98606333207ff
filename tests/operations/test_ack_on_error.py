"""The policy that acks messages although their handler failed."""

from __future__ import annotations

from typing import Any

import pytest
from support.having import having
from support.working import fail

from spark_mq import Lease, Queue


@pytest.mark.parametrize(("mode", "failed"), [("batch", 1), ("message", 2)])
def test_a_failed_handlers_messages_are_acked(
    queue: Queue, mode: str, failed: int, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish(["a", "b"])
    group = queue.group()
    summary = group.work(fail, mode=mode, on_error="ack", max_messages=2, until="settled")
    assert summary == having(settled=2, nacked=0, rejected=0, failed=failed)
    assert group.stats() == having(acked=2, dead=0, ready=0, delayed=0)
    assert "boom" in caplog.text, "the error is in the log"
    despite = "2 messages acked despite the error: 2 dropped" in caplog.text
    assert despite == (mode == "batch")
    assert caplog.text.count("despite the error") == 1, "the others are counted"


def test_verdicts_go_before_and_a_returned_failure_is_acked(queue: Queue) -> None:
    first, second, _ = queue.publish(["a", "b", "c"]).sequences

    def handle(_: Lease) -> list[dict[str, Any]]:
        return [{"sequence": first, "outcome": "reject"}, {"sequence": second, "error": "odd"}]

    queue.group().work(handle, mode="batch", on_error="ack", max_messages=3, until="empty")
    assert queue.group().stats() == having(dead=1, acked=2, unsettled=1)
