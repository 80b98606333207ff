"""Which reasons for no lease are a problem, and that metrics, health and pages agree on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from spark_mq import ConsumerGroup, Message
from spark_mq.integrations.prometheus import exposition
from spark_mq.testing import ManualClock, memory_queue

Step = Callable[[ConsumerGroup], Any]


def fail(group: ConsumerGroup) -> None:
    group.lease("w").nack(error="bad")


def fail_alone(group: ConsumerGroup) -> None:
    """Let five leases of single messages fail in a row, so that the breaker opens."""
    for _ in range(5):
        fail(group)


LIMITS: dict[str, tuple[dict[str, Any], Step]] = {
    "max_in_flight": ({"max_in_flight": 1}, lambda group: group.lease("w")),
    "max_in_flight_bytes": ({"max_in_flight_bytes": 1}, lambda group: group.lease("w")),
    "max_in_flight_per_key": ({"max_in_flight_per_key": 1}, lambda group: group.lease("w")),
    "rate_limit": ({"rate_limit": "1/h"}, lambda group: group.lease("w")),
    "byte_rate_limit": ({"byte_rate_limit": "1/h"}, lambda group: group.lease("w")),
}
STOPS: dict[str, tuple[dict[str, Any], Step]] = {
    "pause": ({}, lambda group: group.pause("repairs")),
    "pause with an end": ({}, lambda group: group.pause("repairs", until="1h")),
    "breaker": ({}, fail_alone),
    "blocked message": ({"on_max_deliveries": "block", "max_delivery_attempts": 1}, fail),
    "max_tracked_ranges": ({"max_tracked_ranges": 1}, lambda group: group.lease("w")),
}


@pytest.mark.parametrize("name", [*LIMITS, *STOPS])
def test_a_stop_is_a_problem_everywhere_and_a_limit_nowhere(name: str, clock: ManualClock) -> None:
    settings, step = (LIMITS | STOPS)[name]
    queue = memory_queue(clock, lanes=4, **settings)
    queue.publish([Message(str(number), key="a") for number in range(9)])
    step(queue.group("g").ensure())
    shown = queue.describe().groups["g"].blocked_because
    assert shown == queue.group("g").blocked_because
    assert name in STOPS or shown.startswith((name, "rate_limit: 1/h"))
    stopped = int(name in STOPS)
    blocked = f'spark_mq_blocked{{queue={json.dumps(queue.path)},group="g"}} {stopped}\n'
    assert blocked in exposition({queue.path: queue.describe()}).decode()
    problems = [(problem.check, problem.group) for problem in queue.health().problems]
    assert problems == [("blocked", "g")] * stopped
    if name in ("max_in_flight", "max_tracked_ranges"):
        assert [blocker.because for blocker in queue.blockers()] == [name]


def test_a_group_of_which_nothing_is_due_gives_no_reason(clock: ManualClock) -> None:
    queue = memory_queue(clock)
    group = queue.group("g").ensure()
    queue.publish([Message("later", deliver_at="1h"), "now", "held"])
    group.lease("w", max_messages=1).nack(delay="1h")
    group.lease("w")
    stats = group.stats()
    assert (stats.blocked_because, stats.backlog, stats.delayed, stats.leased) == ("", 3, 2, 1)
