"""Poison messages kill whole leases again and again: only they die, however leases, replays and
nacks fall.

A worker that gets a poison dies, so its lease expires. A flaky message is nacked by name, some
times. What never failed by itself must be acked in the end, and within a bounded number of leases.
The reference judges each lease, and knows what has failed by itself.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.ledger_group import SECOND, limits

from .judged_group import JudgedGroup


class World:
    """One group and its workers.

    `poison` and `flaky` name messages by their places; a flaky one fails as often as its number
    says.
    """

    def __init__(
        self, n, batch, messages, poison, flaky=None, *, reserved_attempts=0, replays=False,
        whole_nacks=0.0, seed=0,
    ):  # fmt: skip
        rules = limits(
            clock_skew=SECOND,
            max_delivery_attempts=n,
            retry_delay=SECOND,
            max_retry_delay=2 * SECOND,
        )
        self.group = JudgedGroup(rules)
        # Two commits and a gap, so that pieces are cut across them.
        self.group.publish(1, (messages // 2, 1))
        self.group.publish(4, (messages - messages // 2, 1))
        self.messages = self.group.reference.messages
        self.poison = {self.messages[at % messages].seq for at in poison}
        self.flaky = {
            self.messages[at % messages].seq: times for at, times in (flaky or {}).items()
        }
        self.batch, self.reserved_attempts = batch, reserved_attempts
        self.replays, self.whole_nacks = replays, whole_nacks
        self.chance = random.Random(seed)
        self.most = 60 + n * (20 * len(self.poison) + messages // batch * 4 + messages)
        self.leases = 0

    def run(self) -> None:
        """Until nothing is left but the dead."""
        while True:
            self.pass_time()
            if all(m.state in ("settled", "dead") for m in self.messages):
                return
            self.leases += 1
            assert self.leases < self.most, "no end to it"
            name = f"s/{self.leases}/"
            taken = self.group.lease(
                f"{name}0", self.batch, worker="w", reserved_attempts=self.reserved_attempts
            )
            assert taken, "nothing is leased"
            self.process(f"{name}0", taken)
            if self.replays and self.chance.random() < 0.8:
                self.replay(name)

    def pass_time(self) -> None:
        """Let all leases end, and a breaker that is open allow its next trial."""
        self.group.now += 100 * SECOND
        self.group.expire_leases()
        self.group.now = max(self.group.now, self.group.reference.trial_from or 0)

    def replay(self, prefix: str) -> None:
        """The driver died and starts again, at once or after the deadline.

        Up to three times on one batch.
        """
        for attempt in range(1, 4):
            if self.chance.random() < 0.3:
                self.pass_time()
            lease_id = f"{prefix}{attempt}"
            if not self.group.replay_batch(lease_id, again=attempt > 1):
                return
            self.process(lease_id, [m.seq for m in self.group.reference.held_mask(lease_id)])

    def process(self, lease_id: str, held: list[int]) -> None:
        if self.poison & set(held):
            return  # dies; the lease expires
        if self.chance.random() < self.whole_nacks:
            self.settle("nack", lease_id, None)
            return
        bad = [seq for seq in held if self.flaky.get(seq, 0) > 0]
        for seq in bad:
            self.flaky[seq] -= 1
        if bad:
            self.settle("nack", lease_id, bad)
        if len(bad) < len(held):
            self.settle("ack", lease_id, [seq for seq in held if seq not in set(bad)])

    def settle(self, verb: str, lease_id: str, seqs: list[int] | None) -> None:
        assert not self.group.settle(verb, lease_id, seqs).lost

    def dead(self) -> set[int]:
        return {m.seq for m in self.group.reference.by_state("dead")}


@pytest.mark.parametrize(
    ("n", "reserved_attempts"),
    [(2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (3, 1), (4, 1), (5, 1), (6, 1)],
)
@pytest.mark.parametrize("batch", [1, 2, 7, 100, 1000])
def test_one_poison_dies_alone(n, batch, reserved_attempts):
    # With two attempts to isolate in, a batch is drilled down to single messages at once: a lease
    # each.
    messages = min(3 * batch + 5, 100 if n - reserved_attempts == 2 else 600)
    world = World(n, batch, messages, {batch // 2}, reserved_attempts=reserved_attempts)
    world.run()
    assert world.dead() == world.poison


@settings(max_examples=settings.default.max_examples // 2)
@example(
    n=5,
    batch=3,
    messages=6,
    poison={0, 2, 3, 5},
    flaky={0: 1, 1: 2, 4: 2},
    reserved_attempts=0,
    replays=False,
    whole_nacks=0.0,
    seed=0,
)  # the breaker opens
@given(
    n=st.integers(2, 6),
    batch=st.sampled_from([1, 2, 3, 10, 50, 1000]),
    messages=st.integers(2, 80),
    poison=st.sets(st.integers(0, 79), max_size=4),
    flaky=st.dictionaries(st.integers(0, 79), st.integers(1, 7), max_size=5),
    reserved_attempts=st.sampled_from([0, 1]),
    replays=st.booleans(),
    whole_nacks=st.sampled_from([0.0, 0.0, 0.1]),
    seed=st.integers(0, 2**16),
)
def test_what_never_failed_by_itself_is_acked(**given_world):
    """With flaky messages, replays of a dying driver's batch between expiries, and nacks of whole
    leases.
    """
    if given_world["n"] < 3:
        # A replay needs an attempt of its own: the source wants 3 at least.
        given_world |= {"reserved_attempts": 0, "replays": False}
    world = World(**given_world)
    world.run()
    assert world.poison <= world.dead(), "a poison was acked"
    own = {m.seq for m in world.messages if m.own_failure}
    assert world.dead() - world.poison <= own, "an innocent died"
