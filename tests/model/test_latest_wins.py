"""Publishers and workers of a queue whose later messages replace earlier ones, in random order.

Beside them stands a naive record of each message in each group. No group gets a message that was
replaced before its first lease, each group gets all others, and each receipt names the message that
was replaced. Some seed must fail with each wrong version of a rule.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.handles import again
from support.rule_variants import gets, instead, returns, then
from support.tables import messages_of

from spark_mq import Lease, Message
from spark_mq.testing import ManualClock, memory_queue

from .explorer import Violation
from .mutants import Mutant

SEEDS = range(40)
STEPS = 40
IDS = "abcde"
ORDERS = {"plain": "none", "ordered": "key", "fair": "fair"}


@dataclass
class Delivery:
    """A message as one group sees it."""

    leased: bool = False  # without leases that were released
    ended: str = ""  # "acked" or "skipped"


@dataclass
class Record:
    """A message as all groups see it."""

    one: str
    replaced: bool = False
    groups: dict[str, Delivery] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return not all(one.ended for one in self.groups.values())


class World:
    """A queue with a group of each order."""

    def __init__(self, chance: random.Random) -> None:
        self.random, self.clock = chance, ManualClock()
        queue = memory_queue(
            self.clock, dedup_until="settled", dedup_replaces=True, lanes=4, retry_delay=0,
            breaker_threshold=None, max_delivery_attempts=None,
        )  # fmt: skip
        self.handles = [queue, again(queue)]
        for name, order in ORDERS.items():
            queue.group(name).ensure()
            queue.group(name).configure(order=order)
        self.records: dict[int, Record] = {}
        self.leases: list[tuple[str, Lease]] = []

    def run(self) -> None:
        steps = (
            *(self.publish,) * 4, *(self.lease,) * 3, *(self.settle,) * 3, self.expire, self.wait,
            self.index, self.open_again,
        )  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.drain()

    def publish(self) -> None:
        ids = [self.random.choice([*IDS, None]) for _ in range(self.random.randint(1, 4))]
        delay = self.random.choice([None, None, "3s"])
        given = [
            Message("x", key=self.random.choice("klm"), dedup_id=one, deliver_at=delay)
            for one in ids
        ]
        receipt = self.random.choice(self.handles).publish(given)
        replaces, published = dict[int, int](), dict[int, Record]()
        for at, one in enumerate(ids):
            place, comes_again = receipt.sequence_of(at), one is not None and one in ids[at + 1 :]
            if (place is None) != comes_again:
                raise Violation(f"{at} of {ids} is {place}")
            if place is None:
                last = receipt.sequence_of(max(n for n, other in enumerate(ids) if other == one))
                if receipt.duplicate_of[at] != last:
                    raise Violation(f"{at} of {ids} met {receipt.duplicate_of[at]}, not {last}")
                continue
            met = max((seq for seq, r in self.records.items() if r.one == one), default=None)
            if one is not None and met is not None and self.records[met].holds:
                replaces[at] = met
                self.records[met].replaced = True
            published[place] = Record(one or "", groups={name: Delivery() for name in ORDERS})
        if receipt.replaces != replaces:
            raise Violation(f"{ids} replaces {receipt.replaces}, not {replaces}")
        self.records.update(published)

    def lease(self, name: str | None = None, limit: int | None = None) -> bool:
        name = name or self.random.choice(list(ORDERS))
        size = self.random.choice([None, None, 400])
        group = self.random.choice(self.handles).group(name)
        lease = group.lease("w", max_messages=limit or self.random.randint(1, 6), max_bytes=size)
        if lease is None:
            return False
        self.leases.append((name, lease))
        for message in lease.messages:
            record = self.records[message.sequence]
            seen = record.groups[name]
            if seen.ended or (record.replaced and not seen.leased):
                raise Violation(f"{message.sequence} is leased, and {seen.ended or 'replaced'}")
            seen.leased = True
        return True

    def settle(self) -> None:
        if not self.leases:
            return
        name, lease = self.leases.pop(self.random.randrange(len(self.leases)))
        how = self.random.choice(("ack", "ack", "nack", "release"))
        counts = {m.sequence: m.delivery_count for m in lease.messages}
        getattr(lease, how)()
        for sequence, count in counts.items():
            seen = self.records[sequence].groups[name]
            seen.ended = "acked" if how == "ack" else ""
            seen.leased = how != "release" or count > 1

    def expire(self) -> None:
        self.clock.advance("70s")
        self.leases.clear()

    def wait(self) -> None:
        self.clock.advance("2s")

    def index(self) -> None:
        """Write the commits so far to ``commits/``, from which a new handle reads them."""
        messages_of(self.handles[0]).index_commits()

    def open_again(self) -> None:
        self.handles[1] = again(self.handles[0])

    def drain(self) -> None:
        """Deliver all that is left, and look at how each message ended."""
        self.expire()
        for name in ORDERS:
            while self.lease(name, 4):
                _, lease = self.leases.pop()
                lease.ack()
                for message in lease.messages:
                    self.records[message.sequence].groups[name].ended = "acked"
            stats = self.handles[0].group(name).stats()
            seen = [record.groups[name] for record in self.records.values()]
            skipped = sum(not one.ended for one in seen)
            if stats.ready or stats.delayed or stats.skipped != skipped:
                raise Violation(f"{name} has {stats}, and {skipped} messages without a delivery")
            for sequence, record in self.records.items():
                one = record.groups[name]
                if not one.ended and (one.leased or not record.replaced):
                    raise Violation(f"{sequence} was never delivered, and nothing replaced it")


def test_later_messages_win_as_in_a_naive_record() -> None:
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
    Mutant("a file names what it replaces", "", "replaced:valid_replaced", returns(False)),
    Mutant("commits/ has what files replace", "", "commit_rows:_text_column",
           then(lambda found, a: pa.nulls(len(found), pa.string()))),
    Mutant("the last of a publish stays", "", "IdWindow.replaced",
           then(lambda found, a: ({at: met for at, met in found[0].items() if at}, found[1]))),
    Mutant("an id that is held counts", "", "IdWindow.replaced", gets(ask=None)),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_no_rule_of_latest_wins_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(Violation):
        run_worlds()
