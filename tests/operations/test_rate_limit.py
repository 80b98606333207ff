"""A group with a rate limit: all handles share it, and who waits does not poll."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.tables import context_of

from spark_mq import ConsumerGroup, Queue
from spark_mq.testing import ManualClock


@pytest.fixture
def group(tmp_path: Path, clock: ManualClock) -> ConsumerGroup:
    queue = Queue.create(tmp_path / "queue", clock=clock, rate_limit="10/s")
    queue.publish([str(n) for n in range(100)])
    return queue.group("g")


def take(group: ConsumerGroup, messages: int | None = 100, **options: Any) -> int:
    lease = group.lease("w", max_messages=messages, **options)
    return 0 if lease is None else len(lease)


def test_a_limit_is_kept_over_handles_and_shown(group: ConsumerGroup, clock: ManualClock) -> None:
    assert take(group) == 10
    other = Queue.open(context_of(group).path, clock=clock).group("g")
    assert take(other) == 0
    why = other.stats().blocked_because
    assert why.startswith("rate_limit: 10/s messages; the next lease is at ")
    assert other.blocked_because == why
    clock.advance("500ms")
    assert take(other) == 5


def test_a_new_limit_begins_with_a_full_burst(group: ConsumerGroup) -> None:
    group.configure(rate_limit="1/h")
    assert take(group) == 1
    group.configure(rate_limit="20/s", rate_burst="2s")
    assert take(group) == 40
    group.configure(rate_limit=None)
    assert take(group) == 59


@pytest.mark.timeout(60)
def test_a_worker_until_empty_waits_for_no_other_limit(group: ConsumerGroup) -> None:
    take(group)
    group.configure(max_in_flight=1, rate_limit="20/s")
    summary = group.work(lambda _: None, mode="batch", until="empty")
    assert (summary.leases, summary.blocked_because) == (0, "max_in_flight")


def test_who_waits_sleeps_until_the_limit_lets_it(
    group: ConsumerGroup, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(group)
    slept: list[float] = []

    def sleep(_: threading.Event, timeout: float) -> None:
        slept.append(timeout)
        clock.advance(timedelta(seconds=timeout))

    monkeypatch.setattr(threading.Event, "wait", sleep)
    last = context_of(group).messages.index().last_sequence
    assert take(group, None, sequences=[last], wait="1m") == 1
    assert slept == [pytest.approx(0.1)]
    group.configure(rate_limit="1/h")
    take(group)
    assert take(group, wait="1m") == 1
    assert slept[1:] == [5.0] * 720, "it looks for a new limit from time to time"


@pytest.mark.parametrize("until", ["empty", "settled"])
def test_a_worker_waits_for_the_limit_until_the_queue_is_empty(tmp_path: Path, until: str) -> None:
    queue = Queue.create(tmp_path / "queue", rate_limit="100/s", rate_burst="100ms")
    queue.publish(["x"] * 40)
    summary = queue.group("g").work(lambda lease: None, mode="batch", max_messages=100, until=until)
    assert summary.acked == 40
    assert summary.leases >= 4
