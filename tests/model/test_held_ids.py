"""Publishers and workers in random order, beside the reference of each group.

No message is published while another one holds its id, and each receipt names the message that it
met. Some seed must fail with each wrong version of a rule.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.limits import Limits
from support.marks import slow_but
from support.rule_variants import gets, instead, then

from spark_mq import Message
from spark_mq.errors import GroupBlocked

from .mutants import Mutant
from .public_queue import PublicQueue
from .reference import ENDED

SEEDS = range(40)
STEPS = 50
IDS = "abcd"
MODES = ("settled", "leased")
GROUPS: dict[str, dict[str, Any]] = {
    "plain": {"max_delivery_attempts": None},
    "blocks": {"on_max_deliveries": "block", "max_delivery_attempts": 2},
}


class World(PublicQueue):
    """A queue with two groups, one of which blocks."""

    def __init__(self, chance: random.Random, until: str) -> None:
        super().__init__(GROUPS, dedup_until=until, retention="0s")
        self.random, self.until = chance, until
        self.ids: dict[int, str] = {}  # by sequence

    def run(self) -> None:
        steps = (
            *(self.publish_some,) * 4, *(self.lease_some,) * 3, *(self.settle_one,) * 3,
            self.expire, self.unblock, self.queue.sweep,
        )  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(steps)()

    def holds(self, seq: int) -> bool:
        seen = self.each_group(seq)
        if self.until == "leased":
            return not any(m.state in ENDED or m.info["delivery_count"] for m in seen)
        return not all(m.state in ENDED for m in seen)

    def may_be_forgotten(self, seq: int) -> bool:
        """A publish may have forgotten its id during a lease that was released later."""
        return self.until == "leased" and any(m.was_leased for m in self.each_group(seq))

    def publish_some(self) -> None:
        ids = [self.random.choice(IDS) for _ in range(self.random.randint(1, 3))]
        newest = dict[str, int]()
        for seq, one in self.ids.items():
            newest[one] = max(seq, newest.get(one, 0))
        held = {one: self.holds(seq) for one, seq in newest.items()}
        messages = [Message(one, dedup_id=one) for one in ids]
        receipt = self.publish(messages, self.random.randrange(2))
        for at, one in enumerate(ids):
            place, met = receipt.sequence_of(at), newest.get(one)
            if (place is None) != held.get(one, False):
                assert met is not None, f"{one!r} is {place}, and nobody holds it"
                forgotten = held[one] and self.may_be_forgotten(met)
                assert forgotten, f"{one!r} is {place}, and {met} holds it: {held[one]}"
            if place is None:
                assert receipt.duplicate_of[at] == met, f"{one!r} met another than {met}"
            else:
                newest[one], held[one], self.ids[place] = place, True, one
        if self.until == "settled":
            holders = [one for seq, one in self.ids.items() if self.holds(seq)]
            assert len(holders) == len(set(holders)), f"unsettled with one id: {sorted(holders)}"

    def lease_some(self) -> None:
        name, limit = self.random.choice(list(GROUPS)), self.random.randint(1, 4)
        with suppress(GroupBlocked):
            self.lease(name, limit)

    def settle_one(self) -> None:
        if self.leases:
            how = self.random.choice(("ack", "nack", "reject", "release"))
            self.settle(how, self.random.randrange(len(self.leases)))

    def unblock(self) -> None:
        if self.ids:
            chosen = self.random.choice(list(self.ids))
            how = self.random.choice(("retry", "drop", "dead_letter"))
            changed = self.group("blocks").unblock(how, [chosen])
            assert changed == self.groups["blocks"].unblock(how, self.now, [chosen])


@pytest.fixture(autouse=True)
def small_blocks(limits: Limits) -> None:
    """Blocks ask which of their ids are held from two ids on."""
    limits(ask_ids=2)


@pytest.mark.parametrize("until", MODES)
def test_held_ids_agree_with_the_reference(until: str) -> None:
    for seed in range(3):
        World(random.Random(seed), until).run()


@pytest.mark.slow
@pytest.mark.parametrize("until", MODES)
@given(seed=st.integers(0, 2**32))
def test_no_message_is_published_while_another_one_holds_its_id(seed: int, until: str) -> None:
    World(random.Random(seed), until).run()


def run_worlds() -> None:
    for seed in SEEDS:
        World(random.Random(seed), MODES[seed % 2]).run()


def without(state: str) -> Any:
    """A rule by which messages in a state hold nothing."""
    return instead(lambda right, a: a.piece.state != state and right(**vars(a)))


MUTANTS = [
    Mutant("a message that is ready holds its id", "", "walk:_holds", without("ready")),
    Mutant("one that is leased does", "", "walk:_holds", without("leased")),
    Mutant("one that blocks its group does", "", "walk:_holds", without("blocked")),
    Mutant("one that was delivered does not until it is leased", "", "walk:_holds",
           gets(until="settled")),
    Mutant("a group that is behind counts", "", "walk:held_ids",
           gets(groups=lambda a: a.groups[:1])),
    Mutant("each group counts", "", "walk:held_ids",
           gets(groups=lambda a: a.groups[1:])),
    Mutant("a message before the start of a group has ended there", "", "walk:_held_in",
           then(lambda found, a: found | set(a.sequences))),
    Mutant("an id that is held counts", "", "IdWindow.duplicates", gets(ask=None)),
    Mutant("ids are kept as long as they are held", "", "IdWindow.with_ids", gets(ask=None)),
    Mutant("a block asks", "", "IdWindow.with_ids",
           gets(ask=lambda a: lambda sequences: a.ask(sequences)._replace(sequences=set()))),
    Mutant("a block stays while its messages may hold ids", "", "IdWindow.with_ids",
           gets(ask=lambda a: lambda sequences: a.ask(sequences)._replace(up_to=2**62))),
]  # fmt: skip


@pytest.mark.parametrize(
    "mutant", slow_but(MUTANTS[:1], MUTANTS), ids=[mutant.name for mutant in MUTANTS]
)
def test_no_rule_of_held_ids_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        run_worlds()
