"""Workers of a group with or without a filter in random order, beside a naive record.

No lease gets a message that does not match or is for another group, and none skips another one.
Some seed must fail with each wrong version of a rule.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ledger_group import SECOND, Group, limits
from support.rule_variants import gets, instead, returns, then
from support.slot_files import LANES, file_of

from spark_mq.ledger.commands import FileProblems
from spark_mq.ledger.message_index import DataFile, DeliveryTimes, MessageIndex
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.ledger.walk_filter import RowRuns

from .explorer import Violation
from .mutants import Mutant

SEEDS = range(60)
STEPS = 30
ORDERS = ("none", "key", "fair")
OWN = "own"


@dataclass
class Delivery:
    """A message as the group should see it."""

    file: str
    slot: tuple[int, int | None]
    wanted: bool  # by the filter
    group: str = ""  # the only one that gets it
    due: int = 0
    leases: int = 0  # without those that were released
    ended: str = ""  # "acked" or "skipped"

    @property
    def matches(self) -> bool:
        return self.wanted and self.group in ("", OWN)


def runs_of(matches: list[bool]) -> RowRuns:
    ends = [
        n for n in range(1, len(matches) + 1) if n == len(matches) or matches[n - 1] != matches[n]
    ]
    return RowRuns(array("q", ends), matches[0])


class World:
    """A group on a log that grows, whose filter may change."""

    def __init__(self, chance: random.Random, order: str) -> None:
        self.random, self.order, self.filters = chance, order, chance.random() < 0.7
        rules = limits(
            breaker_threshold=None, max_delivery_attempts=None, order=order, retry="constant",
            retry_delay=0, max_tracked_ranges=chance.choice([10, 1_000]),
        )  # fmt: skip
        self.files: list[DataFile] = []
        self.group = Group(0, rules, [])
        self.group.ledger = Ledger(LedgerHeader(group=OWN))
        self.messages: dict[int, Delivery] = {}
        self.checked: set[str] = set()
        self.leases: dict[str, list[int]] = {}
        self.number = 0
        self.publish()

    def run(self) -> None:
        steps = (self.publish, *(self.lease,) * 4, *(self.settle,) * 3, self.expire, self.change)
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.drain()

    def publish(self) -> None:
        priorities = (0, 0, 5) if self.order == "key" else (0,)
        runs = [
            (self.random.choice(priorities), self.random.choice([None, 0, 1, 2]), rows)
            for rows in (self.random.randint(1, 9) for _ in range(self.random.randint(1, 3)))
        ]
        rows, times, due = sum(rows for *_, rows in runs), None, 0
        if self.random.random() < 0.2:
            due = self.group.now + self.random.randint(1, 90) * SECOND
            times = DeliveryTimes.of([(rows, due, None)])
        group = self.random.choice(["", "", "", OWN, "other"])
        file = replace(file_of(len(self.files) + 1, *runs, times=times), group=group)
        self.files.append(file)
        self.group.index = MessageIndex(self.files, len(self.files), lanes=LANES)
        slots = [(priority, lane) for priority, lane, rows in runs for _ in range(rows)]
        for row, slot in enumerate(slots):
            self.messages[file.first + row] = Delivery(file.path, slot, self.want(), group, due)

    def want(self) -> bool:
        return not self.filters or self.random.random() < 0.5

    def matches(self) -> dict[str, RowRuns] | None:
        """Return what the files that were checked have of the filter."""
        if not self.filters:
            return None
        found: dict[str, list[bool]] = {}
        for one in self.messages.values():
            if one.file in self.checked:
                found.setdefault(one.file, []).append(one.wanted)
        return {path: runs_of(matches) for path, matches in found.items()}

    def lease(self, limit: int | None = None) -> bool:
        """Lease as the command does: check the files, and try again. Return whether it did any."""
        limit = limit or self.random.randint(1, 20)
        size = self.random.choice([None, 30, 60])
        self.number += 1
        name, group = f"l{self.number}", self.group
        group.expire_leases()
        before = group.ledger
        while True:
            group.ledger = before
            matches = self.matches()
            grant = group.ask(name, limit, max_bytes=size, matches=matches)
            known = FileProblems(self.checked, matches=matches)
            unsure = known.unsure(group.index, grant.ranges)
            if not unsure:
                break
            self.checked |= {file.path for file in unsure}
        granted = [seq for r in grant.ranges for seq in self.messages if r.first <= seq <= r.last]
        self.judge(granted, limit)
        if granted:
            self.leases[name] = granted
        return bool(granted or grant.skipped)

    def judge(self, granted: list[int], limit: int) -> None:
        if len(granted) > limit:
            raise Violation(f"{len(granted)} messages are leased, and {limit} were wanted")
        for seq in granted:
            one = self.messages[seq]
            if one.ended or one.due > self.group.now:
                raise Violation(f"{seq} is leased, and it is {one.ended or 'not due'}")
            if not (one.matches or one.leases):
                raise Violation(f"{seq} is leased, and does not match")
            one.leases += 1
        for seq, one in self.messages.items():
            if self.group.state(seq) == "settled" and not one.ended:
                # What only another group gets may be settled before it is due.
                early = one.due > self.group.now and one.group in ("", OWN)
                if one.matches or one.leases or early:
                    raise Violation(f"{seq} is skipped, and matches, was leased or is not due")
                one.ended = "skipped"
        if self.order == "key":
            self.judge_order(granted)

    def judge_order(self, granted: list[int]) -> None:
        for seq in granted:
            slot = self.messages[seq].slot
            for other, one in self.messages.items():
                earlier = other < seq and one.slot == slot and slot[1] is not None
                if earlier and other not in granted and not one.ended:
                    raise Violation(f"{seq} overtakes {other} of its key")

    def settle(self) -> None:
        if not self.leases:
            return
        name = self.random.choice(list(self.leases))
        how = self.random.choice(("ack", "nack", "release"))
        self.group.settle(how, name)
        for seq in self.leases.pop(name):
            one = self.messages[seq]
            if how == "ack":
                one.ended = "acked"
            one.leases -= how == "release"

    def expire(self) -> None:
        self.group.expire()
        self.leases.clear()

    def change(self) -> None:
        """Change the filter. Each process reads the files again for it."""
        self.checked.clear()
        for one in self.messages.values():
            one.wanted = self.want()

    def drain(self) -> None:
        """Deliver all that is left."""
        for _ in range(3 * len(self.messages) + 10):
            self.group.now += 100 * SECOND
            self.group.expire_leases()
            self.leases.clear()
            self.lease(5)
            for name, seqs in self.leases.items():
                self.group.settle("ack", name)
                for seq in seqs:
                    self.messages[seq].ended = "acked"
        if left := [seq for seq, one in self.messages.items() if not one.ended]:
            raise Violation(f"{left} were neither delivered nor skipped")
        if len(self.group.ledger):
            raise Violation("the ledger has ranges of settled messages")


def test_a_filter_agrees_with_a_naive_record() -> None:
    for seed in range(15):
        World(random.Random(seed), ORDERS[seed % 3]).run()


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@given(seed=st.integers(0, 2**32))
def test_each_message_that_matches_is_delivered_and_no_other(seed: int, order: str) -> None:
    World(random.Random(seed), order).run()


def run_worlds() -> None:
    for seed in SEEDS:
        World(random.Random(seed), ORDERS[seed % 3]).run()


MUTANTS = [
    Mutant("a group gets only what matches", "", "WalkFilter.runs",
           instead(lambda right, a: [("", a.first, a.last)])),
    Mutant("what was leased before is not examined again", "", "WalkFilter.runs", gets(row=None)),
    Mutant("what matches is not skipped", "", "WalkFilter.runs",
           instead(lambda right, a: [
               (max(one[0] for one in right(**vars(a))), a.first, a.last)])),
    Mutant("what does not match is skipped", "", "WalkFilter.skip", returns(None)),
    Mutant("a file that no check has read is not leased from", "", "FileProblems.unsure",
           returns([])),
    Mutant("a group gets nothing that is for another", "", "FileColumns.file",
           then(lambda file, a: replace(file, group=""))),
    Mutant("a group gets what is for it", "", "FileColumns.file",
           then(lambda file, a: replace(file, group=file.group and "x"))),
    Mutant("a group without a filter skips, too", "", "MessageIndex.is_addressed_after",
           returns(False)),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_no_rule_of_filters_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(Violation):
        run_worlds()
