"""Keep the order of each key in any sequence of operations, judged by a queue for each key.

The judge knows keys, priorities, sequences and the state of each message, but neither slots nor
ranges. It uses lanes only to say that a lease without messages was right.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.ledger_group import applied, limits
from support.rule_variants import returns, rule_variant

from spark_mq.ledger.acquire import AcquireRequest, acquire, postpone_due, reject_unreadable
from spark_mq.ledger.delivery_times import DeliveryTimes
from spark_mq.ledger.interventions import DEAD_LETTER, DISCARD, RETRY_NOW, Intervene
from spark_mq.ledger.limits import LAST_ATTEMPT, limit_in
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.owner_commands import RETRY, Seek, Unblock
from spark_mq.ledger.ranges import Ledger, LedgerHeader, of_process
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE, SettlePart, extend, settle
from spark_mq.ledger.slots import SlotLayout, encode_slots
from spark_mq.ledger.stream_batch import replay_batch
from spark_mq.ledger.transitions import expire_leases

SECOND = 1_000_000
TIMEOUT = 60 * SECOND
OVER = ("settled", "dead", "transferring")
KEYS = ["a", "b", "c", "d", "e", None]

published = st.lists(
    st.tuples(
        st.sampled_from(KEYS), st.sampled_from([0, 0, 0, 1, 9]), st.sampled_from([0, 0, 0, 20])
    ),
    min_size=1,
    max_size=12,
)
picks = st.lists(st.integers(0, 30), min_size=1, max_size=4)


@dataclass(frozen=True)
class Message:
    seq: int
    key: str | None
    priority: int
    lane: int | None

    @property
    def queue(self) -> tuple[str | None, int]:
        """The queue that the judge keeps for it. Messages without a key have none."""
        return self.key, self.priority


class Order(RuleBasedStateMachine):
    """An ordered group, or one with priorities only."""

    @initialize(
        lanes=st.sampled_from([1, 2, 3, 8]),
        n=st.sampled_from([2, 3, 4, 5, None]),
        ordered=st.sampled_from([True, True, True, False]),
        exhausted=st.sampled_from(["dead_letter", "block", "drop"]),
        in_flight=st.sampled_from([None, None, 5]),
    )
    def begin(self, *, lanes, n, ordered, exhausted, in_flight):
        self.layout, self.ordered = SlotLayout(lanes), ordered
        self.rules = limits(
            max_delivery_attempts=n, clock_skew=0, retry_delay=5 * SECOND,
            on_max_deliveries=exhausted, max_in_flight=in_flight, breaker_threshold=None,
            order="key" if ordered else "none",
        )  # fmt: skip
        self.index, self.ledger = MessageIndex(lanes=lanes), Ledger(LedgerHeader())
        self.messages: list[Message] = []
        self.files: list[tuple[int, int]] = []
        self.version, self.now, self.ids = 0, 1_000 * SECOND, 0
        self.leases: list[str] = []
        self._known: tuple = (None, {})
        self.published: dict[int, int] = {}  # when each message is due, as published
        self.due: dict[int, int] = {}  # the same, or 0 if the owner made it due
        self.overtaken: set[int] = set()  # put back by the owner, after later ones had gone on
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
        at = [self.now + due * SECOND if due else None for *_, due in of]
        times = DeliveryTimes.of((1, due, None) for due in at) if any(at) else None
        text = encode_slots(self.layout.lanes, [(number, 1) for number, *_ in of])
        self.index = self.index.extended(
            [DataFile(first, len(of), str(first), 10 * len(of), self.now, times, text)],
            self.version,
        )
        self.files.append((first, first + len(of) - 1))
        self.messages += [
            Message(first + row, key, priority, self.layout.lane(key))
            for row, (_, key, priority, _) in enumerate(of)
        ]
        self._known = None, {}
        self.published |= {first + row: due or 0 for row, due in enumerate(at)}
        self.due |= {first + row: due or 0 for row, due in enumerate(at)}

    @rule(passed=st.sampled_from([1, 6, 25, 61]))
    def wait(self, passed):
        self.now += passed * SECOND

    def expire(self, *keep):
        self.ledger = expire_leases(self.ledger, self.now, self.rules, keep)

    # -- what is known of a message

    def states(self):
        """The state, the lease, the time and the count of each message."""
        if self._known[0] is self.ledger:
            return self._known[1]
        floor, ranges, found = self.ledger.head.start_sequence, list(self.ledger), {}
        for m in self.messages:
            while ranges and ranges[0].last < m.seq:
                ranges.pop(0)
            if ranges and ranges[0].first <= m.seq:
                r = ranges[0]
                own = 0 if r.delivery_count or r.reason else self.due[m.seq]
                found[m.seq] = (
                    r.state,
                    r.lease_id,
                    max(r.available_at or 0, own),
                    r.delivery_count,
                )
            else:
                state = "settled" if m.seq <= floor else "unread"
                found[m.seq] = (state, None, self.due[m.seq], 0)
        self._known = self.ledger, found
        return found

    def held(self, lease_id):
        states = self.states()
        return [m.seq for m in self.messages if states[m.seq][:2] == ("leased", lease_id)]

    # -- leases

    @rule(
        limit=st.sampled_from([1, 2, 3, 10, 100]),
        max_bytes=st.sampled_from([None, None, 35]),
        stream=st.booleans(),
    )
    def lease(self, limit, max_bytes, stream):
        self.ids += 1
        self.expire()
        lease_id = f"s/{self.ids}/x" if stream else f"l{self.ids}"
        worker = f"{self.ids % 3}~w"
        request = AcquireRequest(
            lease_id,
            worker,
            limit,
            self.now + TIMEOUT,
            max_bytes,
            reserved_attempts=int(stream and self.rules.max_delivery_attempts != 2),
        )
        before = self.states()
        self.ledger, grant = acquire(self.ledger, self.index, self.now, self.rules, request)
        after = self.states()
        granted = {
            seq
            for seq, (state, lease, *_) in after.items()
            if (state, lease) == ("leased", lease_id)
        }
        assert sum(r.message_count for r in grant.ranges) == len(granted) <= limit
        if granted:
            self.leases.append(lease_id)
            self._judge(before, granted)
        else:
            self._judge_nothing(before, grant, worker)
        self._judge_priority(before, granted)

    def _judge(self, before, granted):
        by_seq = {m.seq: m for m in self.messages}
        for seq in granted:
            state, _, due, _ = before[seq]
            assert state in ("unread", "available"), f"{seq} was {state}"
            assert due <= self.now, f"{seq} is leased {due - self.now} us too early"
            m = by_seq[seq]
            if not self.ordered or m.key is None:
                continue
            for other in self.messages:
                if other.key != m.key or other.seq in granted:
                    continue
                known = before[other.seq][0]
                assert known != "leased", (
                    f"{seq} is leased while another lease holds {other.seq} of its key"
                )
                if other.seq < seq and other.priority == m.priority:
                    assert known in OVER, (
                        f"{seq} overtakes {other.seq} of its key, which is {known}"
                    )

    def _heads(self, before):
        """The messages with which a lease could begin."""
        held = {m.lane for m in self.messages if before[m.seq][0] == "leased"}
        closed = set()
        for m in self.messages:
            state, _, due, _ = before[m.seq]
            if state in OVER or state == "leased":
                continue
            slot = (m.lane, m.priority)
            free = m.lane is None or not self.ordered or (m.lane not in held and slot not in closed)
            if free and state != "blocked" and due <= self.now:
                yield m
            closed.add(slot)

    def _due_heads(self, before):
        """Those before a blocked message, which stops an unordered group."""
        heads, stop = self._heads(before), 1 << 63
        if not self.ordered:
            stop = min((s for s, (state, *_) in before.items() if state == "blocked"), default=stop)
        return [m for m in heads if m.seq < stop]

    def _judge_nothing(self, before, grant, worker):
        if limit_in(grant.blocked_because) == LAST_ATTEMPT:
            held = self.ledger.count(("leased",), of_process(worker))
            assert held, f"{worker} holds nothing and must wait ({grant})"
            return
        cap = self.rules.max_in_flight
        if cap is not None and sum(state == "leased" for state, *_ in before.values()) >= cap:
            return
        heads = self._due_heads(before)
        assert not heads, f"nothing is leased, though {heads} are due ({grant})"

    def _judge_priority(self, before, granted):
        """No lower priority goes while a higher one is left."""
        by_seq = {m.seq: m for m in self.messages}
        left = [m.priority for m in self._due_heads(before) if m.seq not in granted]
        lowest = min((by_seq[seq].priority for seq in granted), default=10)
        assert max(left, default=0) <= lowest, f"{granted} go before a higher priority"

    # -- settles

    @rule(
        which=st.integers(0, 100),
        verb=st.sampled_from([ACK, ACK, NACK, REJECT, RELEASE]),
        some=picks,
        how=st.sampled_from(["all", "whole", "named"]),
    )
    def settle(self, which, verb, some, how):
        if not self.leases:
            return
        lease_id = self.leases[which % len(self.leases)]
        self.expire(lease_id)
        mine = self.held(lease_id)
        named = sorted({mine[at % len(mine)] for at in some}) if mine else []
        wanted = {"all": None, "whole": [(s, s) for s in mine], "named": [(s, s) for s in named]}[
            how
        ]
        if wanted == []:
            return
        command = SettlePart(verb, lease_id, wanted, whole=how == "whole")
        before, known = self.states(), set(self.held(lease_id))
        self.ledger, outcome = settle(self.ledger, self.index, self.now, self.rules, command)
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
            m = by_seq[seq]
            assert self.ordered
            assert m.key is not None
            assert after[seq][0] == "available"
            assert after[seq][3] == before[seq][3] - 1, "a message that was not named is counted"
            assert any(
                o.lane == m.lane
                and o.priority == m.priority
                and o.seq < seq
                and after[o.seq][0] in ("available", "blocked")
                for o in self.messages
            ), f"{seq} returns, and nothing waits before it"

    @rule(which=st.integers(0, 100), some=picks, whole=st.booleans())
    def extend(self, which, some, whole):
        if not self.leases:
            return
        lease_id = self.leases[which % len(self.leases)]
        self.expire(lease_id)
        states = self.states()
        seqs = [m.seq for m in self.messages if states[m.seq][1] == lease_id]
        wanted = None if whole or not seqs else [(seqs[at % len(seqs)],) * 2 for at in some]
        at = self.now if self.ordered else None
        self.ledger, outcome = extend(
            self.ledger, self.index, lease_id, self.now + TIMEOUT, wanted, ordered_at=at
        )
        now = self.states()
        for seq in self._inside(outcome.ranges):
            assert now[seq][:2] == ("leased", lease_id)
        for seq, (state, _, _, count) in states.items():
            if state == "available":
                assert now[seq][3] == count, f"the expiry of {seq} was counted"

    def _inside(self, intervals):
        return {m.seq for m in self.messages for first, last in intervals if first <= m.seq <= last}

    @rule(which=st.integers(0, 100), again=st.booleans())
    def replay(self, which, again):
        streams = [one for one in self.leases if one.startswith("s/")]
        if not streams:
            return
        lease_id = streams[which % len(streams)]
        prefix = lease_id.rpartition("/")[0] + "/"
        self.ids += 1
        mine = [one for one in self.leases if one.startswith(prefix)]
        self.expire(*mine)
        self.ledger, granted = replay_batch(
            self.ledger, self.now, self.rules, prefix, lease_id=f"{prefix}{self.ids}",
            worker_id="w", expires_at=self.now + TIMEOUT, granted_before=again, index=self.index,
        )  # fmt: skip
        if granted:
            self.leases.append(f"{prefix}{self.ids}")

    # -- owners

    @rule(
        at=st.integers(0, 200),
        how=st.sampled_from([DISCARD, DEAD_LETTER, RETRY_NOW]),
        force=st.booleans(),
    )
    def intervene(self, at, how, force):
        m = self.messages[at % len(self.messages)]
        self.expire()
        before = self.states()
        done = self.run(Intervene(how, [(m.seq, m.seq)], force=force))
        if done.changed and how == RETRY_NOW:
            self.due[m.seq] = 0
            self._known = None, {}
            if before[m.seq][0] in ("dead", "blocked"):
                self.overtaken.add(m.seq)

    def run(self, command):
        self.ledger, result = applied(command, self.ledger, self.index, self.now, self.rules)
        return result

    @rule()
    def unblock(self):
        self.expire()
        self.run(Unblock(RETRY, None))

    @rule(which=st.integers(0, 50), reject=st.booleans())
    def lose_file(self, which, reject):
        self.expire()
        interval = self.files[which % len(self.files)]
        if reject:
            self.ledger, _ = reject_unreadable(
                self.ledger, self.index, interval, now=self.now, rules=self.rules, error="x"
            )
        else:
            self.ledger = postpone_due(
                self.ledger,
                self.index,
                interval,
                now=self.now,
                rules=self.rules,
                until=self.now + 10 * SECOND,
            )

    @rule(at=st.integers(0, 200))
    def seek(self, at):
        m = self.messages[at % len(self.messages)]
        self.run(Seek(m.seq))
        self.due |= self.published  # an owner's retry is forgotten
        self.overtaken.clear()

    # -- always

    @invariant()
    def no_key_has_two_holders(self):
        if not getattr(self, "ordered", False):
            return
        now, holders = self.states(), {}
        for m in self.messages:
            state, lease, *_ = now[m.seq]
            if state == "leased" and m.key is not None:
                assert holders.setdefault(m.key, lease) == lease, f"two leases hold {m.key}"

    @invariant()
    def nothing_is_held_behind_what_was_given_back(self):
        if not getattr(self, "ordered", False):
            return
        now = self.states()
        waits: dict[tuple[str, int], list[tuple[int, str | None]]] = {}
        for m in self.messages:
            state, lease, *_ = now[m.seq]
            if m.key is None:
                continue
            if state in ("available", "blocked") and m.seq not in self.overtaken:
                waits.setdefault(m.queue, []).append((m.seq, lease))
            if state == "leased":
                # A part of the same lease may have expired: its next settle returns the rest.
                stops = [seq for seq, of in waits.get(m.queue, ()) if of != lease]
                assert not stops, f"{m} is held by {lease}, and {stops} wait before it"

    def teardown(self):
        """All messages end: nothing starves."""
        if not hasattr(self, "ledger"):
            return
        for _ in range(2_000):
            self.now += TIMEOUT + SECOND
            self.expire()
            self.run(Unblock(RETRY, None))
            self.lease(7, None, False)
            for lease_id in self.leases[-1:]:
                command = SettlePart(ACK, lease_id)
                self.ledger, _ = settle(self.ledger, self.index, self.now, self.rules, command)
            if all(state in OVER for state, *_ in self.states().values()):
                return
        raise AssertionError(f"messages starve: {self.states()}")


TestOrder = Order.TestCase


def test_the_judge_finds_a_lease_that_takes_a_lower_priority_too_early() -> None:
    world = Order()
    world.begin(lanes=2, n=None, ordered=True, exhausted="drop", in_flight=None)
    world.publish([(key, priority, 0) for key in "abcde" for priority in (0, 9)], foreign=False)
    early = rule_variant("LaneWalk.leaves", returns(False))
    with early, pytest.raises(AssertionError, match="before a higher priority"):
        world.lease(100, max_bytes=None, stream=False)
