"""The breaker of a group, pause and resume, and what a reject does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.handles import lease
from support.tables import on_commands
from support.working import drain, fail

from spark_mq import ConsumerGroup, Queue, WorkSummary
from spark_mq.testing import ManualClock, next_due


def numbers(queue: Queue, count: int = 100) -> None:
    queue.publish([str(n) for n in range(count)])


@pytest.mark.parametrize(("mode", "ended"), [("batch", 100), ("message", 5)])
@pytest.mark.parametrize("on_error", ["reject", "ack"])
def test_on_error_reject_and_ack_end_the_leases_that_open_the_breaker(
    queue: Queue, on_error: str, mode: str, ended: int
) -> None:
    """A nack retries them. These end them at once, so a bug costs five whole leases."""
    numbers(queue, 200)
    drain(queue, fail, mode=mode, on_error=on_error, max_messages=20)
    stats = queue.group().stats()
    assert (stats.breaker, stats.unread, stats.dead + stats.acked) == ("open", 200 - ended, ended)


# -- logs


def test_the_log_shows_that_it_opens_and_closes(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    numbers(queue)
    for _ in range(5):
        lease(queue, 1).nack(delay="1h", error="KeyError: 'ammount'")
    assert next_due(queue.group()) == clock() + timedelta(seconds=10)
    clock.advance("10s")
    lease(queue).nack(error="again")
    clock.advance("20s")
    lease(queue, 9).ack()
    opens, fails, closes = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "the breaker is open: 5 leases failed in a row" in opens
    assert "KeyError: 'ammount'" in opens
    assert "the trial failed with again" in fails
    assert "the breaker is closed" in closes


def test_a_wait_logs_a_pause_once(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = queue.group()
    group.pause("migration of the orders")
    after_looks = [lambda: queue.publish("a"), group.resume]

    def look(run: Callable[[], list[Any]], _: object) -> list[Any]:
        outcomes = run()
        if after_looks:
            after_looks.pop(0)()
        return outcomes

    on_commands(monkeypatch, look)
    assert group.lease("w", wait="30s") is not None, "at the third look"
    pause, wait, end = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "group default is paused: migration of the orders" in pause
    assert "migration of the orders" in wait
    assert "is resumed" in end


# -- pause and resume


@pytest.mark.parametrize("mode", ["batch", "message"])
def test_a_worker_says_why_it_ends_before_the_group_is_empty(
    queue: Queue, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    numbers(queue)
    group, other = queue.group(), queue.group("other")
    ready = group.ensure().stats().ready
    group.pause("migration")

    def work(group: ConsumerGroup, **options: Any) -> WorkSummary:
        return group.work(lambda _: None, **{"mode": mode, "until": "empty", **options})

    summary = work(group, threads=3)
    assert (summary.leases, summary.blocked_because) == (0, group.blocked_because)
    (said,) = [r.getMessage() for r in caplog.records if "the work ends" in r.getMessage()]
    assert f"migration. Ready: {ready} messages" in said
    both = work(other, mode="message", more_groups=[group])
    assert both.acked > 0
    assert both.blocked_because == f"group default: {group.blocked_because}"
    stop = threading.Event()
    stop.set()
    assert work(group, stop=stop).blocked_because == ""
    group.resume()
    assert work(group).blocked_because == ""
    group.pause("again")
    assert work(group).blocked_because == "", "nothing is left"


def test_a_pause_may_end_by_itself(queue: Queue, clock: ManualClock) -> None:
    numbers(queue)
    group = queue.group()
    group.pause("maintenance", until="30m")
    assert group.stats().breaker == "paused"
    clock.advance("29m")
    assert next_due(group) == clock() + timedelta(minutes=1)
    assert group.lease("w") is None
    clock.advance("1m")
    assert (group.blocked_because, group.stats().breaker) == ("", "closed")
    assert len(lease(queue, 3)) == 3
    group.pause("again", until=clock() + timedelta(hours=1))
    group.pause("longer")
    clock.advance("1d")
    assert group.lease("w") is None
