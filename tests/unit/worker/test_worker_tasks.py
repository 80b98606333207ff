"""Pools that run the tasks of a worker, and lanes that hand out one of theirs at a time."""

from __future__ import annotations

from typing import Any

from spark_mq.worker.open_tasks import Demand, LaneChains
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


def test_a_lane_hands_out_one_task_at_a_time() -> None:
    chains: Any = LaneChains()
    assert chains.add(1, "a")
    assert not chains.add(1, "b")
    assert not chains.add(1, "c")
    assert chains.add(2, "x")
    assert (chains.lanes, len(chains)) == (2, 4)
    assert chains.remove("b") is None
    chains.pause("a")
    assert chains.paused
    assert chains.remove("a") == "c"
    assert not chains.paused
    assert chains.remove("a") is None
    assert chains.remove("c") is None
    assert chains.remove("x") is None
    assert (chains.lanes, len(chains)) == (0, 0)


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
