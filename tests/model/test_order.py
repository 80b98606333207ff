"""Keep the order of each key in any sequence of operations.

Beside it stands the reference of ``reference.py``. It sees the ledger before each lease, and judges
the choice.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.ledger_group import SECOND, TIMEOUT, Group, limits
from support.rule_variants import returns, rule_variant

from spark_mq.ledger.interventions import DEAD_LETTER, DISCARD, RETRY_NOW, Intervene
from spark_mq.ledger.message_index import DataFile, DeliveryTimes, MessageIndex, sequence
from spark_mq.ledger.owner_commands import RETRY, Seek, Unblock
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE
from spark_mq.ledger.slots import SlotLayout, encode_slots

from .reference import ENDED, ReferenceGroup, ReferenceMessage

KEYS = ["a", "b", "c", "d", "e", None]

published = st.lists(
    st.tuples(
        st.sampled_from(KEYS), st.sampled_from([0, 0, 0, 1, 9]), st.sampled_from([0, 0, 0, 20])
    ),
    min_size=1,
    max_size=12,
)
picks = st.lists(st.integers(0, 30), min_size=1, max_size=4)


RULES = {
    "max_delivery_attempts": st.sampled_from([2, 3, 4, 5, None]),
    "order": st.sampled_from(["key", "key", "key", "none"]),
    "on_max_deliveries": st.sampled_from(["dead_letter", "block", "drop"]),
    "max_in_flight": st.sampled_from([None, None, 5]),
}


class Order(RuleBasedStateMachine):
    """An ordered group, or one with priorities only."""

    @initialize(lanes=st.sampled_from([1, 2, 3, 8]), rules=st.fixed_dictionaries(RULES))
    def begin(self, *, lanes, rules):
        self.layout, self.ordered = SlotLayout(lanes), rules["order"] == "key"
        rules = limits(retry_delay=5 * SECOND, breaker_threshold=None, **rules)
        self.group = Group(0, rules, [])
        self.group.index = MessageIndex(lanes=lanes)
        self.reference = ReferenceGroup.of(rules, by_lane=True)
        self.messages = self.reference.messages
        self.files: list[tuple[int, int]] = []
        self.version = self.ids = 0
        self.leases: list[str] = []
        self.published: dict[int, int] = {}  # when each message is due, as published
        self.publish([("a", 0, 0), ("b", 0, 0), ("a", 0, 0)], foreign=False)

    # -- the log and the clock

    @rule(rows=published, foreign=st.sampled_from([False, False, False, True]))
    def publish(self, rows, foreign):
        if len(self.messages) > 150:
            return
        of = [(self.layout.number(p, self.layout.lane(key)), key, p, due) for key, p, due in rows]
        if not foreign:
            of.sort(key=lambda row: row[0])
        self.version += 1
        first = sequence(self.version, 0)
        at = [self.group.now + due * SECOND if due else None for *_, due in of]
        times = DeliveryTimes.of((1, due, None) for due in at) if any(at) else None
        text = encode_slots(self.layout.lanes, [(number, 1) for number, *_ in of])
        self.group.index = self.group.index.extended(
            [DataFile(first, len(of), str(first), 10 * len(of), self.group.now, times, text)],
            self.version,
        )
        self.files.append((first, first + len(of) - 1))
        self.messages += [
            ReferenceMessage(
                first + row, key=key, priority=priority, lane=self.layout.lane(key), due=due or 0
            )
            for row, ((_, key, priority, _), due) in enumerate(zip(of, at, strict=True))
        ]
        self.published |= {first + row: due or 0 for row, due in enumerate(at)}

    @rule(passed=st.sampled_from([1, 6, 25, 61]))
    def wait(self, passed):
        self.group.now += passed * SECOND

    # -- what is known of a message

    def states(self):
        """The state, the lease and the deliveries of each message. The reference sees them, too."""
        self.reference.see_ledger(self.group.ledger)
        return {
            m.seq: (m.state, m.info["lease_id"], m.info["delivery_count"]) for m in self.messages
        }

    def held(self, lease_id):
        return [seq for seq, known in self.states().items() if known[:2] == ("leased", lease_id)]

    def some_lease(self, which):
        """Return a lease, and let all others expire."""
        lease_id = self.leases[which % len(self.leases)]
        self.group.expire_leases(lease_id)
        return lease_id

    # -- leases

    @rule(
        limit=st.sampled_from([1, 2, 3, 10, 100]),
        max_bytes=st.sampled_from([None, None, 35]),
        stream=st.booleans(),
    )
    def lease(self, limit, max_bytes, stream):
        self.ids += 1
        self.group.expire_leases()
        lease_id = f"s/{self.ids}/x" if stream else f"l{self.ids}"
        self.states()
        reserved = int(stream and self.group.rules.max_delivery_attempts != 2)
        grant = self.group.ask(
            lease_id, limit, worker=f"{self.ids % 3}~w", max_bytes=max_bytes,
            reserved_attempts=reserved,
        )  # fmt: skip
        taken = self._inside((r.first, r.last) for r in grant.ranges)
        self.reference.check_grant(
            sorted(taken), grant.blocked_because, self.group.request, self.group.now
        )
        assert sum(r.message_count for r in grant.ranges) == len(taken)
        assert set(self.held(lease_id)) == taken
        if taken:
            self.leases.append(lease_id)

    # -- settles

    @precondition(lambda self: self.leases)
    @rule(
        which=st.integers(0, 100),
        verb=st.sampled_from([ACK, ACK, NACK, REJECT, RELEASE]),
        some=picks,
        how=st.sampled_from(["all", "whole", "named"]),
    )
    def settle(self, which, verb, some, how):
        lease_id = self.some_lease(which)
        mine = self.held(lease_id)
        named = sorted({mine[at % len(mine)] for at in some}) if mine else []
        wanted = {"all": None, "whole": mine, "named": named}[how]
        if wanted == []:
            return
        before, known = self.states(), set(self.held(lease_id))
        outcome = self.group.settle(verb, lease_id, wanted, whole=how == "whole")
        after = self.states()
        meant = set(mine) if wanted is None or how == "whole" else set(named)
        self._judge_returned(before, after, known - meant, outcome, verb)

    def _judge_returned(self, before, after, others, outcome, verb):
        """What the command does not name stays, or returned uncounted after one of its lane."""
        gone = {seq for seq in others if after[seq][0] != "leased"}
        reported = self._inside(outcome.returned)
        if self.ordered and verb in (NACK, RELEASE):
            assert gone <= reported
        by_seq = {m.seq: m for m in self.messages}
        for seq in gone:
            m, (state, _, count) = by_seq[seq], after[seq]
            assert self.ordered
            assert m.key is not None
            assert (state, count) == ("available", before[seq][2] - 1), "it was not named"
            slot = [o for o in self.messages if (o.lane, o.priority) == (m.lane, m.priority)]
            waits = [o for o in slot if o.seq < seq and after[o.seq][0] in ("available", "blocked")]
            assert waits, f"{seq} returns, and nothing waits before it"

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 100), some=picks, whole=st.booleans())
    def extend(self, which, some, whole):
        lease_id = self.some_lease(which)
        states = self.states()
        seqs = [m.seq for m in self.messages if states[m.seq][1] == lease_id]
        wanted = None if whole or not seqs else [seqs[at % len(seqs)] for at in some]
        outcome = self.group.extend(lease_id, TIMEOUT, wanted)
        now = self.states()
        for seq in self._inside(outcome.ranges):
            assert now[seq][:2] == ("leased", lease_id)
        for seq, (state, _, count) in states.items():
            if state == "available":
                assert now[seq][2] == count, f"the expiry of {seq} was counted"

    def _inside(self, intervals):
        spans = list(intervals)
        return {m.seq for m in self.messages for first, last in spans if first <= m.seq <= last}

    @rule(which=st.integers(0, 100), again=st.booleans())
    def replay(self, which, again):
        streams = [lease_id for lease_id in self.leases if lease_id.startswith("s/")]
        if not streams:
            return
        prefix = streams[which % len(streams)].rpartition("/")[0] + "/"
        self.ids += 1
        self.group.expire_leases(*(lease for lease in streams if lease.startswith(prefix)))
        if self.group.replay_batch(f"{prefix}{self.ids}", again, worker="w"):
            self.leases.append(f"{prefix}{self.ids}")

    # -- owners

    @rule(
        at=st.integers(0, 200),
        how=st.sampled_from([DISCARD, DEAD_LETTER, RETRY_NOW]),
        force=st.booleans(),
    )
    def intervene(self, at, how, force):
        m = self.messages[at % len(self.messages)]
        self.group.expire_leases()
        before = self.states()
        done = self.group.run(Intervene(how, [(m.seq, m.seq)], force=force))
        if done.changed and how == RETRY_NOW:
            m.due = 0
            m.overtaken = m.overtaken or before[m.seq][0] in ("dead", "blocked")

    @rule()
    def unblock(self):
        self.group.expire_leases()
        self.group.run(Unblock(RETRY, None))

    @rule(which=st.integers(0, 50), reject=st.booleans())
    def lose_file(self, which, reject):
        self.group.expire_leases()
        interval = self.files[which % len(self.files)]
        if reject:
            self.group.reject_file(*interval, "x")
        else:
            self.group.postpone_file(*interval, self.group.now + 10 * SECOND)

    @rule(at=st.integers(0, 200))
    def seek(self, at):
        m = self.messages[at % len(self.messages)]
        self.group.run(Seek(m.seq))
        for m in self.messages:  # an owner's retry is forgotten
            m.due, m.overtaken = self.published[m.seq], False

    # -- always

    @invariant()
    def leases_are_held_in_order(self):
        if hasattr(self, "group"):
            self.states()
            self.reference.check_held_in_order()

    def teardown(self):
        """All messages end: nothing starves."""
        if not hasattr(self, "group"):
            return
        for _ in range(2_000):
            self.group.now += TIMEOUT + SECOND
            self.group.expire_leases()
            self.group.run(Unblock(RETRY, None))
            self.lease(7, None, False)
            for lease_id in self.leases[-1:]:
                self.group.settle(ACK, lease_id)
            if all(state in ENDED for state, *_ in self.states().values()):
                return
        raise AssertionError(f"messages starve: {self.states()}")


TestOrder = Order.TestCase


def test_the_judge_finds_a_lease_that_takes_a_lower_priority_too_early() -> None:
    world = Order()
    world.begin(lanes=2, rules={"order": "key"})
    world.publish([(key, priority, 0) for key in "abcde" for priority in (0, 9)], foreign=False)
    early = rule_variant("OrderedWalk.leaves", returns(False))
    with early, pytest.raises(AssertionError, match="before a higher priority"):
        world.lease(100, max_bytes=None, stream=False)
