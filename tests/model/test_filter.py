"""Workers of a group with or without a filter in random order, beside the reference.

No lease gets a message that does not match or is for another group, and none skips another one.
Some seed must fail with each wrong version of a rule.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ledger_group import SECOND, Group, limits
from support.marks import slow_but
from support.rule_variants import gets, instead, returns, rule_variant, then
from support.slot_files import LANES, file_of

from spark_mq.ledger.commands import FileProblems
from spark_mq.ledger.message_filter import RowRuns
from spark_mq.ledger.message_index import DataFile, DeliveryTimes, MessageIndex
from spark_mq.ledger.ranges import Ledger, LedgerHeader

from .mutants import Mutant
from .reference import ReferenceGroup, ReferenceMessage

SEEDS = range(60)
STEPS = 30
ORDERS = ("none", "key", "fair")
OWN = "own"
FEW = 10
"""Ranges that the ledger may have, or else it leases nothing unread."""


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
            retry_delay=0, max_tracked_ranges=chance.choice([FEW, 1_000]),
        )  # fmt: skip
        self.files: list[DataFile] = []
        self.group = Group(0, rules, [])
        self.group.ledger = Ledger(LedgerHeader(group=OWN))
        self.reference = ReferenceGroup.of(rules, by_lane=True)
        self.matching: dict[int, bool] = {}  # by sequence
        self.checked: set[str] = set()
        self.leases: list[str] = []
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
        for row, (priority, lane) in enumerate(slots):
            seq, key = file.first + row, None if lane is None else str(lane)
            message = ReferenceMessage(
                seq, 10, key, priority, lane, due, for_others=group not in ("", OWN)
            )
            self.reference.messages.append(message)
        self.change(file)

    def want(self) -> bool:
        return not self.filters or self.random.random() < 0.5

    def matches(self) -> dict[str, RowRuns] | None:
        """Return what the files that were checked have of the filter."""
        if not self.filters:
            return None
        return {
            file.path: runs_of([self.matching[seq] for seq in range(file.first, file.last + 1)])
            for file in self.files
            if file.path in self.checked
        }

    def lease(self, limit: int | None = None) -> bool:
        """Lease as the command does: check the files, and try again. Return whether it did any."""
        limit = limit or self.random.randint(1, 20)
        size = self.random.choice([None, 30, 60])
        self.number += 1
        name, group = f"l{self.number}", self.group
        group.expire_leases()
        self.reference.expire_leases(group.now)
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
        skipped = [
            m
            for m in self.reference.messages
            if m.state != "settled" and group.state(m.seq) == "settled"
        ]
        for m in skipped:
            self.reference.check_skipped(m, group.now)
            m.forget("settled")
        chosen = [
            m for m in self.reference.messages for r in grant.ranges if r.first <= m.seq <= r.last
        ]
        if chosen or not grant.skipped:  # the command asks again after it has only skipped
            self.judge(chosen)
        return bool(chosen or grant.skipped)

    def judge(self, chosen: list[ReferenceMessage]) -> None:
        group, request, now = self.reference, self.group.request, self.group.now
        seqs = [m.seq for m in chosen]
        if self.group.rules.max_tracked_ranges == FEW:  # what is unread may have to wait
            group.check_each(chosen, now)
        else:
            # What is due later holds back its key, because a lease examines it only then.
            later = [m for m in group.messages if m.due_at > now and not (m.wanted or m.for_others)]
            for m in later:
                m.wanted = True
            group.check_grant(seqs, "", request, now)
            for m in later:
                m.wanted = False
        if chosen:
            group.granted(chosen, request.lease_id, request.worker_id, now, request.expires_at)
            self.leases.append(request.lease_id)

    def settle(self) -> None:
        if not self.leases:
            return
        name = self.leases.pop(self.random.randrange(len(self.leases)))
        self.settle_as(self.random.choice(("ack", "nack", "release")), name)

    def settle_as(self, how: str, name: str) -> None:
        self.group.settle(how, name)
        self.reference.settle(how, name, None, self.group.now, whole=False, delay=None, jitter=0)

    def expire(self) -> None:
        self.group.expire()
        self.leases.clear()

    def change(self, *files: DataFile) -> None:
        """Change the filter, or use it for new files. Each process reads the files again for it."""
        if not files:
            self.checked.clear()
        for m in self.reference.messages:
            if not files or m.seq >= files[0].first:
                self.matching[m.seq] = self.want()
                m.wanted = self.matching[m.seq] and not m.for_others

    def drain(self) -> None:
        """Deliver all that is left."""
        for _ in range(3 * len(self.reference.messages) + 10):
            self.group.now += 100 * SECOND
            self.leases.clear()
            self.lease(5)
            for name in self.leases:
                self.settle_as("ack", name)
        left = [m.seq for m in self.reference.messages if m.state != "settled"]
        assert not left, f"{left} were neither delivered nor skipped"
        assert not len(self.group.ledger), "the ledger has ranges of settled messages"


def test_a_filter_agrees_with_the_reference() -> None:
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


@pytest.mark.parametrize(
    "mutant", slow_but(MUTANTS[:1], MUTANTS), ids=[mutant.name for mutant in MUTANTS]
)
def test_no_rule_of_filters_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        run_worlds()


def skip_a_block_of_lanes() -> None:
    """What matches of the highest priority lies in other lanes than what a lease skips first."""
    file = file_of(1, (5, 0, 2), (5, 1, 1), (5, 3, 2), (0, 0, 2))
    group = Group(0, limits(order="key"), [])
    group.index = MessageIndex([file], 1, lanes=LANES)
    matches = {file.path: runs_of([False] * 3 + [True] * 4)}
    grants = [group.ask(f"l{n}", 10, matches=matches) for n in range(3)]
    found = [(r.first - file.first, r.message_count) for grant in grants for r in grant.ranges]
    assert found == [(3, 2), (5, 2)], "a lower priority goes first"
    assert [grant.skipped for grant in grants] == [{"filtered": 3}, {}, {}]


def test_a_lower_priority_waits_until_a_filter_has_skipped_all_that_comes_first() -> None:
    skip_a_block_of_lanes()
    wrong = rule_variant("OrderedWalk.leaves", returns(False))
    with wrong, pytest.raises(AssertionError, match="a lower priority goes first"):
        skip_a_block_of_lanes()
