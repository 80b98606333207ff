"""Groups of one queue whose letters are redriven, in random order, beside their references.

Each group gets each message once, and each of its letters once for each redrive, and nothing that
was redriven for another group. Some seed must fail with each wrong version of a rule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.marks import slow_but
from support.rule_variants import returns, then

from spark_mq import Message

from .mutants import Mutant
from .public_queue import PublicQueue

SEEDS = range(30)
STEPS = 30
ORDERS = {"plain": "none", "ordered": "key", "fair": "fair"}


class World(PublicQueue):
    """A queue with a group of each order, and groups that begin late."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__({name: {"order": order} for name, order in ORDERS.items()}, lanes=4)
        self.random, self.number = chance, 0
        self.known: dict[int, tuple[Message, str]] = {}
        """By sequence, with the group that alone gets it, if any."""

    def run(self) -> None:
        steps = (
            *(self.publish_some,) * 2, *(self.lease_some,) * 5, *(self.redrive,) * 2, self.index,
            self.open_again, self.begin_late,
        )  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(steps)()
        for name, group in self.groups.items():
            while self.lease_some(name, rejects=0.0):
                pass
            left = [m for m in group.messages if not m.is_over(self.now)]
            assert not left, f"{name} never got {left}"
            assert not (stats := self.group(name).stats()).backlog, f"{name} has {stats}"

    def publish_some(self) -> None:
        self.number += 1
        messages = [
            Message(f"{self.number}.{n}", key=self.random.choice("klm"))
            for n in range(self.random.randint(1, 3))
        ]
        for seq, message in zip(self.publish(messages).sequences, messages, strict=True):
            self.known[seq] = message, ""

    def lease_some(self, name: str | None = None, rejects: float = 0.4) -> bool:
        name, handle = name or self.random.choice(list(self.groups)), self.random.randrange(2)
        ready = [m for m in self.groups[name].messages if not m.is_over(self.now)]
        assert self.group(name, handle).stats().ready == len(ready)
        lease = self.lease(name, self.random.randint(1, 6), handle)
        if lease is None:
            assert not ready, f"{ready} of {name} are ready, and no lease gets one"
            return False
        for message in lease.messages:
            how = "reject" if self.random.random() < rejects else "ack"
            self.settle(how, -1, message.sequence)
        return True

    def redrive(self) -> None:
        self.queue.sweep()
        name, to_all = self.random.choice(list(self.groups)), self.random.random() < 0.2
        where = self.random.choice([None, f"consumer_group = '{name}'"])
        done = self.random.choice(self.handles).redrive(where=where, to_all_groups=to_all)
        letters = Counter[tuple[str, object]]()
        for of, group in self.groups.items():
            for m in group.by_state("dead") if where is None or of == name else ():
                letters[of, self.known[m.seq][0].value] += 1
                m.forget("settled")
        counts = Counter(of for of, _ in letters.elements())
        assert done.groups == ({} if to_all else counts), f"{done} of {counts}"
        redriven = self.queue.peek(1_000, after=max(self.known, default=None))
        assert Counter((m.headers["spark_mq.group"], m.value.decode()) for m in redriven) == letters
        for m in redriven:
            message = Message(m.value.decode(), key=m.key)
            self.known[m.sequence] = message, "" if to_all else m.headers["spark_mq.group"]
            self.tell(m.sequence, self.groups)

    def begin_late(self) -> None:
        """Begin a group at the earliest message."""
        name = f"late-{len(self.groups)}"
        self.begin(name)
        for seq in self.known:
            self.tell(seq, [name])

    def tell(self, seq: int, names: Iterable[str]) -> None:
        """Let the references of some groups know of a message."""
        message, only = self.known[seq]
        self.add(seq, message, names)
        for name in names:
            m = self.message(name, seq)
            m.for_others = only not in ("", name)
            m.wanted = not m.for_others


def test_redrives_agree_with_the_references() -> None:
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
        then(lambda tags, a: {name: one for name, one in tags.items() if "group" not in name}),
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


@pytest.mark.parametrize(
    "mutant", slow_but(MUTANTS[:1], MUTANTS), ids=[mutant.name for mutant in MUTANTS]
)
def test_no_rule_of_redrives_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        run_worlds()
