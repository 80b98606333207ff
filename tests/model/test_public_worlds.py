"""One queue in random order through its public API, beside the reference of each group.

No message is published while another one holds its id, or each replaces the one before it. No
group gets a message that was replaced before its first lease, that does not match its filter, or
that was redriven for another group. Each gets all others, and each of its letters once for each
redrive. Some seed must fail with each wrong version of a rule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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
KEYS = "klm"
GROUPS: dict[str, dict[str, Any]] = {
    "plain": {"max_delivery_attempts": None},
    "blocks": {"on_max_deliveries": "block", "max_delivery_attempts": 2},
}
ORDERS: dict[str, dict[str, Any]] = {
    order: {"order": order, "max_delivery_attempts": None} for order in ("none", "key", "fair")
}


class World(PublicQueue):
    """A queue whose next step a seed draws."""

    def __init__(self, chance: random.Random, groups: dict[str, Any], **settings: Any) -> None:
        self.random = chance
        super().__init__(groups, **settings)

    def run(self) -> None:
        steps = (*(self.publish_some,) * 4, *(self.lease_some,) * 3, *(self.settle_one,) * 3)
        for _ in range(STEPS):
            self.random.choice((*steps, self.expire, *self.own_steps()))()
        if "blocks" not in self.groups:
            self.drain()

    def own_steps(self) -> Sequence[Callable[[], object]]:
        raise NotImplementedError

    def publish_some(self) -> None:
        raise NotImplementedError

    def lease_some(self) -> None:
        name, handle = self.random.choice(list(self.groups)), self.random.randrange(2)
        size = self.random.choice([None, None, 400])
        with suppress(GroupBlocked):
            self.lease(name, self.random.randint(1, 5), handle, max_bytes=size)

    def settle_one(self) -> None:
        if not self.leases:
            return
        at, how = (
            self.random.randrange(len(self.leases)),
            self.random.choice(("ack", "nack", "release", "reject")),
        )
        # What is given back by name gives back what stands behind it: test_order.py has that.
        by_name = how in ("ack", "reject") and self.random.random() < 0.5
        self.settle(how, at, *self.leases[at].left[:1] if by_name else ())

    def drain(self) -> None:
        """Deliver all that is left, and look at how each message ended."""
        self.expire()
        for name, group in self.groups.items():
            self.check_ready(name)
            while self.lease(name, 4):
                self.settle("ack")
            left = [m for m in group.messages if m.state not in ENDED]
            assert not left, f"{left} were neither delivered nor skipped"
            stats = self.group(name).stats()
            skipped = group.counters.get("skipped", 0)
            assert (stats.backlog, stats.skipped) == (0, skipped), f"{stats}"

    def check_ready(self, name: str) -> None:
        """Check what a group counts as ready while nobody works."""


class Ids(World):
    """A group that blocks, or whose later messages replace earlier ones."""

    def __init__(self, chance: random.Random, *, until: str = "settled", **settings: Any) -> None:
        self.until, self.replaces = until, "dedup_replaces" in settings
        groups = ORDERS if self.replaces else GROUPS
        super().__init__(chance, groups, dedup_until=until, **settings)
        self.ids: dict[int, str | None] = {}  # by sequence

    def own_steps(self) -> Sequence[Callable[[], object]]:
        if self.replaces:
            return self.wait, self.index, self.open_again
        return self.unblock, self.queue.sweep

    def publish_some(self) -> None:
        choices = [*IDS, None] if self.replaces else [*IDS]
        ids = [self.random.choice(choices) for _ in range(self.random.randint(1, 4))]
        delay = self.random.choice([None, None, timedelta(seconds=3)])
        messages = [
            Message("x", key=self.random.choice(KEYS), dedup_id=one, deliver_at=delay)
            for one in ids
        ]
        holders = {one: self.holders(one) for one in choices}
        receipt = self.publish(messages, self.random.randrange(2))
        places = [receipt.sequence_of(at) for at in range(len(ids))]
        self.ids |= {seq: one for seq, one in zip(places, ids, strict=True) if seq is not None}
        judge = self.judge_replaced if self.replaces else self.judge_held
        judge(ids, receipt, holders)

    def holders(self, dedup_id: str | None) -> list[int]:
        """Return the messages that hold an id. One replaces only the newest message with its id."""
        seqs = [seq for seq, one in sorted(self.ids.items()) if one and one == dedup_id]
        return [seq for seq in (seqs[-1:] if self.replaces else seqs) if self.holds(seq)]

    def holds(self, seq: int) -> bool:
        seen = self.each_group(seq)
        if self.until == "leased":
            return not any(m.state in ENDED or m.info["delivery_count"] for m in seen)
        return not all(m.state in ENDED for m in seen)

    def may_be_forgotten(self, seq: int) -> bool:
        """A publish may have forgotten its id during a lease that was released later."""
        return self.until == "leased" and any(m.was_leased for m in self.each_group(seq))

    def judge_held(
        self, ids: Sequence[Any], receipt: PublishReceipt, holders: Mapping[str | None, list[int]]
    ) -> None:
        for at, one in enumerate(ids):
            place, held_by = receipt.sequence_of(at), holders[one]
            if place is None:
                met = receipt.duplicate_of[at]
                assert met in held_by, f"{one!r} met {met}, and {held_by} hold it"
                passed = held_by[held_by.index(met) + 1 :]
            else:
                met, passed = place, [*held_by]
                held_by.append(place)
            known = [seq for seq in passed if not self.may_be_forgotten(seq)]
            assert not known, f"{one!r} met {met}, and {known} hold it"
        if self.until == "settled":
            unsettled = [one for seq, one in self.ids.items() if self.holds(seq)]
            assert len(unsettled) == len(set(unsettled)), f"unsettled with one id: {unsettled}"

    def judge_replaced(
        self, ids: Sequence[Any], receipt: PublishReceipt, holders: Mapping[str | None, list[int]]
    ) -> None:
        last, replaces = {one: at for at, one in enumerate(ids)}, dict[int, int]()
        for at, one in enumerate(ids):
            place, comes_again = receipt.sequence_of(at), one is not None and last[one] != at
            assert (place is None) == comes_again, f"{at} of {ids} is {place}"
            if comes_again:
                met = receipt.sequence_of(last[one])
                assert receipt.duplicate_of[at] == met, f"{at} of {ids} met another than {met}"
            elif holders[one]:
                replaces[at] = newest = holders[one][-1]
                for m in self.each_group(newest):
                    m.wanted = False
        assert receipt.replaces == replaces, f"{ids} replaces {receipt.replaces}, not {replaces}"

    def unblock(self) -> None:
        if self.ids:
            chosen = self.random.choice(list(self.ids))
            how = self.random.choice(("retry", "drop", "dead_letter"))
            changed = self.group("blocks").unblock(how, [chosen])
            assert changed == self.groups["blocks"].unblock(how, self.now, [chosen])

    def wait(self) -> None:
        self.clock.advance("2s")


class Letters(World):
    """A group of each order, and groups that begin late, whose letters are redriven. Some have a
    filter.
    """

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance, ORDERS, lanes=4)
        self.number = 0
        self.known: dict[int, tuple[Message, str]] = {}
        """By sequence, with the group that alone gets it, if any."""
        self.keys = dict.fromkeys(self.groups, KEYS)
        """What the filter of each group lets through."""

    def own_steps(self) -> Sequence[Callable[[], object]]:
        return self.redrive, self.index, self.open_again, self.begin_late, self.change_filter

    def publish_some(self) -> None:
        self.number += 1
        messages = [
            Message(f"{self.number}.{n}", key=self.random.choice(KEYS))
            for n in range(self.random.randint(1, 3))
        ]
        for seq, message in zip(self.publish(messages).sequences, messages, strict=True):
            self.known[seq] = message, ""
        self.filter_as_wanted()

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
            self.add(m.sequence, message)
        self.filter_as_wanted()

    def begin_late(self) -> None:
        """Begin a group at the earliest message."""
        name = f"late-{len(self.groups)}"
        self.begin(name)
        self.keys[name] = KEYS
        for seq, (message, _) in self.known.items():
            self.add(seq, message, [name])
        self.filter_as_wanted()

    def change_filter(self) -> None:
        name = self.random.choice(list(ORDERS)[:2])
        self.keys[name] = "".join(self.random.sample(KEYS, 2))
        self.group(name).configure(filter={"key_prefix": [*self.keys[name]]})
        self.filter_as_wanted()

    def filter_as_wanted(self) -> None:
        """Let the references know which messages their groups get."""
        for name, group in self.groups.items():
            for m in group.messages:
                m.for_others = self.known[m.seq][1] not in ("", name)
                m.wanted = not m.for_others and str(m.key) in self.keys[name]

    def check_ready(self, name: str) -> None:
        if self.keys[name] == KEYS:
            ready = [m for m in self.groups[name].messages if not m.is_over(self.now)]
            assert self.group(name).stats().ready == len(ready), f"{ready} are ready"


@pytest.fixture(autouse=True)
def small_blocks(limits: Limits) -> None:
    """Blocks ask which of their ids are held from two ids on."""
    limits(ask_ids=2)


WORLDS: dict[str, Callable[[random.Random], World]] = {
    "settled": lambda chance: Ids(chance, retention="0s"),
    "leased": lambda chance: Ids(chance, until="leased", retention="0s"),
    "replaces": lambda chance: Ids(chance, dedup_replaces=True, lanes=4),
    "letters": Letters,
}


def run_worlds(world: str, seeds: Iterable[int]) -> None:
    for seed in seeds:
        WORLDS[world](random.Random(seed)).run()


@pytest.mark.parametrize("world", WORLDS)
def test_random_steps_agree_with_the_references(world: str) -> None:
    run_worlds(world, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@given(seed=st.integers(0, 2**32))
def test_random_steps_agree_with_the_references_in_many_worlds(seed: int, world: str) -> None:
    run_worlds(world, [seed])


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
    # -- what a filter lets through
    Mutant("a group gets only what matches", "letters", "WalkFilter.runs",
           instead(lambda right, a: [("", a.first, a.last)])),
    Mutant("what was leased before is not examined again", "letters", "WalkFilter.runs",
           gets(row=None)),
    Mutant("what matches is not skipped", "letters", "WalkFilter.runs",
           instead(lambda right, a: [
               (max(one[0] for one in right(**vars(a))), a.first, a.last)])),
    Mutant("what does not match is skipped", "letters", "WalkFilter.skip", returns(None)),
    Mutant("a file that no check has read is not leased from", "letters", "FileProblems.unsure",
           returns([])),
    Mutant("a group gets nothing that is for another", "letters", "FileColumns.file",
           then(lambda file, a: replace(file, group=""))),
    Mutant("a group gets what is for it", "letters", "FileColumns.file",
           then(lambda file, a: replace(file, group=file.group and "x"))),
    Mutant("a group without a filter skips, too", "letters", "MessageIndex.is_addressed_after",
           returns(False)),
    # -- letters that are redriven
    Mutant("a file names its group", "letters", "WrittenFile.tags",
           then(lambda tags, a: {name: one for name, one in tags.items() if "group" not in name})),
    Mutant("commits/ has the group of a file", "letters", "commit_rows:_text_column",
           then(lambda found, a: pa.nulls(len(found), pa.string()))),
    Mutant("what others get is not ready", "letters", "MessageIndex.for_others", returns([])),
    Mutant("each group gets its own letters", "letters", "Redrive._by_group",
           then(lambda found, a: [("none", table) for _, table in found])),
    Mutant("all groups get it if asked for", "letters", "Redrive._by_group",
           then(lambda found, a: [(name or "none", table) for name, table in found])),
]  # fmt: skip


DAILY = {mutant.world: mutant for mutant in reversed(MUTANTS)}.values()


@pytest.mark.parametrize("mutant", slow_but(DAILY, MUTANTS), ids=[m.name for m in MUTANTS])
def test_no_rule_of_public_worlds_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        run_worlds(mutant.world, SEEDS)
