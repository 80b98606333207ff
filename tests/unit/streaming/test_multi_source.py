"""One stream over several queues (``spark_mq.streams``), without Spark: fair_shares, replays,
zombies, and everything at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drivers import AnyRunner, Checkpoint, StubAlive, remembered, sequences
from support.marks import slow_but
from support.tables import context_of, group_ledger_of, messages_of

from spark_mq import Queue
from spark_mq.errors import DataLossError, InvalidOption, StreamFenced
from spark_mq.ledger.settle import ACK, NACK, SettlePart
from spark_mq.maintenance.retention import trim
from spark_mq.operations.settle import settle
from spark_mq.streaming.multi_source import MultiQueueSource, Plans, fair_shares
from spark_mq.streaming.offset import stream_id_in_queue
from spark_mq.streaming.source import StreamOptions, StreamSource
from spark_mq.testing import ManualClock, memory_queue

Rows = set[tuple[str, int]]


def queues(clock: ManualClock, count: int = 2, publish: int = 0, **settings: Any) -> list[Queue]:
    """Return queues in memory, each with some messages."""
    defaults = {"visibility_timeout": "60s", "clock_skew": "0s", "retry_delay": "1s"}
    made = [memory_queue(clock, **{**defaults, **settings}) for _ in range(count)]
    for number, queue in enumerate(made):
        context_of(queue).path = f"memory/{number}"
        queue.publish(["x"] * publish)
    return made


class Runner(AnyRunner):
    """A run of a query over several queues."""

    def __init__(
        self, queues: list[Queue], checkpoint: Checkpoint | None = None, **options: Any
    ) -> None:
        super().__init__(checkpoint)
        self.source = MultiQueueSource(
            [group_ledger_of(queue.group("g")) for queue in queues],
            StreamOptions(**options),
            keep_alive=StubAlive,
        )

    def plan(self) -> Plans:
        plans: Plans = self.source.plans(*self.checkpoint.offsets[-2:])
        return plans


def rows(plans: Plans) -> Rows:
    return {(group.queue_path, seq) for group, plan in plans for seq in sequences(plan)}


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


def test_a_batch_takes_its_share_of_each_queue(clock: ManualClock) -> None:
    both = queues(clock, publish=50)
    runner = Runner(both, max_messages=20)
    assert sizes(runner.batch()) == {"memory/0": 10, "memory/1": 10}
    assert all(queue.group("g").stats().leased == 10 for queue in both)


def test_what_one_queue_has_not_the_others_take(clock: ManualClock) -> None:
    both = queues(clock, 3)
    both[0].publish(["x"] * 50)
    both[2].publish(["x"] * 3)
    runner = Runner(both, max_messages=20)
    assert sizes(runner.batch()) == {"memory/0": 17, "memory/2": 3}


def test_a_busy_queue_starves_none(clock: ManualClock) -> None:
    both = queues(clock)
    both[0].publish(["x"] * 500)
    runner = Runner(both, max_messages=1)
    seen: list[str] = []
    for _ in range(6):
        both[1].publish(["y"])
        seen += sizes(runner.batch())
    assert seen.count("memory/1") == 3


def test_a_batch_of_bytes_is_shared_too(clock: ManualClock) -> None:
    both = queues(clock, publish=1_000)
    size = messages_of(both[0]).index().files[0].size
    taken = sizes(Runner(both, max_bytes=size // 2).batch())
    assert all(200 <= count <= 300 for count in taken.values())


def test_leases_of_one_batch_have_an_id_of_their_own_in_each_queue(clock: ManualClock) -> None:
    both = queues(clock, publish=1)
    runner = Runner(both)
    ids = {group.queue_path: plan.lease_id for group, plan in runner.batch()}
    stream = runner.checkpoint.offsets[-1]["stream"]
    assert ids == {
        path: f"{stream_id_in_queue(stream, path)}/1/{runner.source.runner}" for path in ids
    }
    assert runner.checkpoint.offsets[-1] == {"batch": 1, "queues": 2, "stream": stream}


def test_what_is_left_of_a_batch_is_acked_when_spark_asks_for_the_next(clock: ManualClock) -> None:
    both = queues(clock, publish=1)
    runner = Runner(both)
    runner.batch()
    both[0].publish(["more"])
    runner.batch()
    assert [queue.group("g").stats().acked for queue in both] == [1, 1]
    assert not runner.offer()
    assert [queue.group("g").stats().acked for queue in both] == [2, 1]


def test_a_queue_without_a_share_has_its_last_batch_acked_all_the_same(clock: ManualClock) -> None:
    both = queues(clock, publish=3)
    runner = Runner(both, max_messages=1)
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
    first = Runner(both)
    taken = rows(first.begun())
    both[1].publish(["came later"])
    successor = Runner(both, first.checkpoint)
    assert rows(successor.plan()) == taken
    assert both[1].group("g").stats().ready == 1


def test_a_zombie_frozen_between_two_queues_leases_is_refused_in_the_second(
    clock: ManualClock,
) -> None:
    both = queues(clock, publish=1)
    zombie = Runner(both)
    assert zombie.offer()
    stream, n = zombie.checkpoint.offsets[-1]["stream"], 1
    zombie.source.sources[0].lease(stream_id_in_queue(stream, both[0].path), n)
    successor = Runner(both, zombie.checkpoint)
    assert sizes(successor.plan()) == {"memory/0": 1, "memory/1": 0}
    with pytest.raises(StreamFenced):
        zombie.source.sources[1].lease(stream_id_in_queue(stream, both[1].path), n)
    assert both[1].group("g").stats().ready == 1


def test_a_queue_may_join_at_a_restart_and_another_leave(clock: ManualClock) -> None:
    three = queues(clock, 3, publish=1)
    first = Runner(three[:2])
    first.batch()
    second = Runner(three[1:], first.checkpoint)
    assert sizes(second.batch()) == {"memory/2": 1}
    assert three[1].group("g").stats().acked == 1
    clock.advance("61s")
    assert three[0].group("g").stats().ready == 1, "what it held of the queue that left has run out"


def test_a_checkpoint_of_one_queue_and_one_of_several_are_not_mixed(clock: ManualClock) -> None:
    both = queues(clock)
    both[0].publish(["x"])
    several = Runner(both)
    several.batch()
    with pytest.raises(InvalidOption, match="several queues"):
        StreamSource(group_ledger_of(both[0].group("g")), StreamOptions()).latest(
            several.checkpoint.offsets[-1]
        )
    single = {"batch": 1, "stream": several.checkpoint.offsets[-1]["stream"]}
    with pytest.raises(InvalidOption, match="one queue"):
        Runner(both).source.latest(single)


def test_available_now_drains_what_was_there_in_each_queue(clock: ManualClock) -> None:
    both = queues(clock, publish=5)
    runner = Runner(both, max_messages=4)
    runner.checkpoint.offsets, runner.checkpoint.committed = [runner.source.initial()], 1
    runner.source.limit_to_current()
    total = 0
    while runner.offer():
        total += len(rows(runner.plan()))
        runner.commit()
        both[0].publish(["too late"])
    assert total == 10


def test_progress_tells_of_each_queue(clock: ManualClock) -> None:
    both = queues(clock)
    both[1].publish(["x"])
    runner = Runner(both)
    runner.offer()
    assert {path: reported["ready"] for path, reported in runner.source.progress().items()} == {
        "memory/0": 0,
        "memory/1": 1,
    }


# -- a hard limit


def test_a_group_that_a_hard_limit_cut_is_reported_by_the_stream_or_counts_the_loss(
    clock: ManualClock,
) -> None:
    both = queues(clock, hard_retention="1h")
    both[0].group("g").ensure()
    both[0].publish(["gone"])
    clock.advance("2h")
    trim(context_of(both[0]))
    both[1].publish(["there"])
    with pytest.raises(DataLossError):
        Runner(both).offer()
    runner = Runner(both, fail_on_data_loss=False)
    assert sizes(runner.batch()) == {"memory/1": 1}
    assert both[0].group("g").stats().lost == 1


# -- everything at once


@pytest.mark.parametrize("seed", slow_but(range(3), range(10)))
def test_whatever_dies_or_freezes_nothing_is_lost_and_what_is_acked_was_written(seed: int) -> None:
    _Storm(seed).run()


class _Storm:
    """As in test_stream_storm, over two queues; a sink that skips a (stream, n) that it has."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.queues = queues(self.clock, max_delivery_attempts=None)
        self.published: Rows = set()
        self.sink: dict[tuple[str, int], Rows] = {}
        self.others: Rows = set()
        self.zombies: list[Callable[[], None]] = []
        self.checkpoint = Checkpoint()

    def run(self) -> None:
        for _ in range(40):
            queue = self.random.choice(self.queues)
            self.published |= {
                (queue.path, seq)
                for seq in queue.publish(["x"] * self.random.randint(1, 6)).sequences
            }
            self._life(calm=False)
            self._other()
            for zombie in [z for z in self.zombies if self.random.random() < 0.5]:
                self.zombies.remove(zombie)
                zombie()
            if self.random.random() < 0.2:
                self.clock.advance(self.random.choice(["5s", "61s"]))
        for _ in range(20):
            self._life(calm=True)
            self.clock.advance("1h")
        for queue in self.queues:
            stats = queue.group("g").stats()
            assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0)
        assert sum(queue.group("g").stats().acked for queue in self.queues) == len(self.published)
        assert set().union(self.others, *self.sink.values()) == self.published, (
            "acked, and never written"
        )

    def _other(self) -> None:
        queue = self.random.choice(self.queues)
        if self.random.random() < 0.2 and (
            lease := queue.group("g").lease("other", max_messages=3)
        ):
            self.others |= {(queue.path, m.sequence) for m in lease.messages}
            lease.ack()

    def _dies(self, calm: bool) -> bool:
        return not calm and self.random.random() < 0.08

    def _life(self, *, calm: bool) -> None:
        runner = Runner(self.queues, self.checkpoint, max_messages=self.random.randint(1, 8))
        try:
            for _ in range(100 if calm else self.random.randint(1, 4)):
                if not runner.replays and (self._dies(calm) or not runner.offer()):
                    return
                if not calm and self.random.random() < 0.15:
                    self._freeze(runner)
                    return
                if self._dies(calm) or not self._batch(runner, calm):
                    return
        except StreamFenced:
            assert not calm, "the only live driver of a checkpoint is never fenced"

    def _batch(self, runner: Runner, calm: bool) -> bool:
        plans = runner.plan()
        if self._dies(calm):
            return False
        taken = rows(plans)
        for group, plan in plans:
            mine = sequences(plan)
            if mine and not calm and self.random.random() < 0.2:
                bad = self.random.choice(mine)
                settle(group, plan.lease_id, NACK, sequences=[bad])
                taken.discard((group.queue_path, bad))
        self._write(runner.checkpoint, taken)
        if self._dies(calm):
            return False
        for group, plan in plans:
            if plan.slices and self.random.random() < 0.5:
                group.settle([SettlePart(ACK, plan.lease_id)])
            if self._dies(calm):
                return False
        runner.commit()
        return True

    def _write(self, checkpoint: Checkpoint, taken: Rows) -> None:
        offset = checkpoint.offsets[-1]
        self.sink.setdefault((offset["stream"], offset["batch"]), taken)

    def _freeze(self, runner: Runner) -> None:
        """Between the offer and the leases, or between two of these.

        Awake again, it goes on until the marks refuse it.
        """
        own = runner.checkpoint.copy()
        stream, n = own.offsets[-1]["stream"], own.offsets[-1]["batch"]
        leased = []
        if not runner.replays or self.random.random() < 0.5:
            first = runner.source.sources[0]
            key = (stream, n)
            if key in runner.source._offered and runner.source._offered[key][0]:
                leased.append(first.lease(stream_id_in_queue(stream, self.queues[0].path), n))

        def wake() -> None:
            if self.checkpoint.committed >= len(own.offsets):
                return
            zombie = Runner(self.queues)
            zombie.checkpoint, zombie.source = own, runner.source
            try:
                second = runner.source.sources[1]
                if (
                    leased
                    and (stream, n) in runner.source._offered
                    and runner.source._offered[stream, n][1]
                ):
                    plan = second.lease(stream_id_in_queue(stream, self.queues[1].path), n)
                    taken = {(self.queues[0].path, s) for s in sequences(leased[0])} | {
                        (self.queues[1].path, s) for s in sequences(plan)
                    }
                    self._write(own, taken)
                elif not leased:
                    self._write(own, rows(zombie.plan()))
                else:
                    return
                if self.checkpoint.committed < len(own.offsets):
                    zombie.commit()
                    self.checkpoint.committed = own.committed
            except StreamFenced:
                return

        self.zombies.append(wake)


def test_what_a_runner_remembers_does_not_grow_with_its_batches(clock: ManualClock) -> None:
    made = queues(clock, publish=6)
    runner = Runner(made, max_messages=2)
    runner.batch()
    before = remembered(runner.source, *runner.source.sources)
    for _ in range(5):
        runner.batch()
    assert remembered(runner.source, *runner.source.sources) == before
