"""One stream over several queues (``spark_mq.streams``), without Spark: fair_shares, replays,
zombies.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drivers import MultiRunner, Plans, remembered, rows, sequences
from support.handles import trim
from support.tables import context_of, group_ledger_of, messages_of

from spark_mq import Queue
from spark_mq.errors import DataLossError, InvalidOption, StreamFenced
from spark_mq.streaming.multi_source import fair_shares
from spark_mq.streaming.source import StreamOptions, StreamSource, stream_id_in_queue
from spark_mq.testing import ManualClock, memory_queue


def queues(clock: ManualClock, count: int = 2, publish: int = 0, **settings: Any) -> list[Queue]:
    """Return queues in memory, each with some messages."""
    defaults = {"visibility_timeout": "60s", "clock_skew": "0s", "retry_delay": "1s"}
    made = [memory_queue(clock, **{**defaults, **settings}) for _ in range(count)]
    for number, queue in enumerate(made):
        context_of(queue).path = f"memory/{number}"
        queue.publish(["x"] * publish)
    return made


def sizes(plans: Plans) -> dict[str, int]:
    return {group.queue_path: len(sequences(plan)) for group, plan in plans}


# -- fair_shares


@given(
    limit=st.integers(1, 200),
    could=st.lists(st.integers(0, 100), min_size=1, max_size=6),
    turn=st.integers(0, 50),
)
def test_shares_are_of_the_total_and_none_gets_less_unless_it_can_take_no_more(
    limit: int, could: list[int], turn: int
) -> None:
    taken = fair_shares(limit, could, turn)
    assert sum(taken) == min(limit, sum(could))
    assert all(mine <= most for mine, most in zip(taken, could, strict=True))
    hungry = [mine for mine, most in zip(taken, could, strict=True) if mine < most]
    assert not hungry or max(taken) - min(hungry) <= 1


def test_what_does_not_divide_goes_to_each_in_turn() -> None:
    got = [fair_shares(1, [9, 9, 9], turn) for turn in range(6)]
    assert [one.index(1) for one in got] == [0, 1, 2, 0, 1, 2]


# -- batches


def test_what_one_queue_has_not_the_others_take(clock: ManualClock) -> None:
    both = queues(clock, 3)
    both[0].publish(["x"] * 50)
    both[2].publish(["x"] * 3)
    runner = MultiRunner(both, max_messages=20)
    assert sizes(runner.batch()) == {"memory/0": 17, "memory/2": 3}


def test_a_batch_of_bytes_is_shared_too(clock: ManualClock) -> None:
    both = queues(clock, publish=1_000)
    size = messages_of(both[0]).index().files[0].size
    taken = sizes(MultiRunner(both, max_bytes=size // 2).batch())
    assert all(200 <= count <= 300 for count in taken.values())


def test_leases_of_one_batch_have_an_id_of_their_own_in_each_queue(clock: ManualClock) -> None:
    both = queues(clock, publish=1)
    runner = MultiRunner(both)
    ids = {group.queue_path: plan.lease_id for group, plan in runner.batch()}
    stream = runner.checkpoint.offsets[-1]["stream"]
    assert ids == {
        path: f"{stream_id_in_queue(stream, path)}/1/{runner.source.runner}" for path in ids
    }
    assert runner.checkpoint.offsets[-1] == {"batch": 1, "queues": 2, "stream": stream}
    runner.source.stop()
    assert [source._alive for source in runner.source.sources] == [None, None]


def test_what_is_left_of_a_batch_is_acked_when_spark_asks_for_the_next(clock: ManualClock) -> None:
    both = queues(clock, publish=1)
    runner = MultiRunner(both)
    runner.batch()
    both[0].publish(["more"])
    runner.batch()
    assert [queue.group("g").stats().acked for queue in both] == [1, 1]
    assert not runner.offer()
    assert [queue.group("g").stats().acked for queue in both] == [2, 1]


def test_a_queue_without_a_share_has_its_last_batch_acked_all_the_same(clock: ManualClock) -> None:
    both = queues(clock, publish=3)
    runner = MultiRunner(both, max_messages=1)
    (one,) = sizes(runner.batch())
    (other,) = sizes(runner.batch())
    assert one != other
    acked = {queue.path: queue.group("g").stats().acked for queue in both}
    assert acked == {one: 1, other: 0}


def test_a_replay_takes_over_what_the_batch_holds_in_each_queue_and_leases_nothing_anew(
    clock: ManualClock,
) -> None:
    both = queues(clock)
    both[0].publish(["x"] * 3)
    first = MultiRunner(both)
    taken = rows(first.begun())
    both[1].publish(["came later"])
    successor = MultiRunner(both, first.checkpoint)
    assert rows(successor.plan()) == taken
    assert both[1].group("g").stats().ready == 1


def test_a_zombie_frozen_between_two_queues_leases_is_refused_in_the_second(
    clock: ManualClock,
) -> None:
    both = queues(clock, publish=1)
    zombie = MultiRunner(both)
    assert zombie.offer()
    stream, n = zombie.checkpoint.offsets[-1]["stream"], 1
    zombie.source.sources[0].lease(stream_id_in_queue(stream, both[0].path), n)
    successor = MultiRunner(both, zombie.checkpoint)
    assert sizes(successor.plan()) == {"memory/0": 1, "memory/1": 0}
    with pytest.raises(StreamFenced):
        zombie.source.sources[1].lease(stream_id_in_queue(stream, both[1].path), n)
    assert both[1].group("g").stats().ready == 1


def test_a_queue_may_join_at_a_restart_and_another_leave(clock: ManualClock) -> None:
    three = queues(clock, 3, publish=1)
    first = MultiRunner(three[:2])
    first.batch()
    second = MultiRunner(three[1:], first.checkpoint)
    assert sizes(second.batch()) == {"memory/2": 1}
    assert three[1].group("g").stats().acked == 1
    clock.advance("61s")
    assert three[0].group("g").stats().ready == 1, "what it held of the queue that left has run out"


def test_a_checkpoint_of_one_queue_and_one_of_several_are_not_mixed(clock: ManualClock) -> None:
    both = queues(clock)
    source = StreamSource(group_ledger_of(both[0].group("g")), StreamOptions())
    with pytest.raises(InvalidOption, match="several queues"):
        source.latest(MultiRunner(both).source.initial())
    with pytest.raises(InvalidOption, match="one queue"):
        MultiRunner(both).source.latest(source.initial())


def test_available_now_drains_what_was_there_in_each_queue(clock: ManualClock) -> None:
    both = queues(clock, publish=5)
    runner = MultiRunner(both, max_messages=4)
    runner.checkpoint.offsets, runner.checkpoint.committed = [runner.source.initial()], 1
    runner.source.limit_to_current()
    for queue in both:
        queue.publish(["too late"])
    total = 0
    while runner.offer():
        total += len(rows(runner.plan()))
        runner.commit()
    assert total == 10


def test_progress_tells_of_each_queue(clock: ManualClock) -> None:
    both = queues(clock)
    both[1].publish(["x"])
    runner = MultiRunner(both)
    runner.offer()
    ready = {path: shown["ready"] for path, shown in runner.source.progress().items()}
    assert ready == {"memory/0": 0, "memory/1": 1}


# -- a hard limit


def test_a_group_that_a_hard_limit_cut_is_reported_by_the_stream_or_counts_the_loss(
    clock: ManualClock,
) -> None:
    both = queues(clock, hard_retention="1h")
    both[0].group("g").ensure()
    both[0].publish(["gone"])
    clock.advance("2h")
    trim(both[0])
    both[1].publish(["there"])
    with pytest.raises(DataLossError):
        MultiRunner(both).offer()
    runner = MultiRunner(both, fail_on_data_loss=False)
    assert sizes(runner.batch()) == {"memory/1": 1}
    assert both[0].group("g").stats().lost == 1


def test_what_a_runner_remembers_does_not_grow_with_its_batches(clock: ManualClock) -> None:
    made = queues(clock, publish=6)
    runner = MultiRunner(made, max_messages=2)
    runner.batch()
    before = remembered(runner.source, *runner.source.sources)
    for _ in range(5):
        runner.batch()
    assert remembered(runner.source, *runner.source.sources) == before
