"""Publishers and workers in random order, beside a naive record of what each group has done.

No message is published while another one holds its id, and each receipt names the message that it
met. Some seed must fail with each wrong version of a rule.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.handles import again
from support.rule_variants import gets, instead, then

from spark_mq import Lease, Message
from spark_mq.errors import GroupBlocked
from spark_mq.ledger.held_ids import Held
from spark_mq.storage import id_files
from spark_mq.testing import ManualClock, memory_queue

from .explorer import Violation
from .mutants import Mutant

SEEDS = range(40)
STEPS = 50
IDS = "abcd"
MODES = ("settled", "leased")


@dataclass
class Delivery:
    """A message as one group sees it."""

    count: int = 0
    ended: bool = False
    leased: bool = False
    """Once, also if the lease was released later. A publish meanwhile may have forgotten the id."""


@dataclass
class Record:
    """A message as all groups see it."""

    one: str
    sequence: int
    groups: dict[str, Delivery] = field(default_factory=dict)

    def holds(self, until: str) -> bool:
        seen = self.groups.values()
        if until == "leased":
            return not any(one.ended or one.count for one in seen)
        return not all(one.ended for one in seen)


class World:
    """A queue with two groups, one of which blocks."""

    def __init__(self, chance: random.Random, until: str) -> None:
        self.random, self.until = chance, until
        self.clock = ManualClock()
        self.queue = memory_queue(
            self.clock, dedup_until=until, retention="0s", retry_delay=0, breaker_threshold=None
        )
        self.handles = [self.queue, again(self.queue)]
        self.groups = {name: self.queue.group(name) for name in ("plain", "blocks")}
        for group in self.groups.values():
            group.ensure()
        self.groups["blocks"].configure(on_max_deliveries="block", max_delivery_attempts=2)
        self.groups["plain"].configure(max_delivery_attempts=None)
        self.records: dict[int, Record] = {}
        self.leases: list[tuple[str, Lease]] = []

    def run(self) -> None:
        steps = (
            *(self.publish,) * 4, *(self.lease,) * 3, *(self.settle,) * 3,
            self.expire, self.unblock, self.sweep,
        )  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(steps)()

    def publish(self) -> None:
        ids = [self.random.choice(IDS) for _ in range(self.random.randint(1, 3))]
        queue = self.random.choice(self.handles)
        receipt = queue.publish([Message(one, dedup_id=one) for one in ids])
        for at, one in enumerate(ids):
            newest = max((r.sequence for r in self.records.values() if r.one == one), default=None)
            holds = newest is not None and self.records[newest].holds(self.until)
            place = receipt.sequence_of(at)
            if (place is None) != holds and not (holds and self.may_be_forgotten(newest)):
                raise Violation(f"{one!r} is {place}, and {newest} {'holds' if holds else 'ended'}")
            if place is None and receipt.duplicate_of[at] != newest:
                raise Violation(f"{one!r} met {receipt.duplicate_of[at]}, not {newest}")
            if place is not None:
                self.records[place] = Record(one, place, {name: Delivery() for name in self.groups})
        if self.until == "settled":
            holders = [r.one for r in self.records.values() if r.holds(self.until)]
            if len(holders) > len(set(holders)):
                raise Violation(f"unsettled messages with the same id: {sorted(holders)}")

    def may_be_forgotten(self, newest: int | None) -> bool:
        found = self.records.get(-1 if newest is None else newest)
        leased = found is not None and any(one.leased for one in found.groups.values())
        return self.until == "leased" and leased

    def lease(self) -> None:
        name = self.random.choice(list(self.groups))
        with suppress(GroupBlocked):
            lease = self.groups[name].lease("w", max_messages=self.random.randint(1, 4))
            if lease is not None:
                self.leases.append((name, lease))
                for message in lease.messages:
                    seen = self.records[message.sequence].groups[name]
                    seen.count, seen.leased = seen.count + 1, True

    def settle(self) -> None:
        if not self.leases:
            return
        name, lease = self.leases.pop(self.random.randrange(len(self.leases)))
        how = self.random.choice(("ack", "nack", "reject", "release"))
        getattr(lease, how)()
        for message in lease.messages:
            seen = self.records[message.sequence].groups[name]
            seen.ended = how in ("ack", "reject")
            seen.count -= how == "release"

    def expire(self) -> None:
        self.clock.advance("70s")
        self.leases.clear()

    def unblock(self) -> None:
        if self.records:
            chosen = self.random.choice(list(self.records))
            how = self.random.choice(("retry", "drop", "dead_letter"))
            if self.groups["blocks"].unblock(how, [chosen]):
                seen = self.records[chosen].groups["blocks"]
                seen.ended, seen.count = how != "retry", 0

    def sweep(self) -> None:
        self.queue.sweep()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks ask which of their ids are held from two ids on."""
    monkeypatch.setattr(id_files, "ASK_IDS", 2)


@pytest.mark.parametrize("until", MODES)
def test_held_ids_agree_with_a_naive_record(until: str) -> None:
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
    Mutant("a message that is ready holds its id", "", "held_ids:_holds", without("ready")),
    Mutant("one that is leased does", "", "held_ids:_holds", without("leased")),
    Mutant("one that blocks its group does", "", "held_ids:_holds", without("blocked")),
    Mutant("one that was delivered does not until it is leased", "", "held_ids:_holds",
           gets(until="settled")),
    Mutant("a group that is behind counts", "", "held_ids:held_ids",
           gets(groups=lambda a: a.groups[:1])),
    Mutant("each group counts", "", "held_ids:held_ids",
           gets(groups=lambda a: a.groups[1:])),
    Mutant("a message before the start of a group has ended there", "", "held_ids:_held_in",
           then(lambda found, a: found | set(a.sequences))),
    Mutant("an id that is held counts", "", "IdWindow.duplicates", gets(ask=None)),
    Mutant("ids are kept as long as they are held", "", "IdWindow.with_ids", gets(ask=None)),
    Mutant("a block asks", "", "IdWindow.with_ids",
           gets(ask=lambda a: lambda sequences: Held(a.ask(sequences).up_to, set()))),
    Mutant("a block stays while its messages may hold ids", "", "IdWindow.with_ids",
           gets(ask=lambda a: lambda sequences: Held(2**62, a.ask(sequences).sequences))),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_no_rule_of_held_ids_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(Violation):
        run_worlds()
