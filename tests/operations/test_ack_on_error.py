"""The policy that acks messages although their handler failed."""

from __future__ import annotations

from typing import Any

import pytest
from support.having import having
from support.queues import Make

from spark_mq import Lease, Queue, ReceivedMessage, Retry


def _fail(_: Any) -> None:
    raise ValueError("no matter")


@pytest.mark.parametrize(("mode", "failed"), [("batch", 1), ("message", 2)])
def test_a_failed_handlers_messages_are_acked(
    queue: Queue, mode: str, failed: int, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish(["a", "b"])
    group = queue.group()
    summary = group.work(_fail, mode=mode, on_error="ack", max_messages=2, until="settled")
    assert summary == having(settled=2, nacked=0, rejected=0, failed=failed)
    assert group.stats() == having(acked=2, dead=0, ready=0, delayed=0)
    assert "no matter" in caplog.text, "the error is in the log"
    despite = "2 messages acked despite the error: 2 dropped" in caplog.text
    assert despite == (mode == "batch")


def test_verdicts_go_before_and_a_returned_failure_is_acked(queue: Queue) -> None:
    first, second, _ = queue.publish(["a", "b", "c"]).sequences

    def handle(_: Lease) -> list[dict[str, Any]]:
        return [{"sequence": first, "outcome": "reject"}, {"sequence": second, "error": "odd"}]

    queue.group().work(handle, mode="batch", on_error="ack", max_messages=3, until="empty")
    assert queue.group().stats() == having(dead=1, acked=2)


def test_a_decision_goes_before(queue: Queue) -> None:
    queue.publish(["later", "bad"])

    def handle(message: ReceivedMessage) -> None:
        if message.text == "later":
            raise Retry(delay="1h")
        raise ValueError("no matter")

    queue.group().work(handle, mode="message", on_error="ack", until="empty")
    assert queue.group().stats() == having(delayed=1, acked=1)


def test_an_ack_after_a_success_still_closes_the_breaker(make: Make) -> None:
    queue = make(breaker_threshold=3)
    queue.publish(["a", "b", "c", "d", "e"])
    handlers = [_fail, _fail, lambda _: None, _fail, _fail]

    def handle(lease: Lease) -> None:
        handlers.pop(0)(lease)

    queue.group().work(handle, mode="batch", on_error="ack", until="empty")
    assert handlers == []
    assert queue.group().stats().breaker == "closed"
