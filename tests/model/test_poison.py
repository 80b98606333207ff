"""Poison messages kill whole leases again and again: only they die, however leases, replays and
nacks fall.

A worker that gets a poison dies, so its lease expires. A flaky message is nacked by name, some
times. What never failed by itself must be acked in the end, and within a bounded number of leases.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ledger_group import applied, limits, replayed

from spark_mq.ledger import transitions
from spark_mq.ledger.acquire import AcquireRequest, acquire
from spark_mq.ledger.isolation import isolation_size
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import DEAD, Ledger, LedgerHeader
from spark_mq.ledger.settle import Settle, SettlePart

SECOND = 1_000_000


@dataclass
class World:
    """One group and its workers.

    `poison` and `flaky` are sequences; a flaky one fails as often as its number says.
    """

    n: int
    batch: int
    messages: int
    poison: set[int]
    flaky: dict[int, int]
    reserved_attempts: int = 0
    replays: bool = False
    whole_nacks: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self):
        # Two commits and a gap, so that pieces are cut across them.
        half = self.messages // 2
        files = [
            DataFile(sequence(1, 0), half, "a", half, 0),
            DataFile(sequence(4, 0), self.messages - half, "b", self.messages, 0),
        ]
        self.index = MessageIndex(files, 4)
        self.all = [f.first + row for f in files for row in range(f.rows)]
        self.poison = {self.all[i % self.messages] for i in self.poison}
        self.flaky = {self.all[i % self.messages]: times for i, times in self.flaky.items()}
        self.rules = limits(
            clock_skew=SECOND,
            max_delivery_attempts=self.n,
            retry_delay=SECOND,
            max_retry_delay=2 * SECOND,
        )
        self.ledger = Ledger(LedgerHeader())
        self.now = 0
        self.leases = 0
        self.own: set[int] = set()  # failed by itself: named in a nack, or alone
        self.runs: dict[int, int] = {}

    def run(self) -> None:
        """Until nothing is left but the dead."""
        most = 60 + self.n * (
            20 * len(self.poison) + self.messages // self.batch * 4 + self.messages
        )
        while True:
            self.now += 100 * SECOND
            self.ledger = transitions.expire_leases(self.ledger, self.now, self.rules)
            if (
                self.ledger.head.counters.get("acked", 0) + self.ledger.count((DEAD,))
                == self.messages
            ):
                return
            self.leases += 1
            assert self.leases < most, "no end to it"
            name = f"s/{self.leases}/"
            wanted = AcquireRequest(
                f"{name}0",
                "w",
                self.batch,
                self.now + 60 * SECOND,
                reserved_attempts=self.reserved_attempts,
            )
            self.ledger, grant = acquire(self.ledger, self.index, self.now, self.rules, wanted)
            assert grant.ranges, grant.blocked_because
            self.process(f"{name}0", grant.ranges)
            if self.replays and self.chance.random() < 0.8:
                self.replay(name)

    def replay(self, prefix: str) -> None:
        """The driver died and starts again, at once or after the deadline.

        Up to three times on one batch.
        """
        for attempt in range(1, 4):
            if self.chance.random() < 0.3:
                self.now += 100 * SECOND
                self.ledger = transitions.expire_leases(self.ledger, self.now, self.rules)
            lease_id = f"{prefix}{attempt}"
            self.ledger, grant = replayed(
                lease_id, self.ledger, self.index, self.now, self.rules, again=attempt > 1,
                worker_id="w", timeout=60 * SECOND,
            )  # fmt: skip
            if not grant.ranges:
                return
            self.process(lease_id, grant.ranges)

    def process(self, lease_id: str, ranges) -> None:
        held = [seq for r in ranges for seq in self.all if r.first <= seq <= r.last]
        for seq in held:
            self.runs[seq] = self.runs.get(seq, 0) + 1
            assert self.runs[seq] <= self.n, "delivered more often than its attempts"
        if self.poison & set(held):
            if len(held) == 1:
                self.own.update(held)
            return  # dies; the lease expires
        if self.chance.random() < self.whole_nacks:
            if len(held) == 1:
                self.own.update(held)
            self.settle("nack", lease_id, None)
            return
        bad = [seq for seq in held if self.flaky.get(seq, 0) > 0]
        for seq in bad:
            self.flaky[seq] -= 1
        self.own.update(bad)
        if bad:
            self.settle("nack", lease_id, bad)
        if len(bad) < len(held):
            self.settle("ack", lease_id, [seq for seq in held if seq not in set(bad)])

    def settle(self, verb: str, lease_id: str, seqs: list[int] | None) -> None:
        intervals = None if seqs is None else [(seq, seq) for seq in seqs]
        command = Settle((SettlePart(verb, lease_id, intervals),))
        self.ledger, (outcome,) = applied(command, self.ledger, self.index, self.now, self.rules)
        assert not outcome.lost

    def dead(self) -> set[int]:
        return {
            seq
            for r in self.ledger
            if r.state == DEAD
            for seq in self.all
            if r.first <= seq <= r.last
        }


@pytest.mark.parametrize(
    ("n", "reserved_attempts"),
    [(2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (3, 1), (4, 1), (5, 1), (6, 1)],
)
@pytest.mark.parametrize("batch", [1, 2, 7, 100, 1000])
def test_one_poison_dies_alone(n, batch, reserved_attempts):
    # With two attempts to isolate in, a batch is drilled down to single messages at once: a lease
    # each.
    messages = min(3 * batch + 5, 100 if n - reserved_attempts == 2 else 600)
    world = World(
        n, batch, messages, poison={batch // 2}, flaky={}, reserved_attempts=reserved_attempts
    )
    world.run()
    assert world.dead() == world.poison


@pytest.mark.parametrize("poison", [0, 500, 999])
@pytest.mark.parametrize("reserved_attempts", [0, 1])
def test_isolation_needs_no_more_leases_than_its_sizes_say(reserved_attempts, poison):
    """One poison in 1,000 with 5 attempts: each level cuts what it got into pieces of the next
    size, so the work stays bounded.
    """
    world = World(
        5, 1000, messages=1000, poison={poison}, flaky={}, reserved_attempts=reserved_attempts
    )
    world.run()
    pieces = [
        1000,
        *(isolation_size(1000, d, 5 - reserved_attempts) for d in range(2, 5 - reserved_attempts)),
    ]
    # Each poisoned piece is cut into pieces of the next size; all but one of them are acked. It
    # may be twice as large as its size says, except for the whole lease, which is retried first.
    cuts = [-(-big // small) for big, small in pairwise(pieces)]
    assert world.leases <= 2 + cuts[0] + 2 * sum(cuts[1:])
    assert world.dead() == world.poison


@settings(max_examples=settings.default.max_examples // 2)
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
    seed = given_world.pop("seed")
    if given_world["n"] < 3:
        # A replay needs an attempt of its own: the source wants 3 at least.
        given_world |= {"reserved_attempts": 0, "replays": False}
    world = World(**given_world, chance=random.Random(seed))
    world.run()
    dead = world.dead()
    assert world.poison <= dead, "a poison was acked"
    assert dead - world.poison <= world.own, "an innocent died"
    assert all(world.runs[seq] <= world.n for seq in world.runs)
