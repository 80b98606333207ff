"""Random sweeps, clocks, changes and kills: each instant of a schedule is published once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.handles import Killed, again, die, on_commit, once
from support.tables import on_publish

from spark_mq import Queue
from spark_mq.testing import ManualClock, memory_queue

NOON = datetime(2027, 1, 15, 12, tzinfo=UTC)


def made_again(queue: Queue) -> None:
    queue.remove_schedule("s")
    queue.schedule("s", every="20m", message="x", catch_up="all")


CHANGES: dict[str, Callable[[Queue], object]] = {
    "sweep": lambda queue: queue.sweep(),
    "pause": lambda queue: queue.pause_schedule("s"),
    "resume": lambda queue: queue.resume_schedule("s"),
    "every 20m": lambda queue: queue.schedule("s", every="20m", message="x", catch_up="all"),
    "every 30m": lambda queue: queue.schedule("s", every="30m", message="x", catch_up="latest"),
    "other message": lambda queue: queue.schedule("s", every="20m", message="y", catch_up="all"),
    "make again": made_again,
}


def published(queue: Queue) -> list[datetime]:
    return [datetime.fromisoformat(m.headers["spark_mq.scheduled_at"]) for m in queue.peek(10_000)]


steps = st.lists(
    st.tuples(
        st.sampled_from(["run", "race", "kill before", "kill after"]),
        st.sampled_from(sorted(CHANGES)),
        st.sampled_from([0, 1]),  # which machine
        st.integers(0, 50),  # minutes that pass before
    ),
    min_size=1,
    max_size=25,
)


@given(steps=steps, ahead=st.sampled_from([0, 3, 45]))
def test_whatever_happens_the_instants_rise_and_none_is_of_a_pause(
    steps: list[Any], ahead: int
) -> None:
    clocks = [ManualClock(NOON), ManualClock(NOON + timedelta(minutes=ahead))]
    first = memory_queue(clocks[0])
    queues = [first, again(first, clocks[1])]
    CHANGES["every 20m"](first)
    for how, what, machine, minutes in steps:
        for clock in clocks:
            clock.advance(timedelta(minutes=minutes))
        queue, change = queues[machine], partial(CHANGES[what], queues[1 - machine])
        before = published(first)
        if how == "race":  # it happens while a sweep is about to commit
            with pytest.MonkeyPatch.context() as patch:
                on_publish(patch, queue, once(before=change))
                queue.sweep()
        else:
            with pytest.MonkeyPatch.context() as patch, suppress(Killed):
                if how != "run":
                    on_commit(patch, "messages", **{how.split()[1]: die})
                CHANGES[what](queue)
            if not first.schedules():  # killed between removing it and making it again
                CHANGES["every 20m"](first)
        found = published(first)
        assert found[: len(before)] == before
        assert all(a < b for a, b in pairwise(found))
        if how == "run" and what in ("pause", "resume"):
            assert found == before
        if first.schedules()[0].paused_at and how == "run" and what == "sweep":
            assert found == before
        if how == "run" and what == "make again":  # no instant of before is due
            assert queue.schedules()[0].next_at > clocks[machine]()
    assert all(at <= max(clock() for clock in clocks) for at in published(first))
