"""Pools that run the tasks of a worker, and lanes that hand out one of theirs at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spark_mq import Reject, Retry
from spark_mq.worker.open_tasks import Demand, LaneChains, OpenTasks
from spark_mq.worker.pools import CoroutinePool
from spark_mq.worker.tasks import Task


def test_a_pool_of_coroutines_that_has_ended_takes_tasks_and_stops_again() -> None:
    failed, task = list[BaseException](), Task(None, None, None)  # type: ignore[arg-type]
    pool = CoroutinePool(1, failed.append)
    pool.start()
    pool.stop()
    pool.submit(task)
    pool.stop()
    assert failed == []
    assert not task.started


def test_a_feed_leases_other_lanes_only_for_handlers_that_are_idle() -> None:
    chains: Any = LaneChains()
    for task in "abcde":
        chains.add(1, task)
    demand = Demand(8, 60.0, may_prefetch=False)
    for leased, concurrency, held, wanted in (
        (True, 4, 6, 2), (True, 5, 5, 3), (True, 4, 5, 3), (True, 2, 6, 0), (False, 4, 6, 0)
    ):  # fmt: skip
        demand.note_try(leased)
        assert demand.wanted(concurrency, held, chains) == wanted, "one handler has the lane"


def test_a_feed_leases_ahead_for_a_second_of_its_handlers() -> None:
    demand = Demand(100, 1.0, may_prefetch=True)
    assert demand.wanted(4, 1, LaneChains()) == 3, "as long as nobody knows how long one takes"
    for seconds in (0.05, 0.1):
        demand.note_end(seconds, failed=False)
    assert demand.wanted(4, 0, LaneChains()) == 71, "one takes 60 ms"
    demand.most = 70
    held = (0, 36, 37)
    assert [demand.wanted(4, count, LaneChains()) for count in held] == [70, 34, 0]


def test_what_is_done_waits_for_others_unless_a_handler_is_idle_or_no_more_may_be_held() -> None:
    handed, settles, waits = list[Task](), list[bool](), list[float]()
    pool: Any = SimpleNamespace(concurrency=2, submit=handed.append)
    wake: Any = SimpleNamespace(is_set=lambda: True, wait=waits.append, clear=lambda: None)
    demand = Demand(9, 60.0, may_prefetch=False)
    tasks = OpenTasks(pool, demand, 60.0)
    tasks.changed = wake
    given: Any = [Task(None, None, None) for _ in range(5)]  # type: ignore[arg-type]
    tasks.add(list(zip(given[:4], (7, 7, None, None), strict=True)))
    for at, task in enumerate(handed):  # the second one of the lane becomes the last
        assert tasks.claim(task, None)
        assert tasks.finish(task, Reject().verdict(), alone=at == 3)
        settles.append(tasks.must_settle())
    assert settles == [False, False, True, True]
    assert tasks.is_busy(), "the thread of a handler settles"
    demand.dry = True
    assert not tasks.must_settle(), "there is nothing for the idle handler"
    tasks.wait(90.0)
    assert 0 < waits[0] <= 60
    demand.most = 3
    assert tasks.must_settle()
    tasks.add([(given[4], 7)])
    assert tasks.claim(given[4], None)
    assert tasks.finish(given[4], Retry().verdict(), alone=False)
    assert tasks.has_paused_lane()
    tasks.advance_lanes(given)
    assert not tasks.has_paused_lane()
