"""The policy that acks messages although their handler failed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.queues import Make

from spark_mq import Lease, Queue, ReceivedMessage, Retry


def _fail(_: Any) -> None:
    raise ValueError("no matter")


@pytest.mark.parametrize("mode", ["batch", "message"])
def test_a_failed_handlers_messages_are_acked(
    queue: Queue, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish(["a", "b"])
    group = queue.group()
    with caplog.at_level(logging.WARNING):
        summary = group.work(_fail, mode=mode, on_error="ack", max_messages=2, until="settled")
    assert (summary.settled, summary.nacked, summary.rejected) == (2, 0, 0)
    assert summary.failed == (1 if mode == "batch" else 2)
    stats = group.stats()
    assert (stats.acked, stats.dead, stats.ready, stats.delayed) == (2, 0, 0, 0)
    assert "no matter" in caplog.text, "the error is in the log"
    if mode == "batch":
        assert "2 messages acked despite the error: 2 dropped" in caplog.text


def test_verdicts_go_before_and_a_returned_failure_is_acked(queue: Queue) -> None:
    first, second, third = queue.publish(["a", "b", "c"]).sequences

    def handle(_: Lease) -> list[dict[str, Any]]:
        return [{"sequence": first, "outcome": "reject"}, {"sequence": second, "error": "odd"}]

    group = queue.group()
    group.work(handle, mode="batch", on_error="ack", max_messages=3, until="empty")
    stats = group.stats()
    assert (stats.dead, stats.acked) == (1, 2)
    assert third > second


def test_a_decision_goes_before(queue: Queue) -> None:
    queue.publish(["later", "bad"])

    def handle(message: ReceivedMessage) -> None:
        if message.text == "later":
            raise Retry(delay="1h")
        raise ValueError("no matter")

    group = queue.group()
    group.work(handle, mode="message", on_error="ack", until="empty")
    assert (group.stats().delayed, group.stats().acked) == (1, 1)


def test_an_ack_after_a_success_still_closes_the_breaker(make: Make) -> None:
    queue = make(breaker_threshold=3)
    queue.publish(["a", "b", "c", "d", "e"])
    group = queue.group()
    handlers = [_fail, _fail, lambda _: None, _fail, _fail]

    def handle(lease: Lease) -> None:
        handlers.pop(0)(lease)

    group.work(handle, mode="batch", on_error="ack", until="empty")
    assert handlers == []
    assert group.stats().breaker == "closed"
