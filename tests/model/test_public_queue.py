"""One queue through its public API, with many settings together, beside the reference.

Nothing is lost, no message has two owners, deliveries are counted, keys keep their order, and a
sink has no message twice. Each pair of settings occurs together in some run (`MIXES`).
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.marks import slow
from support.rule_variants import Variant, returns, rule_variant, then
from support.sinks import SCHEMA, make_sink, values

from spark_mq import Message
from spark_mq.errors import GroupBlocked, InvalidOption
from spark_mq.testing import memory_queue

from .public_queue import Held, PublicQueue

LANES = {"lanes": 3}
FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lanes": ({}, LANES),
    "order": ({"order": "key"}, LANES),
    "fair": ({"order": "fair"}, LANES),
    "limit by key": ({"max_in_flight_per_key": 2}, LANES),
    "limit": ({"max_in_flight": 5}, {}),
    "limit of bytes": ({"max_in_flight_bytes": 4_000}, {}),
    "rate": ({"rate_limit": "5/s"}, {}),
    "breaker": (
        {
            "breaker_threshold": 2, "breaker_reset_timeout": "20s", "breaker_max_wait": "30s",
        },
        {},
    ),
    "blocks": ({"on_max_deliveries": "block"}, {}),
    "failures": ({"max_failures": 2, "retry": "linear", "retry_delay": "5s"}, {}),
    "filter": ({"filter": {"key_prefix": "a"}}, {}),
    "sink": ({}, {}),
    "priority": ({}, {}),
    "delay": ({}, {}),
    "ttl": ({}, {}),
    "window": ({}, {"dedup_window": "1h"}),
    "held ids": ({}, {"dedup_until": "settled"}),
    "latest wins": ({}, {"dedup_replaces": True, "dedup_window": "1h"}),
}  # fmt: skip
"""Settings of the group and of the queue, or what messages may have."""
REFUSED = [{"order", "fair"}, {"order", "limit by key"}]
"""Pairs that no group can have."""
KEYS = ("a", "ab", "b", None)

verbs = st.tuples(
    st.sampled_from(["ack", "ack", "nack", "nack", "reject", "release"]),
    st.booleans(),
    st.booleans(),
)
"""How to settle a lease, whether by name, and whether to append to the sink before."""


def allowed(mix: frozenset[str]) -> bool:
    return not any(pair <= mix for pair in REFUSED)


def choose_mixes() -> list[frozenset[str]]:
    """Return few mixes in which each pair of features occurs, each as large as can be."""
    open_pairs = [pair for pair in map(frozenset, combinations(FEATURES, 2)) if allowed(pair)]
    mixes = []
    while open_pairs:
        mix = open_pairs[0]
        for name in sorted(FEATURES, key=lambda name: -sum(name in pair for pair in open_pairs)):
            if len(mix) < 11 and allowed(mix | {name}):
                mix |= {name}
        mixes.append(mix)
        open_pairs = [pair for pair in open_pairs if not pair <= mix]
    return mixes


MIXES = choose_mixes()


def show_mix(mix: frozenset[str]) -> str:
    return ", ".join(sorted(mix))


class Machine(RuleBasedStateMachine):
    """A group with a mix of settings, and one without."""

    def __init__(self, mix: frozenset[str], folder: Path) -> None:
        super().__init__()
        self.mix, of_group, of_queue = mix, dict[str, Any](), dict[str, Any]()
        for name in mix:
            of_group |= FEATURES[name][0]
            of_queue |= FEATURES[name][1]
        self.sink = None
        if "sink" in mix:
            self.sink = of_group["sink"] = make_sink(folder / uuid4().hex)
        groups = {"mix": of_group, "plain": {"max_delivery_attempts": None}}
        given = {"clock_skew": 0, "retry_jitter": 0, "max_delivery_attempts": 3}
        self.world = PublicQueue(groups, **given, **of_queue)
        self.number = 0
        self.texts: dict[int, str] = {}  # by sequence
        self.acked: set[str] = set()  # by the group with the mix
        self.publish_some([*KEYS, *KEYS])

    # -- publish, and let time pass

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        priority=st.sampled_from([0, 0, 5]),
        delay=st.sampled_from([None, None, 3]),
        ttl=st.sampled_from([None, None, 40]),
        one=st.sampled_from([None, None, "x", "y", "z"]),
        handle=st.integers(0, 1),
    )
    def publish(self, **given):
        self.publish_some(**given)

    def publish_some(self, keys, *, priority=0, delay=None, ttl=None, one=None, handle=0):
        ids = self.mix & {"window", "held ids", "latest wins"}
        first, self.number = self.number, self.number + len(keys)
        messages = [
            Message(
                str(first + at), key=key, priority=priority if "priority" in self.mix else 0,
                deliver_at=timedelta(seconds=delay) if delay and "delay" in self.mix else None,
                expires_at=timedelta(seconds=ttl) if ttl and "ttl" in self.mix else None,
                dedup_id=one if ids and not at else None,
            )
            for at, key in enumerate(keys)
        ]  # fmt: skip
        receipt = self.world.publish(messages, handle)
        for met in receipt.replaces.values():
            for m in self.world.each_group(met):
                m.wanted = False
        for at, message in enumerate(messages):
            if (seq := receipt.sequence_of(at)) is not None:
                self.texts[seq] = str(message.value)
                matches = (message.key or "").startswith("a")
                self.world.message("mix", seq).wanted = matches or "filter" not in self.mix

    @rule(passed=st.sampled_from(["1s", "6s", "25s", "61s"]))
    def wait(self, passed):
        self.world.advance(passed)
        if passed == "61s":
            self.unblock()
            self.world.index()
            self.world.open_again()
        if "order" in self.mix:  # a lease that is over may have lost its claim on a key
            self.world.leases = [held for held in self.world.leases if not self._is_over(held)]

    def _is_over(self, held: Held) -> bool:
        group = self.world.groups[held.group]
        return all(m.state != "leased" for m in group.held_mask(held.lease.lease_id))

    # -- work

    @rule(
        name=st.sampled_from(["mix", "mix", "mix", "plain"]),
        limit=st.sampled_from([1, 3, 10]),
        handle=st.integers(0, 1),
        then=st.lists(verbs, max_size=2),
    )
    def lease(self, name, limit, handle, then):
        """Lease, and settle at once or leave the lease for later."""
        if self.gets_some(name, limit, handle):
            held = self.world.leases[-1]
            for how in then:
                if held in self.world.leases:
                    self.settle_one(held, *how)

    def gets_some(self, name: str, limit: int, handle: int = 0) -> bool:
        try:
            return self.world.lease(name, limit, handle) is not None
        except GroupBlocked:
            return False

    @precondition(lambda self: self.world.leases)
    @rule(which=st.integers(0, 9), how=verbs)
    def settle(self, which, how):
        self.settle_one(self.world.leases[which % len(self.world.leases)], *how)

    def settle_one(self, held: Held, how: str, by_name: bool, append: bool) -> None:
        at, sinks = self.world.leases.index(held), self.sink is not None and held.group == "mix"
        # What is given back by name gives back what stands behind it. tests/model/test_order.py
        # has that.
        by_name = by_name and not held.appended and not (sinks and how == "ack")
        by_name = by_name and (how in ("ack", "reject") or "order" not in self.mix)
        if sinks and not by_name and not held.appended and (how == "ack" or append):
            if self._is_over(held):
                self.world.leases.remove(held)
                return
            rows = {"value": [self.texts[seq] for seq in held.left]}
            held.lease.append(pa.table(rows, SCHEMA))
            held.appended = True
        left = list(held.left)
        self.world.settle(how, at, *left[:1] if by_name else ())
        if how == "ack" and held.group == "mix":
            done = [seq for seq in left if self.world.message("mix", seq).state == "settled"]
            self.acked |= {self.texts[seq] for seq in done}

    @precondition(lambda self: self.world.leases)
    @rule(which=st.integers(0, 9))
    def extend(self, which):
        at = which % len(self.world.leases)
        if not self._is_over(self.world.leases[at]):
            self.world.extend(at)

    def unblock(self) -> None:
        for name, group in self.world.groups.items():
            changed = self.world.group(name).unblock("retry")
            assert changed == group.unblock("retry", self.world.now, None)

    # -- what must hold

    @invariant()
    def stats_agree(self):
        for name, group in self.world.groups.items():
            group.check_held_in_order()
            stats = self.world.group(name).stats()
            states = Counter(m.state for m in group.messages)
            assert (stats.leased, stats.blocked, stats.dead, stats.acked) == (
                states["leased"], states["blocked"], states["dead"], group.counters.get("acked", 0),
            )  # fmt: skip

    def teardown(self):
        """All messages end, and none but those that were skipped or have expired is lost."""
        world = self.world
        world.leases.clear()
        for _ in range(300):
            world.advance("100s")
            self.unblock()
            for name in world.groups:
                if self.gets_some(name, 10):
                    self.settle_one(world.leases[-1], "ack", by_name=False, append=True)
            if all(m.is_over(world.now) for group in world.groups.values() for m in group.messages):
                break
        for name, group in world.groups.items():
            left = [m for m in group.messages if not m.is_over(world.now)]
            assert not left, f"{name} never got {left}"
            world.advance("100s")  # until a rate limit lets a lease look again
            assert not self.gets_some(name, 10)  # it skips what is left
            assert (stats := world.group(name).stats()).unsettled == stats.dead, f"{stats}"
        if self.sink is not None:
            there = Counter(values(self.sink))
            assert not there - Counter(there.keys()), f"the sink has some twice: {there}"
            assert self.acked <= there.keys(), "the sink lacks what was acked"


def run(mix: frozenset[str], folder: Path, examples: int, **more: Any) -> None:
    given = settings(
        max_examples=examples, stateful_step_count=25, deadline=None, database=None, **more
    )
    run_state_machine_as_test(lambda: Machine(mix, folder), settings=given)


@pytest.mark.parametrize("examples", [4, slow(60)])
@pytest.mark.parametrize("mix", MIXES, ids=show_mix)
def test_settings_go_together(mix: frozenset[str], examples: int, tmp_path: Path) -> None:
    run(mix, tmp_path, examples)


MUTANTS: list[tuple[str, str, Variant]] = [
    ("order", "held_lanes", returns(0)),
    ("filter", "WalkFilter.skip", returns(None)),
    ("sink", "DeltaSink._has", returns(False)),
    ("ttl", "schedule:_none_expired", returns(True)),
    ("delay", "is_late", returns(True)),
    ("latest wins", "MessageIndex.replaced_after", returns({})),
    ("limit", "leased", then(lambda after, a: after._replace(delivery_count=1))),
]
"""A wrong version of a rule, and a setting of the mix that comes to a wrong state with it."""


@pytest.mark.slow
@pytest.mark.parametrize(("feature", "name", "variant"), MUTANTS, ids=[m[1] for m in MUTANTS])
def test_a_wrong_rule_shows_through_the_public_api(
    feature: str, name: str, variant: Variant, tmp_path: Path
) -> None:
    mix = next(mix for mix in MIXES if feature in mix)
    with rule_variant(name, variant), pytest.raises(AssertionError):
        run(mix, tmp_path, 100, phases=[Phase.generate], derandomize=True)


def test_each_pair_of_settings_occurs_together_in_some_run() -> None:
    """A pair without a run is one that a queue refuses."""
    missing = [
        set(pair) for pair in combinations(FEATURES, 2) if not any({*pair} <= mix for mix in MIXES)
    ]
    assert missing == REFUSED
    queue = memory_queue(lanes=3)
    with pytest.raises(InvalidOption, match="does not go with order"):
        queue.group().configure(order="key", max_in_flight_per_key=2)
