"""Verdicts in the log: how many messages were nacked and are dead, and why, but not for each
lease.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.queues import Make
from support.rule_variants import gets, rule_variant
from support.working import fail

from spark_mq import Lease, Queue, ReceivedMessage
from spark_mq.testing import ManualClock


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_mq.verdicts")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "spark_mq.verdicts"]


@pytest.fixture
def time() -> Iterator[SimpleNamespace]:
    """The clock of the log. Only a handler moves it."""
    time = SimpleNamespace(now=0.0)
    with rule_variant("VerdictLog.__init__", gets(clock=lambda _: lambda: time.now)):
        yield time


def test_the_first_failure_is_logged_at_once_and_the_others_are_summed_up(
    queue: Queue, caplog: pytest.LogCaptureFixture, time: SimpleNamespace
) -> None:
    errors = ["no customer", *(f"HTTP 503 for order {n}" for n in range(20))]
    errors += ["x" * 5_000, "no route", "no stock"]
    queue.publish([str(n) for n in range(6 * len(errors))])
    seen = list[int]()

    def handle(lease: Lease) -> list[dict[str, Any]]:
        seen.append(len(lines(caplog)))
        failed, *others = (message.sequence for message in lease.messages)
        error = errors[len(seen) - 1]
        time.now = 10.0 * (error == errors[-1])
        verdict = {"sequence": failed, "outcome": "nack", "delay": "1h", "error": error}
        return [verdict, *({"sequence": one, "outcome": "ack"} for one in others)]

    group = queue.group("billing")
    group.work(handle, mode="batch", max_messages=6, until="empty")
    assert seen == [0, *[1] * 23]
    assert lines(caplog) == [
        "group billing: acked 5, nacked 1 (no customer x1)",
        "group billing: acked 115, nacked 23 (HTTP 503 for order <n> x20; "
        f"{'x' * 100} x1; no route x1; others), 13.8/s",
    ]
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_a_short_run_without_failures_logs_nothing(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish(["a", "b", "c"])
    assert queue.group().work(lambda _: None, until="empty").acked == 3
    assert lines(caplog) == []


def test_a_long_run_logs_its_rate_each_ten_seconds(
    queue: Queue, caplog: pytest.LogCaptureFixture, time: SimpleNamespace
) -> None:
    queue.publish([str(n) for n in range(21 * 61)])

    def handle(_: Lease) -> None:
        time.now += 1

    queue.group("g").work(handle, mode="batch", max_messages=61, until="empty")
    assert lines(caplog) == [
        "group g: acked 610, 61/s", "group g: acked 610, 61/s", "group g: acked 61, 61/s"
    ]  # fmt: skip


def test_retries_that_succeed_write_no_warning(
    make: Make, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue, failed = make(retry_delay="10s"), set[int]()
    queue.publish([str(n) for n in range(300)])

    def handle(message: ReceivedMessage) -> None:
        if int(message.value) % 10 == 0 and message.sequence not in failed:
            failed.add(message.sequence)
            kind = ValueError if int(message.value) < 200 else KeyError
            raise kind(f"order {message.sequence} is locked")

    with caplog.at_level(logging.INFO, "spark_mq"):
        for _ in range(2):
            queue.group().work(handle, max_messages=100, until="empty")
            clock.advance("1m")
    assert queue.group().stats().acked == 300
    assert len(failed) == 30
    assert [r.getMessage() for r in caplog.records if r.levelno > logging.INFO] == []
    assert sum(r.exc_info is not None for r in caplog.records) == 2, "two kinds of errors"


@pytest.mark.parametrize("ack", ["on_success", "on_receive"])
def test_an_error_after_the_ack_is_a_warning(
    queue: Queue, caplog: pytest.LogCaptureFixture, ack: str
) -> None:
    queue.publish(["a"])

    def ack_and_fail(lease: Lease) -> None:
        if ack == "on_success":
            lease.ack()
        raise ValueError("after the ack")

    queue.group().work(ack_and_fail, mode="batch", ack=ack, until="empty")
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "failed with no unsettled message" in warning.getMessage()
    assert warning.exc_info is not None


@pytest.mark.parametrize("mode", ["message", "batch"])
def test_the_last_attempt_writes_its_traceback_as_a_warning(
    make: Make, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    queue = make(max_delivery_attempts=2, retry_delay=0, breaker_threshold=None)
    queue.publish(["a"])
    with caplog.at_level(logging.INFO, "spark_mq"):
        queue.group().work(fail, mode=mode, until="empty")
    assert [r.levelname for r in caplog.records if r.exc_info] == ["INFO", "WARNING"]
    assert queue.group().stats().dead == 1
