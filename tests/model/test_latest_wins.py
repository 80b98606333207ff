"""Publishers and workers of a queue whose later messages replace earlier ones, in random order.

Beside each group stands the reference. No group gets a message that was replaced before its first
lease, each group gets all others, and each receipt names the message that was replaced. Some seed
must fail with each wrong version of a rule.
"""

from __future__ import annotations

import random
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.marks import slow_but
from support.rule_variants import gets, instead, returns, then

from spark_mq import Message

from .mutants import Mutant
from .public_queue import PublicQueue

SEEDS = range(40)
STEPS = 40
IDS = "abcde"
ORDERS = ("none", "key", "fair")


class World(PublicQueue):
    """A queue with a group of each order."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(
            {order: {"order": order} for order in ORDERS}, dedup_until="settled",
            dedup_replaces=True, lanes=4, max_delivery_attempts=None,
        )  # fmt: skip
        self.random = chance
        self.ids: dict[int, str | None] = {}  # by sequence

    def run(self) -> None:
        steps = (
            *(self.publish_some,) * 4, *(self.lease_some,) * 3, *(self.settle_one,) * 3,
            self.expire, self.wait, self.index, self.open_again,
        )  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.drain()

    def publish_some(self) -> None:
        ids = [self.random.choice([*IDS, None]) for _ in range(self.random.randint(1, 4))]
        delay = self.random.choice([None, None, timedelta(seconds=3)])
        messages = [
            Message("x", key=self.random.choice("klm"), dedup_id=one, deliver_at=delay)
            for one in ids
        ]
        known = dict(self.ids)
        receipt = self.publish(messages, self.random.randrange(2))
        replaces = dict[int, int]()
        for at, one in enumerate(ids):
            place, comes_again = receipt.sequence_of(at), one is not None and one in ids[at + 1 :]
            assert (place is None) == comes_again, f"{at} of {ids} is {place}"
            if place is None:
                last = receipt.sequence_of(max(n for n, other in enumerate(ids) if other == one))
                assert receipt.duplicate_of[at] == last, f"{at} of {ids} met another than {last}"
                continue
            self.ids[place] = one
            met = max((seq for seq, other in known.items() if other == one), default=None)
            if one is not None and met is not None and self.holds(met):
                replaces[at] = met
                for m in self.each_group(met):
                    m.wanted = False
        assert receipt.replaces == replaces, f"{ids} replaces {receipt.replaces}, not {replaces}"

    def holds(self, seq: int) -> bool:
        return any(m.state != "settled" for m in self.each_group(seq))

    def lease_some(self) -> None:
        size = self.random.choice([None, None, 400])
        name, handle = self.random.choice(ORDERS), self.random.randrange(2)
        self.lease(name, self.random.randint(1, 6), handle, max_bytes=size)

    def settle_one(self) -> None:
        if self.leases:
            how = self.random.choice(("ack", "ack", "nack", "release"))
            self.settle(how, self.random.randrange(len(self.leases)))

    def wait(self) -> None:
        self.clock.advance("2s")

    def drain(self) -> None:
        """Deliver all that is left, and look at how each message ended."""
        self.expire()
        for name, group in self.groups.items():
            while self.lease(name, 4):
                self.settle("ack")
            stats = self.group(name).stats()
            left = [m for m in group.messages if m.state != "settled"]
            assert all(m.is_skipped for m in left), f"{left} were never delivered"
            assert (stats.ready, stats.delayed, stats.skipped) == (0, 0, len(left)), f"{stats}"


def test_later_messages_win_as_in_the_reference() -> None:
    for seed in range(4):
        World(random.Random(seed)).run()


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
def test_a_group_gets_the_last_message_of_each_id(seed: int) -> None:
    World(random.Random(seed)).run()


def run_worlds() -> None:
    for seed in SEEDS:
        World(random.Random(seed)).run()


MUTANTS = [
    Mutant("a replaced message is skipped", "", "WalkFilter.runs",
           instead(lambda right, a: [("", a.first, a.last)])),
    Mutant("what was leased before is not skipped", "", "WalkFilter.runs", gets(row=None)),
    Mutant("the others of its file are not skipped", "", "WalkFilter.runs",
           instead(lambda right, a: [
               (max(one[0] for one in right(**vars(a))), a.first, a.last)])),
    Mutant("a group that has not reached it skips it, too", "", "MessageIndex.replaced_after",
           gets(seq=lambda a: a.seq + (1 << 32))),
    Mutant("a file names what it replaces", "", "valid_replaced", returns(False)),
    Mutant("commits/ has what files replace", "", "commit_rows:_text_column",
           then(lambda found, a: pa.nulls(len(found), pa.string()))),
    Mutant("the last of a publish stays", "", "IdWindow.replaced",
           then(lambda found, a: ({at: met for at, met in found[0].items() if at}, found[1]))),
    Mutant("an id that is held counts", "", "IdWindow.replaced", gets(ask=None)),
]  # fmt: skip


@pytest.mark.parametrize(
    "mutant", slow_but(MUTANTS[:1], MUTANTS), ids=[mutant.name for mutant in MUTANTS]
)
def test_no_rule_of_latest_wins_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        run_worlds()
