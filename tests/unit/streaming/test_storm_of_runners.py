"""Streams under everything at once: deaths between any two steps, zombies, other workers, nacks,
clocks that jump.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from support.drivers import Checkpoint, Runner, sequences
from support.marks import slow_but
from support.tables import group_ledger_of

from spark_mq import Message
from spark_mq.errors import StreamFenced
from spark_mq.ledger.ranges import AVAILABLE, LEASED
from spark_mq.ledger.settle import ACK, SettlePart
from spark_mq.streaming.source import BatchPlan
from spark_mq.testing import ManualClock, memory_queue


@pytest.mark.parametrize("seed", slow_but(range(4), range(15)))
def test_whatever_dies_or_freezes_nothing_is_lost_and_no_lease_has_two_owners(seed: int) -> None:
    """Drivers that die between any two steps, zombies that wake at any time, other workers, nacks,
    clocks that jump.

    The sink skips a (stream, n) that it has, as a Delta sink with ``delta_options`` does.
    """
    _Storm(seed).run()


@pytest.mark.parametrize("seed", slow_but(range(4), range(15)))
def test_whatever_dies_or_freezes_an_ordered_group_keeps_the_order_of_its_keys(seed: int) -> None:
    storm = _OrderedStorm(seed)
    storm.run()
    assert storm.holds > 200


class _Storm:
    def __init__(self, seed: int, **settings: Any) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.queue = memory_queue(
            self.clock,
            visibility_timeout="60s",
            clock_skew="0s",
            retry_delay="1s",
            max_delivery_attempts=None,
            **settings,
        )
        self.published: set[int] = set()
        self.sink: dict[tuple[str, int], frozenset[int]] = {}
        self.written_by_others: set[int] = set()
        self.zombies: list[tuple[Runner, Callable[[], None]]] = []
        self.checkpoints = [Checkpoint(), Checkpoint()]

    def run(self) -> None:
        for _ in range(50):
            self._publish()
            self._life(self.random.choice(self.checkpoints), calm=False)
            self._others()
            for zombie in [z for z in self.zombies if self.random.random() < 0.5]:
                self.zombies.remove(zombie)
                zombie[1]()
            if self.random.random() < 0.2:
                self.clock.advance(self.random.choice(["5s", "61s"]))
        for _ in range(20):
            for checkpoint in self.checkpoints:
                self._life(checkpoint, calm=True)
            self.clock.advance("1h")
        stats = self.queue.group("g").stats()
        assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0)
        assert stats.acked == len(self.published)
        written = set().union(self.written_by_others, *self.sink.values())
        assert written == self.published, "acked, and never written"

    def _publish(self) -> None:
        if self.random.random() < 0.5:
            self.published.update(self.queue.publish(["x"] * self.random.randint(1, 6)).sequences)

    def _others(self) -> None:
        """A worker without Spark."""
        if self.random.random() < 0.2 and (
            lease := self.queue.group("g").lease("other", max_messages=3)
        ):
            fate = self.random.choice(["ack", "nack", "expire"])
            if fate == "ack":
                self.written_by_others.update(message.sequence for message in lease.messages)
                lease.ack()
            elif fate == "nack":
                lease.nack(delay="1s")

    def _life(self, checkpoint: Checkpoint, *, calm: bool) -> None:
        """One run of a query: some batches, ended by a death or a freeze at any step (or, if calm,
        by having no more to do).
        """
        runner = Runner(self.queue, checkpoint, max_messages=self.random.randint(1, 8))
        try:
            for _ in range(100 if calm else self.random.randint(1, 4)):
                if not runner.replays and (self._dies(calm) or not runner.offer()):
                    return
                if not calm and self.random.random() < 0.1:
                    self._freeze(runner, None)
                    return
                if self._dies(calm):
                    return
                if not self._batch(runner, calm):
                    return
        except StreamFenced:
            assert not calm, "the only live driver of a checkpoint is never fenced"

    def _batch(self, runner: Runner, calm: bool) -> bool:
        """Runs the last batch in the log. False if the driver died or froze in it."""
        plan = runner.plan()
        if self._dies(calm):
            return False
        if not calm and self.random.random() < 0.1:
            self._freeze(runner, plan)
            return False
        rows = set(sequences(plan))
        if rows and not calm and self.random.random() < 0.3:
            bad = self.random.choice(sorted(rows))
            runner.group.nack(plan.lease_id, [bad])  # before the sink, as it must be
            rows.discard(bad)
        if self._dies(calm):
            return False
        self._write(runner, rows)  # an empty batch, too: a Delta sink remembers that it has seen it
        if self._dies(calm):
            return False
        if rows and self.random.random() < 0.5:
            self._ack(runner, plan)
        if self._dies(calm):
            return False
        runner.commit()
        return True

    def _write(self, runner: Runner, rows: set[int]) -> None:
        offset = runner.checkpoint.offsets[-1]
        self.sink.setdefault((offset["stream"], offset["batch"]), frozenset(rows))

    def _ack(self, runner: Runner, plan: BatchPlan) -> None:
        before = group_ledger_of(self.queue.group("g")).current()
        owners = {r.lease_id for r in before if r.state == LEASED}
        outcome = group_ledger_of(runner.group).settle([SettlePart(ACK, plan.lease_id)])[0]
        assert not outcome.settled or plan.lease_id in owners | {
            r.lease_id for r in before if r.state == AVAILABLE
        }

    def _freeze(self, runner: Runner, plan: BatchPlan | None) -> None:
        zombie = Runner(self.queue, runner.checkpoint.copy())
        zombie.source = runner.source
        self.zombies.append((zombie, lambda: self._wake(zombie, plan, runner.checkpoint)))

    def _wake(self, zombie: Runner, plan: BatchPlan | None, shared: Checkpoint) -> None:
        """A frozen driver goes on where it stood, until Spark's own log shows that another has come
        further on its checkpoint.

        Until then it may be the only one: then it is simply slow, and its work counts.
        """
        own = zombie.checkpoint
        try:
            if plan is None:
                plan = zombie.plan()
            rows = set(sequences(plan))
            self._write(zombie, rows)
            if rows and self.random.random() < 0.5:
                self._ack(zombie, plan)
            if shared.committed >= len(own.offsets):
                return  # "concurrent update to the commit log"
            zombie.commit()
            shared.committed = own.committed
            if self.random.random() < 0.5 and zombie.offer():
                shared.offsets[:] = own.offsets
                if self.random.random() < 0.5:
                    zombie.plan()
        except StreamFenced:
            return

    def _dies(self, calm: bool) -> bool:
        return not calm and self.random.random() < 0.06


class _OrderedStorm(_Storm):
    """The same, with keys and priorities. The order is checked between any two steps."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, lanes=8, order="key")
        self.slots: dict[int, tuple[str, int]] = {}
        self.holds = 0

    def _publish(self) -> None:
        if self.random.random() < 0.5:
            sent = [
                (self.random.choice([None, *"abcde"]), self.random.choice([0, 0, 0, 7]))
                for _ in range(self.random.randint(1, 6))
            ]
            receipt = self.queue.publish([Message("x", key=key, priority=p) for key, p in sent])
            self.published.update(receipt.sequences)
            for seq, (key, priority) in zip(receipt.sequences, sent, strict=True):
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
        for r in group_ledger_of(self.queue.group("g")).current():
            for seq, slot in self._slots_in(r.first, r.last):
                if r.state == LEASED:
                    self.holds += 1
                    assert slot not in waiting, f"{r.lease_id} holds {seq} before its turn"
                    assert holders.setdefault(slot[0], r.lease_id) == r.lease_id
                elif r.state == AVAILABLE:
                    waiting.add(slot)
