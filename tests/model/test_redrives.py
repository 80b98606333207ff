"""Groups of one queue whose letters are redriven, in random order, beside a naive record.

Each group gets each message once, and each of its letters once for each redrive, and nothing that
was redriven for another group. Some seed must fail with each wrong version of a rule.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.handles import again
from support.rule_variants import returns, then
from support.tables import messages_of

from spark_mq import Message
from spark_mq.parquet.writer import GROUP_TAG
from spark_mq.testing import ManualClock, memory_queue

from .explorer import Violation
from .mutants import Mutant

SEEDS = range(30)
STEPS = 30
ORDERS = {"plain": "none", "ordered": "key", "fair": "fair"}


class World:
    """A queue with a group of each order, and one that begins late."""

    def __init__(self, chance: random.Random) -> None:
        self.random, self.clock, self.number = chance, ManualClock(), 0
        queue = memory_queue(self.clock, lanes=4, breaker_threshold=None)
        self.handles = [queue, again(queue)]
        self.names = list(ORDERS)
        for name, order in ORDERS.items():
            queue.group(name).ensure()
            queue.group(name).configure(order=order)
        self.wanted = {name: Counter[str]() for name in self.names}  # what is still to come
        self.letters = {name: Counter[str]() for name in self.names}
        self.published = Counter[str]()  # for all groups

    def run(self) -> None:
        steps = (
            *(self.publish,) * 2, *(self.lease,) * 5, *(self.redrive,) * 2, self.index,
            self.open_again, self.begin,
        )  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(steps)()
        for name in self.names:
            while self.lease(name, rejects=0.0):
                pass
            if self.wanted[name].total():
                raise Violation(f"{name} never got {self.wanted[name]}")
            if (stats := self.handles[0].group(name).stats()).backlog:
                raise Violation(f"{name} has {stats}")

    def publish(self) -> None:
        self.number += 1
        values = [f"{self.number}.{n}" for n in range(self.random.randint(1, 3))]
        self.handles[0].publish([Message(one, key=self.random.choice("klm")) for one in values])
        self.for_all(Counter(values))

    def for_all(self, values: Counter[str]) -> None:
        self.published.update(values)
        for wanted in self.wanted.values():
            wanted.update(values)

    def lease(self, name: str | None = None, rejects: float = 0.4) -> bool:
        name = name or self.random.choice(self.names)
        group = self.random.choice(self.handles).group(name)
        ready = group.stats().ready
        lease = group.lease("w", max_messages=self.random.randint(1, 6))
        if lease is None:
            if ready:
                raise Violation(f"{ready} messages of {name} are ready, and no lease gets one")
            return False
        for message in lease.messages:
            if not self.wanted[name][message.text]:
                raise Violation(f"{name} gets {message.text} once too often")
            self.wanted[name][message.text] -= 1
            if self.random.random() < rejects:
                lease.reject([message.sequence])
                self.letters[name][message.text] += 1
            else:
                lease.ack([message.sequence])
        return True

    def redrive(self) -> None:
        self.handles[0].sweep()
        name, to_all = self.random.choice(self.names), self.random.random() < 0.2
        where = self.random.choice([None, f"consumer_group = '{name}'"])
        done = self.random.choice(self.handles).redrive(where=where, to_all_groups=to_all)
        gone = {one: own for one, own in self.letters.items() if where is None or one == name}
        counts = {one: own.total() for one, own in gone.items() if own.total()}
        if done.groups != ({} if to_all else counts):
            raise Violation(f"{done} of {counts}")
        for one, own in gone.items():
            if to_all:
                self.for_all(own)
            else:
                self.wanted[one].update(own)
            self.letters[one] = Counter()

    def begin(self) -> None:
        """Begin a group at the earliest message."""
        name = f"late-{len(self.names)}"
        self.handles[0].group(name).ensure()
        self.names.append(name)
        self.wanted[name], self.letters[name] = Counter(self.published), Counter()

    def index(self) -> None:
        """Write the commits so far to ``commits/``, from which a new handle reads them."""
        messages_of(self.handles[0]).index_commits()

    def open_again(self) -> None:
        self.handles[1] = again(self.handles[0])


def test_redrives_agree_with_a_naive_record() -> None:
    for seed in range(4):
        World(random.Random(seed)).run()


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
def test_a_group_gets_its_own_letters_and_no_others(seed: int) -> None:
    World(random.Random(seed)).run()


def run_worlds() -> None:
    for seed in SEEDS:
        World(random.Random(seed)).run()


MUTANTS = [
    Mutant("a file names its group", "", "WrittenFile.tags",
        then(lambda tags, a: {name: one for name, one in tags.items() if name != GROUP_TAG}),
    ),
    Mutant("commits/ has the group of a file", "", "commit_rows:_text_column",
           then(lambda found, a: pa.nulls(len(found), pa.string()))),
    Mutant("a lease looks at the groups of files", "", "MessageIndex.is_addressed_after",
           returns(False)),
    Mutant("what others get is not ready", "", "MessageIndex.for_others", returns([])),
    Mutant("each group gets its own letters", "", "Redrive._by_group",
           then(lambda found, a: [("plain", table) for _, table in found])),
    Mutant("all groups get it if asked for", "", "Redrive._by_group",
           then(lambda found, a: [(name or "plain", table) for name, table in found])),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_no_rule_of_redrives_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(Violation):
        run_worlds()
