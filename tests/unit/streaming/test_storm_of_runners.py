"""Streams under everything at once: deaths between any two steps, zombies, other workers, nacks,
clocks that jump.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.drivers import AnyRunner, Checkpoint, MultiRunner, Plans, Rows, Runner, rows, sequences
from support.marks import slow_but
from support.tables import context_of, group_ledger_of

from spark_mq import Message
from spark_mq.errors import StreamFenced
from spark_mq.ledger.ranges import AVAILABLE, LEASED
from spark_mq.ledger.settle import ACK, SettlePart
from spark_mq.operations.context import GroupLedger
from spark_mq.streaming.source import BatchPlan, stream_id_in_queue
from spark_mq.testing import ManualClock, memory_queue


@pytest.mark.parametrize("seed", slow_but(range(2), range(15)))
def test_whatever_dies_or_freezes_nothing_is_lost_and_no_lease_has_two_owners(seed: int) -> None:
    """Drivers that die between any two steps, zombies that wake at any time, other workers, nacks,
    clocks that jump.

    The sink skips a (stream, n) that it has, as a Delta sink with ``delta_options`` does.
    """
    _Storm(seed).run()


@pytest.mark.parametrize("seed", slow_but(range(2), range(15)))
def test_whatever_dies_or_freezes_an_ordered_group_keeps_the_order_of_its_keys(seed: int) -> None:
    storm = _OrderedStorm(seed)
    storm.run()
    assert storm.holds > 200


@pytest.mark.parametrize("seed", slow_but(range(3), range(10)))
def test_whatever_dies_or_freezes_a_stream_over_two_queues_loses_nothing(seed: int) -> None:
    _TwoQueues(seed).run()


class _Storm:
    def __init__(self, seed: int, queues: int = 1, **settings: Any) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.queues = [
            memory_queue(
                self.clock,
                visibility_timeout="60s",
                clock_skew="0s",
                retry_delay="1s",
                max_delivery_attempts=None,
                **settings,
            )
            for _ in range(queues)
        ]
        for number, queue in enumerate(self.queues):
            context_of(queue).path = f"memory/{number}"
        self.groups = {queue.path: queue.group("g") for queue in self.queues}
        self.published: Rows = set()
        self.sink: dict[tuple[str, int], Rows] = {}
        self.written_by_others: Rows = set()
        self.zombies: list[Callable[[], None]] = []
        self.checkpoints = [Checkpoint(), Checkpoint()]

    def run(self) -> None:
        for _ in range(50):
            self._publish()
            self._life(self.random.choice(self.checkpoints), calm=False)
            self._others()
            for wake in [z for z in self.zombies if self.random.random() < 0.5]:
                self.zombies.remove(wake)
                wake()
            if self.random.random() < 0.2:
                self.clock.advance(self.random.choice(["5s", "61s"]))
        for _ in range(20):
            for checkpoint in self.checkpoints:
                self._life(checkpoint, calm=True)
            self.clock.advance("1h")
        stats = [group.stats() for group in self.groups.values()]
        assert not any((s.ready, s.delayed, s.leased, s.dead) != (0, 0, 0, 0) for s in stats)
        assert sum(s.acked for s in stats) == len(self.published)
        written = set().union(self.written_by_others, *self.sink.values())
        assert written == self.published, "acked, and never written"

    def _publish(self) -> None:
        self._send(["x"] * self.random.randint(1, 6))

    def _send(self, messages: Sequence[Any]) -> Sequence[int]:
        queue = self.random.choice(self.queues)
        sent = queue.publish(messages).sequences
        self.published.update((queue.path, seq) for seq in sent)
        return sent

    def _others(self) -> None:
        """A worker without Spark."""
        path, group = self.random.choice(list(self.groups.items()))
        if self.random.random() < 0.2 and (lease := group.lease("other", max_messages=3)):
            fate = self.random.choice(["ack", "nack", "expire"])
            if fate == "ack":
                self.written_by_others.update((path, m.sequence) for m in lease.messages)
                lease.ack()
            elif fate == "nack":
                lease.nack(delay="1s")

    def _runner(self, checkpoint: Checkpoint) -> AnyRunner:
        return Runner(self.queues[0], checkpoint, max_messages=self.random.randint(1, 8))

    def _plans(self, runner: Any) -> Plans:
        return [(group_ledger_of(runner.group), runner.plan())]

    def _life(self, checkpoint: Checkpoint, *, calm: bool) -> None:
        """One run of a query: some batches, ended by a death or a freeze at any step (or, if calm,
        by having no more to do).
        """
        runner = self._runner(checkpoint)
        try:
            for _ in range(100 if calm else self.random.randint(1, 4)):
                if not runner.replays and (self._dies(calm) or not runner.offer()):
                    return
                if not calm and self.random.random() < 0.1:
                    self._freeze(runner, None)
                    return
                if self._dies(calm) or not self._batch(runner, calm):
                    return
        except StreamFenced:
            assert not calm, "the only live driver of a checkpoint is never fenced"

    def _batch(self, runner: AnyRunner, calm: bool) -> bool:
        """Runs the last batch in the log. False if the driver died or froze in it."""
        plans = self._plans(runner)
        if self._dies(calm):
            return False
        if not calm and self.random.random() < 0.1:
            self._freeze(runner, plans)
            return False
        taken = rows(plans)
        for group, plan in plans:
            mine = sequences(plan)
            if mine and not calm and self.random.random() < 0.3:
                bad = self.random.choice(mine)
                # Before the sink, as it must be.
                self.groups[group.queue_path].nack(plan.lease_id, [bad])
                taken.discard((group.queue_path, bad))
        if self._dies(calm):
            return False
        # An empty batch, too: a Delta sink remembers that it has seen it.
        self._write(runner, taken)
        if self._dies(calm):
            return False
        for group, plan in plans:
            if self.random.random() < 0.5:
                self._ack(group, plan)
            if self._dies(calm):
                return False
        runner.commit()
        return True

    def _write(self, runner: AnyRunner, taken: Rows) -> None:
        offset = runner.checkpoint.offsets[-1]
        self.sink.setdefault((offset["stream"], offset["batch"]), taken)

    def _ack(self, group: GroupLedger, plan: BatchPlan) -> None:
        if not plan.slices:
            return
        before = [r.lease_id for r in group.current() if r.state in (LEASED, AVAILABLE)]
        (outcome,) = group.settle([SettlePart(ACK, plan.lease_id)])
        assert not outcome.settled or plan.lease_id in before

    def _freeze(self, runner: AnyRunner, plans: Plans | None) -> None:
        zombie = self._runner(runner.checkpoint.copy())
        zombie.source = runner.source
        rest = self._leases(zombie) if plans is None else lambda: plans
        self.zombies.append(lambda: self._wake(zombie, rest, runner.checkpoint))

    def _leases(self, zombie: AnyRunner) -> Callable[[], Plans]:
        """How a frozen driver leases its batch once it is awake."""
        return lambda: self._plans(zombie)

    def _wake(self, zombie: AnyRunner, leases: Callable[[], Plans], shared: Checkpoint) -> None:
        """A frozen driver goes on where it stood, until Spark's own log shows that another has come
        further on its checkpoint.

        Until then it may be the only one: then it is simply slow, and its work counts.
        """
        own = zombie.checkpoint
        try:
            plans = leases()
            self._write(zombie, rows(plans))
            for group, plan in plans:
                if self.random.random() < 0.5:
                    self._ack(group, plan)
            if shared.committed >= len(own.offsets):
                return  # "concurrent update to the commit log"
            zombie.commit()
            shared.committed = own.committed
            if self.random.random() < 0.5 and zombie.offer():
                shared.offsets[:] = own.offsets
                if self.random.random() < 0.5:
                    self._plans(zombie)
        except StreamFenced:
            return

    def _dies(self, calm: bool) -> bool:
        return not calm and self.random.random() < 0.06


class _TwoQueues(_Storm):
    """The same over two queues. A driver freezes between their leases, too."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, queues=2)

    def _runner(self, checkpoint: Checkpoint) -> AnyRunner:
        return MultiRunner(self.queues, checkpoint, max_messages=self.random.randint(1, 8))

    def _plans(self, runner: Any) -> Plans:
        plans: Plans = runner.plan()
        return plans

    def _leases(self, zombie: AnyRunner) -> Callable[[], Plans]:
        offset = zombie.checkpoint.offsets[-1]
        stream, n = offset["stream"], offset["batch"]
        shares = zombie.source._offered.get((stream, n), [0])
        if not all(shares) or self.random.random() < 0.5:
            return super()._leases(zombie)
        each = (
            (source.ledger, source.lease(stream_id_in_queue(stream, source.ledger.queue_path), n))
            for source in zombie.source.sources
        )
        first = next(each)
        return lambda: [first, *each]


