"""Keep the order of each key in any sequence of operations.

The reference of ``reference.py`` lives through them, and judges which messages a lease may take.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from support.ledger_group import SECOND, TIMEOUT, limits
from support.rule_variants import returns, rule_variant

from spark_mq.ledger.message_index import DataFile, DeliveryTimes, sequence
from spark_mq.ledger.settle import ACK, NACK, RELEASE
from spark_mq.ledger.slots import encode_slots

from .judged_group import JudgedGroup
from .reference import ENDED, ReferenceMessage
from .test_ledger import LedgerMachine, numbers

RULES = {
    "max_delivery_attempts": st.sampled_from([2, 3, 4, 5, None]),
    "order": st.sampled_from(["key", "key", "key", "none"]),
    "on_max_deliveries": st.sampled_from(["dead_letter", "block", "drop"]),
    "max_in_flight": st.sampled_from([None, None, 5]),
}
published = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d", "e", None]),
        st.sampled_from([0, 0, 0, 1, 9]),
        st.sampled_from([0, 0, 0, 20]),
    ),
    min_size=1,
    max_size=12,
)


class Order(LedgerMachine):
    """An ordered group, or one with priorities only."""

    @initialize(lanes=st.sampled_from([1, 2, 3, 8]), rules=st.fixed_dictionaries(RULES))
    def begin(self, *, lanes, rules):
        rules = limits(retry_delay=5 * SECOND, breaker_threshold=None, **rules)
        self.start(JudgedGroup(rules, lanes=lanes))
        self.publish([("a", 0, 0), ("b", 0, 0), ("a", 0, 0)], foreign=False)

    @rule(rows=published, foreign=st.sampled_from([False, False, False, True]))
    def publish(self, rows, foreign):
        """Publish a file, which a foreign writer does not sort by lanes."""
        if len(self.reference.messages) > 150:
            return
        layout = self.group.index.layout
        of = [(layout.number(p, layout.lane(key)), key, p, due) for key, p, due in rows]
        if not foreign:
            of.sort(key=lambda row: row[0])
        self.version += 1
        first = sequence(self.version, 0)
        at = [self.group.now + due * SECOND if due else None for *_, due in of]
        times = DeliveryTimes.of((1, due, None) for due in at) if any(at) else None
        text = encode_slots(layout.lanes, [(number, 1) for number, *_ in of])
        file = DataFile(first, len(of), str(first), 10 * len(of), self.group.now, times, text)
        self.group.index = self.group.index.extended([file], self.version)
        self.reference.messages += [
            ReferenceMessage(
                first + row, key=key, priority=priority, lane=layout.lane(key), due=due or 0
            )
            for row, ((_, key, priority, _), due) in enumerate(zip(of, at, strict=True))
        ]

    @rule(limit=st.integers(2, 12), at=numbers, then=st.sampled_from([NACK, RELEASE, "extend"]))
    def lease_and_name_one(self, limit, at, then):
        """Name one message at once: then more of its key are behind it."""
        known = len(self.leases)
        self.take(limit)
        for lease_id in self.leases[known:]:
            held = [m.seq for m in self.reference.held_mask(lease_id)]
            named = [held[at % len(held)]]
            if then == "extend":
                self.extend_by(lease_id, 100, named)
            else:
                self.settle(then, lease_id, named)

    freeze = settle_routed = cut = pause = None  # as without an order: test_ledger.py has that

    @invariant()
    def leases_are_held_in_order(self):
        if hasattr(self, "group"):
            self.reference.check_held_in_order()

    def teardown(self):
        """All messages end: nothing starves."""
        super().teardown()
        if not hasattr(self, "group"):
            return
        self.resume()
        for _ in range(2_000):
            self.group.now += TIMEOUT + SECOND
            self.unblock("retry", None)
            self.take(7)
            for lease_id in self.leases[-1:]:
                self.group.settle(ACK, lease_id)
            if all(m.state in ENDED for m in self.reference.messages):
                return
        raise AssertionError(f"messages starve: {self.reference.messages}")


TestOrder = Order.TestCase


def test_the_judge_finds_a_lease_that_takes_a_lower_priority_too_early() -> None:
    world = Order()
    world.begin(lanes=2, rules={"order": "key"})
    world.publish([(key, priority, 0) for key in "abcde" for priority in (0, 9)], foreign=False)
    early = rule_variant("OrderedWalk.leaves", returns(False))
    with early, pytest.raises(AssertionError, match="before a higher priority"):
        world.take(100)
