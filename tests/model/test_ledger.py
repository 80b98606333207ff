"""Any sequence of operations leaves the ledger as a table with one row a message would be left (see
``reference.py``).
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.ledger_group import SECOND, intervals_of, limits

from spark_mq.ledger import ranges as stored_ranges
from spark_mq.ledger.editor import end_reason_of
from spark_mq.ledger.intervals import normalise
from spark_mq.ledger.interventions import (
    DEAD_LETTER,
    DISCARD,
    RETRY_NOW,
    FreezeDead,
    Intervene,
    SettleRouted,
)
from spark_mq.ledger.owner_commands import Pause, Resume, Seek, Unblock
from spark_mq.ledger.ranges import LIST_LIMIT
from spark_mq.storage.ledger_files import from_rows, to_rows

from .judged_group import JudgedGroup

MOST = 400
"""Messages at a time: enough for isolation in four steps, few enough to look at each after every
step.
"""

numbers = st.integers(0, 10**6)
seconds = st.sampled_from([0, 1, 3, 10, 61, 1000])
verbs = st.sampled_from(["ack", "ack", "nack", "nack", "reject", "release"])
anywhere = st.lists(numbers, max_size=8)
sizes = st.one_of(st.integers(1, 12), st.sampled_from([30, 100, 10_000]))


WAITS = {
    "retry_delay": 2 * SECOND, "max_retry_delay": 7 * SECOND,
    "breaker_reset_timeout": 3 * SECOND, "breaker_max_wait": 10 * SECOND,
}  # fmt: skip
RULES = {
    "max_delivery_attempts": st.sampled_from([1, 2, 2, 3, 3, 4, 5, None]),
    "clock_skew": st.sampled_from([0, SECOND]),
    "max_in_flight": st.sampled_from([None, None, 6, 25]),
    "max_tracked_ranges": st.sampled_from([200_000, 200_000, 3, 8]),
    "retry": st.sampled_from(["exponential", "exponential", "linear", "constant", "none"]),
    "max_failures": st.sampled_from([None, None, 1, 2, 3]),
    "max_retry_age": st.sampled_from([None, None, 10 * SECOND]),
    "on_max_deliveries": st.sampled_from(["dead_letter", "dead_letter", "drop", "block"]),
    "on_reject": st.sampled_from(["dead_letter", "dead_letter", "drop"]),
    "breaker_threshold": st.sampled_from([None, 1, 2, 3]),
}


class LedgerMachine(RuleBasedStateMachine):
    """A group and its reference live through the same operations."""

    @initialize(
        rules=st.fixed_dictionaries(RULES),
        floor=st.sampled_from([-1, -1, 2 << 32]),
        rows=st.integers(1, 60),
        list_limit=st.sampled_from([100, -1, 3]),
    )
    def begin(self, *, rules, floor, rows, list_limit):
        stored_ranges.LIST_LIMIT = list_limit  # lists, tables, and both in turn
        self.start(JudgedGroup(limits(**WAITS, **rules), floor))
        self.publish(1, [(rows, 1)])

    def start(self, group):
        self.group, self.reference = group, group.reference
        self.leases: list[str] = []
        self.batches: dict[str, int] = {}  # of a stream: how often it was replayed
        self.routings: list[str] = []
        self.ids = 0
        self.reported = Counter[str]()
        self.version = 2

    def new_id(self, kind):
        self.ids += 1
        return f"{kind}{self.ids}"

    # -- the log grows, time passes

    @rule(
        gap=st.sampled_from([1, 1, 1, 2, 5]),
        files=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=3),
    )
    def publish(self, gap, files):
        if len(self.reference.messages) <= MOST:
            self.version += gap
            self.group.publish(self.version, *files)

    @rule(passed=seconds, bit=st.sampled_from([0, 0, 1]))
    def wait(self, passed, bit):
        self.group.now += passed * SECOND + bit

    @rule()
    def expire(self):
        self.group.expire_leases()

    @rule()
    def expire_all(self):
        self.group.now += 1_001 * SECOND
        self.group.expire_leases()

    # -- leasing

    @rule(limit=sizes, timeout=seconds, reserved=st.booleans(), stream=st.booleans())
    def lease(self, limit, timeout, reserved, stream):
        """A worker asks; a stream with a batch's name and a reserved attempt."""
        self.take(
            limit,
            timeout,
            int(reserved and (self.reference.max_delivery_attempts or 5) >= 3),
            stream,
        )

    @rule(
        limit=sizes,
        max_bytes=st.sampled_from([None, 0, 1, 9, 60]),
        max_sequence=st.one_of(st.none(), numbers),
        back=st.sampled_from([None, 0, 5]),
    )
    def lease_less(self, limit, max_bytes, max_sequence, back):
        """With a limit of bytes, or as Trigger.AvailableNow."""
        if max_sequence is not None:
            (max_sequence,) = self.from_pool([max_sequence])
        due_by = None if back is None else self.group.now - back * SECOND
        less = {"max_bytes": max_bytes, "max_sequence": max_sequence, "due_by": due_by}
        self.take(limit, **less)

    @rule(
        limit=sizes,
        runs=st.lists(
            st.tuples(numbers, st.sampled_from([0, 0, 1, 7, 100])), min_size=1, max_size=6
        ),
    )
    def lease_named(self, limit, runs):
        """Runs of sequences from anywhere."""
        pool = self.pool()
        named = [(pool[at % len(pool)], length) for at, length in runs]
        named = normalise((first, first + length) for first, length in named)
        self.take(limit, intervals=named)

    @precondition(lambda self: self.reference.opened is not None)
    @rule(limit=sizes)
    def lease_trial(self, limit):
        self.group.now = max(self.group.now, self.reference.trial_from)
        self.take(limit)

    def take(self, limit, timeout=60, reserved_attempts=0, stream=False, **less):
        name = f"s/{self.new_id('')}/" if stream else self.new_id("lease")
        lease_id, worker = f"{name}runner0" if stream else name, f"{limit % 2}~worker{limit % 3}"
        given = {"timeout": timeout * SECOND, "reserved_attempts": reserved_attempts, **less}
        if self.group.lease(lease_id, limit, worker=worker, **given):
            self.leases.append(lease_id)
            if stream:
                self.batches[name] = 0

    @precondition(lambda self: self.leases)
    @rule(which=numbers, timeout=seconds)
    def extend(self, which, timeout):
        self.extend_by(self.some_lease(which), timeout, None)

    @precondition(lambda self: self.leases)
    @rule(which=numbers, timeout=seconds, names=anywhere)
    def extend_some(self, which, timeout, names):
        """Sequences from anywhere, and some that the lease holds."""
        lease_id = self.some_lease(which)
        held = [m.seq for m in self.reference.held_mask(lease_id)]
        seqs = set(self.from_pool(names[::3]))
        seqs |= {held[name % len(held)] for name in names if held}
        self.extend_by(lease_id, timeout, sorted(seqs))

    def extend_by(self, lease_id, timeout, seqs):
        self.group.extend(lease_id, timeout * SECOND or 1, seqs)  # None and 0 are the group's

    @precondition(lambda self: self.batches)
    @rule(which=numbers, timeout=seconds, keep=st.booleans())
    def replay_batch(self, which, timeout, keep):
        """The replay of a stream's batch, the first time or again."""
        prefix = list(self.batches)[-3:][which % min(3, len(self.batches))]
        self.group.expire_leases(*[x for x in self.leases if x.startswith(prefix) and keep])
        lease_id, again = self.new_id(f"{prefix}runner"), self.batches[prefix] > 0
        self.batches[prefix] += 1
        if self.group.replay_batch(lease_id, again, timeout=timeout * SECOND or 1):
            self.leases.append(lease_id)

    # -- settling

    @precondition(lambda self: self.leases)
    @rule(which=numbers, verb=verbs, delay=st.one_of(st.none(), seconds))
    def settle_all(self, which, verb, delay):
        self.settle(verb, self.some_lease(which), None, delay=delay)

    @precondition(lambda self: self.leases)
    @rule(which=numbers, verb=verbs, names=anywhere, delay=st.one_of(st.none(), seconds))
    def settle_any(self, which, verb, names, delay):
        """Sequences from anywhere: of other leases, settled, unread, in gaps, not yet published."""
        self.settle(verb, self.some_lease(which), self.from_pool(names), delay=delay)

    @precondition(lambda self: self.leases)
    @rule(
        which=numbers,
        verb=verbs,
        start=numbers,
        length=st.integers(1, 40),
        step=st.integers(1, 3),
        whole=st.booleans(),
        jitter=st.sampled_from([0.0, 0.5, 1.0]),
    )
    def settle_some(self, *, which, verb, start, length, step, whole, jitter):
        """Part of what a lease holds, or held: named, or as a holder that counts what it has
        left.
        """
        lease_id = self.some_lease(which)
        held = self.reference.held_mask(lease_id) or self.reference.messages
        held = [m.seq for m in held]
        start %= len(held)
        self.settle(verb, lease_id, held[start : start + length : step], whole=whole, jitter=jitter)

    def settle(self, verb, lease_id, seqs, *, delay=None, **more):
        delay = None if delay is None else delay * SECOND
        self.group.settle(verb, lease_id, seqs, delay=delay, **more)

    # -- dead letters, seeking

    @rule(ranges=st.integers(1, 3))
    def freeze(self, ranges):
        self.group.expire_leases()
        transfer_id = self.new_id("routing")
        if self.group.run(FreezeDead(transfer_id, ranges, 10**9)):
            self.routings.append(transfer_id)

    @precondition(lambda self: self.routings)
    @rule(which=numbers)
    def settle_routed(self, which):
        transfer_id = self.routings[which % len(self.routings)]
        self.group.expire_leases()
        self.group.run(SettleRouted(transfer_id, "routed"))

    @rule(where=numbers, gap=st.sampled_from([0, 0, 1]))
    def seek(self, where, gap):
        places = [0, *self.pool()[:-1], self.group.index.last_sequence + 1]
        target = min(places[where % len(places)] + gap, self.group.index.last_sequence + 1)
        self.group.expire_leases()
        self.group.run(Seek(target))

    # -- what blocks, what is gone

    @rule(
        how=st.sampled_from(["retry", "drop", "dead_letter"]),
        names=st.one_of(st.none(), anywhere),
    )
    def unblock(self, how, names):
        self.group.expire_leases()
        seqs = None if names is None else self.from_pool(names)
        self.group.run(Unblock(how, intervals_of(seqs)))

    @rule(
        how=st.sampled_from([DISCARD, RETRY_NOW, DEAD_LETTER]),
        names=st.lists(numbers, min_size=1, max_size=6),
        near=st.booleans(),
        force=st.booleans(),
    )
    def intervene(self, how, names, near, force):
        """The owner's changes of single messages, wherever they stand."""
        self.group.expire_leases()
        pool = [m.seq for m in self.reference.messages if m.state != "settled"] if near else []
        seqs = [pool[name % len(pool)] for name in names] if pool else self.from_pool(names)
        self.group.run(Intervene(how, intervals_of(seqs), force=force))

    @rule(really=st.sampled_from([False] * 7 + [True]))
    def pause(self, really):
        if really:  # most of what is to be seen needs leases
            self.group.run(Pause("maintenance"))

    @rule()
    def resume(self):
        self.group.run(Resume())

    @precondition(lambda self: self.ids > 3)
    @rule(where=numbers)
    def cut(self, where):
        horizon = self.pool()[where % len(self.pool())]
        assert self.group.cut(horizon) == self.reference.cut(horizon)

    # -- files that cannot be read

    @rule(which=numbers)
    def reject_unreadable(self, which):
        """A file is damaged."""
        self.group.expire_leases()
        file = self.some_file(which)
        self.group.reject_file(file.first, file.last, "damaged")

    @rule(which=numbers, delay=st.sampled_from([1, 10]))
    def postpone(self, which, delay):
        """A file is out of reach."""
        self.group.expire_leases()
        file = self.some_file(which)
        self.group.postpone_file(file.first, file.last, self.group.now + delay * SECOND)

    def some_file(self, which):
        return self.group.index.files[which % len(self.group.index.files)]

    # -- helpers

    def pool(self):
        """All messages, a place in each gap, and one that is not published yet."""
        ends = [b.last + 1 for b in self.group.index.files]
        after = self.group.index.last_sequence + 5
        return sorted({m.seq for m in self.reference.messages} | set(ends) | {after})

    def from_pool(self, names):
        pool = self.pool()
        return [pool[name % len(pool)] for name in names]

    def some_lease(self, which):
        """Mostly one of the last few; any other, too."""
        recent = self.leases[-5:]
        return recent[which % len(recent)] if which % 4 else self.leases[which % len(self.leases)]

    # -- what must hold after every step

    @invariant()
    def agree(self):
        if hasattr(self, "group"):
            self.group.check()

    @invariant()
    def round_trip(self):
        """The stored events are read back, and a settle's events end all that it settled."""
        if hasattr(self, "group"):
            group, ended = self.group, Counter[str]()
            for event, r in group.ledger.events:
                assert r.message_count == group.index.count(r.first, r.last)
                if r.state == "settled":
                    ended[end_reason_of(event)] += r.message_count
            counted = Counter(group.ledger.head.counters)
            assert counted - self.reported == ended
            self.reported = counted
            rows = to_rows("group", group.ledger)
            group.ledger = group.ledger.replaced(group.ledger.head, ())
            if self.ids % 7 == 0:
                again = from_rows(rows)
                assert again.head == group.ledger.head
                assert list(again) == list(group.ledger)

    def teardown(self):
        stored_ranges.LIST_LIMIT = LIST_LIMIT


TestLedger = LedgerMachine.TestCase