class _OrderedStorm(_Storm):
    """The same, with keys and priorities. The order is checked between any two steps."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, lanes=8, order="key")
        self.slots: dict[int, tuple[str, int]] = {}
        self.holds = 0

    def _publish(self) -> None:
        sent = [
            (self.random.choice([None, *"abcde"]), self.random.choice([0, 0, 0, 7]))
            for _ in range(self.random.randint(1, 6))
        ]
        messages = [Message("x", key=key, priority=priority) for key, priority in sent]
        for seq, (key, priority) in zip(self._send(messages), sent, strict=True):
            if key is not None:
                self.slots[seq] = key, priority

    def _dies(self, calm: bool) -> bool:
        self._check_order()
        return super()._dies(calm)

    def _slots_in(self, first: int, last: int) -> list[tuple[int, tuple[str, int]]]:
        return [(seq, self.slots[seq]) for seq in sorted(self.slots) if first <= seq <= last]

    def _check_order(self) -> None:
        holders: dict[str, str | None] = {}
        waiting: set[tuple[str, int]] = set()
        for r in group_ledger_of(self.queues[0].group("g")).current():
            for seq, slot in self._slots_in(r.first, r.last):
                if r.state == LEASED:
                    self.holds += 1
                    assert slot not in waiting, f"{r.lease_id} holds {seq} before its turn"
                    assert holders.setdefault(slot[0], r.lease_id) == r.lease_id
                elif r.state == AVAILABLE:
                    waiting.add(slot)
