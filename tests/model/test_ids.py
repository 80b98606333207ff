"""Publishers with dedup ids and workers in random order, beside the reference of each group.

No message is published while another one holds its id, or each replaces the one before it. Then no
group gets a message that was replaced before its first lease, and each gets all others. Each
receipt names the message that it met. Some seed must fail with each wrong version of a rule.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.limits import Limits
from support.marks import slow_but
from support.rule_variants import gets, instead, returns, then

from spark_mq import Message, PublishReceipt
from spark_mq.errors import GroupBlocked

from .mutants import Mutant
from .public_queue import PublicQueue
from .reference import ENDED

SEEDS = range(40)
STEPS = 50
IDS = "abcd"
MODES: dict[str, dict[str, Any]] = {
    "settled": {"dedup_until": "settled", "retention": "0s"},
    "leased": {"dedup_until": "leased", "retention": "0s"},
    "replaces": {"dedup_until": "settled", "dedup_replaces": True, "lanes": 4},
}
"""Settings of the queue."""
GROUPS: dict[str, dict[str, Any]] = {
    "plain": {"max_delivery_attempts": None},
    "blocks": {"on_max_deliveries": "block", "max_delivery_attempts": 2},
}
ORDERS: dict[str, dict[str, Any]] = {
    order: {"order": order, "max_delivery_attempts": None} for order in ("none", "key", "fair")
}


class World(PublicQueue):
    """A queue with a group that blocks, or whose later messages replace earlier ones."""

    def __init__(self, chance: random.Random, mode: str) -> None:
        self.random, self.mode, self.replaces = chance, mode, mode == "replaces"
        super().__init__(ORDERS if self.replaces else GROUPS, **MODES[mode])
        self.ids: dict[int, str | None] = {}  # by sequence

    def run(self) -> None:
        own = (self.unblock, self.queue.sweep)
        if self.replaces:
            own = (self.wait, self.index, self.open_again)
        steps = (*(self.publish_some,) * 4, *(self.lease_some,) * 3, *(self.settle_one,) * 3)
        for _ in range(STEPS):
            self.random.choice((*steps, self.expire, *own))()
        if self.replaces:
            self.drain()

    # -- publish

    def publish_some(self) -> None:
        choices = [*IDS, None] if self.replaces else [*IDS]
        ids = [self.random.choice(choices) for _ in range(self.random.randint(1, 4))]
        delay = self.random.choice([None, None, timedelta(seconds=3)])
        messages = [
            Message("x", key=self.random.choice("klm"), dedup_id=one, deliver_at=delay)
            for one in ids
        ]
        newest = {one: seq for seq, one in sorted(self.ids.items()) if one is not None}
        held = {one: self.holds(seq) for one, seq in newest.items()}
        receipt = self.publish(messages, self.random.randrange(2))
        places = [receipt.sequence_of(at) for at in range(len(ids))]
        self.ids |= {seq: one for seq, one in zip(places, ids, strict=True) if seq is not None}
        judge = self.judge_replaced if self.replaces else self.judge_held
        judge(ids, receipt, newest, held)

    def holds(self, seq: int) -> bool:
        seen = self.each_group(seq)
        if self.mode == "leased":
            return not any(m.state in ENDED or m.info["delivery_count"] for m in seen)
        return not all(m.state in ENDED for m in seen)

    def may_be_forgotten(self, seq: int) -> bool:
        """A publish may have forgotten its id during a lease that was released later."""
        return self.mode == "leased" and any(m.was_leased for m in self.each_group(seq))

    def judge_held(
        self, ids: Sequence[Any], receipt: PublishReceipt, newest: dict[str, int],
        held: dict[str, bool],
    ) -> None:  # fmt: skip
        for at, one in enumerate(ids):
            place, met = receipt.sequence_of(at), newest.get(one)
            if (place is None) != held.get(one, False):
                assert met is not None, f"{one!r} is {place}, and nobody holds it"
                forgotten = held[one] and self.may_be_forgotten(met)
                assert forgotten, f"{one!r} is {place}, and {met} holds it: {held[one]}"
            if place is None:
                assert receipt.duplicate_of[at] == met, f"{one!r} met another than {met}"
            else:
                newest[one], held[one] = place, True
        if self.mode == "settled":
            holders = [one for seq, one in self.ids.items() if self.holds(seq)]
            assert len(holders) == len(set(holders)), f"unsettled with one id: {holders}"

    def judge_replaced(
        self, ids: Sequence[Any], receipt: PublishReceipt, newest: Mapping[str, int],
        held: Mapping[str, bool],
    ) -> None:  # fmt: skip
        last, replaces = {one: at for at, one in enumerate(ids)}, dict[int, int]()
        for at, one in enumerate(ids):
            place, comes_again = receipt.sequence_of(at), one is not None and last[one] != at
            assert (place is None) == comes_again, f"{at} of {ids} is {place}"
            if comes_again:
                met = receipt.sequence_of(last[one])
                assert receipt.duplicate_of[at] == met, f"{at} of {ids} met another than {met}"
            elif held.get(one, False):
                replaces[at] = newest[one]
                for m in self.each_group(newest[one]):
                    m.wanted = False
        assert receipt.replaces == replaces, f"{ids} replaces {receipt.replaces}, not {replaces}"

    # -- work

    def lease_some(self) -> None:
        name, handle = self.random.choice(list(self.groups)), self.random.randrange(2)
        size = self.random.choice([None, None, 400])
        with suppress(GroupBlocked):
            self.lease(name, self.random.randint(1, 5), handle, max_bytes=size)

    def settle_one(self) -> None:
        if self.leases:
            how = self.random.choice(
                ("ack", "nack", "release", "ack" if self.replaces else "reject")
            )
            self.settle(how, self.random.randrange(len(self.leases)))

    def unblock(self) -> None:
        if self.ids:
            chosen = self.random.choice(list(self.ids))
            how = self.random.choice(("retry", "drop", "dead_letter"))
            changed = self.group("blocks").unblock(how, [chosen])
            assert changed == self.groups["blocks"].unblock(how, self.now, [chosen])

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


@pytest.fixture(autouse=True)
def small_blocks(limits: Limits) -> None:
    """Blocks ask which of their ids are held from two ids on."""
    limits(ask_ids=2)


def run_worlds(mode: str, seeds: Sequence[int]) -> None:
    for seed in seeds:
        World(random.Random(seed), mode).run()


@pytest.mark.parametrize("mode", MODES)
def test_ids_agree_with_the_reference(mode: str) -> None:
    run_worlds(mode, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@given(seed=st.integers(0, 2**32))
def test_ids_agree_with_the_reference_in_many_worlds(seed: int, mode: str) -> None:
    run_worlds(mode, [seed])


def without(state: str) -> Any:
    """A rule by which messages in a state hold nothing."""
    return instead(lambda right, a: a.piece.state != state and right(**vars(a)))


MUTANTS = [
    Mutant("a message that is ready holds its id", "settled", "walk:_holds", without("ready")),
    Mutant("one that is leased does", "settled", "walk:_holds", without("leased")),
    Mutant("one that blocks its group does", "settled", "walk:_holds", without("blocked")),
    Mutant("one that was delivered does not until it is leased", "leased", "walk:_holds",
           gets(until="settled")),
    Mutant("a group that is behind counts", "settled", "walk:held_ids",
           gets(groups=lambda a: a.groups[:1])),
    Mutant("each group counts", "settled", "walk:held_ids",
           gets(groups=lambda a: a.groups[1:])),
    Mutant("a message before the start of a group has ended there", "settled", "walk:_held_in",
           then(lambda found, a: found | set(a.sequences))),
    Mutant("an id that is held counts", "settled", "IdWindow.duplicates", gets(ask=None)),
    Mutant("ids are kept as long as they are held", "settled", "IdWindow.with_ids",
           gets(ask=None)),
    Mutant("a block asks", "settled", "IdWindow.with_ids",
           gets(ask=lambda a: lambda sequences: a.ask(sequences)._replace(sequences=set()))),
    Mutant("a block stays while its messages may hold ids", "settled", "IdWindow.with_ids",
           gets(ask=lambda a: lambda sequences: a.ask(sequences)._replace(up_to=2**62))),
    # -- later messages that replace earlier ones
    Mutant("a replaced message is skipped", "replaces", "WalkFilter.runs",
           instead(lambda right, a: [("", a.first, a.last)])),
    Mutant("what was leased before is not skipped", "replaces", "WalkFilter.runs", gets(row=None)),
    Mutant("the others of its file are not skipped", "replaces", "WalkFilter.runs",
           instead(lambda right, a: [
               (max(one[0] for one in right(**vars(a))), a.first, a.last)])),
    Mutant("a group that has not reached it skips it, too", "replaces",
           "MessageIndex.replaced_after", gets(seq=lambda a: a.seq + (1 << 32))),
    Mutant("a file names what it replaces", "replaces", "valid_replaced", returns(False)),
    Mutant("commits/ has what files replace", "replaces", "commit_rows:_text_column",
           then(lambda found, a: pa.nulls(len(found), pa.string()))),
    Mutant("the last of a publish stays", "replaces", "IdWindow.replaced",
           then(lambda found, a: ({at: met for at, met in found[0].items() if at}, found[1]))),
    Mutant("an id that is held is replaced", "replaces", "IdWindow.replaced", gets(ask=None)),
]  # fmt: skip


DAILY = {mutant.world: mutant for mutant in reversed(MUTANTS)}.values()


@pytest.mark.parametrize("mutant", slow_but(DAILY, MUTANTS), ids=[m.name for m in MUTANTS])
def test_no_rule_of_ids_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        run_worlds(mutant.world, SEEDS)
