"""Any sequence of operations leaves the ledger as a table with one row a message would be left (see
``reference.py``).
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.ledger_group import applied, limits, replayed

from spark_mq.ledger import ranges as stored_ranges
from spark_mq.ledger import transitions
from spark_mq.ledger.acquire import (
    UNREADABLE,
    AcquireRequest,
    acquire,
    postpone_due,
    reject_unreadable,
)
from spark_mq.ledger.commands import View
from spark_mq.ledger.editor import end_reason_of
from spark_mq.ledger.intervals import normalise
from spark_mq.ledger.interventions import DEAD_LETTER, DISCARD, RETRY_NOW, Intervene
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.owner_commands import Pause, Resume, Seek, Unblock
from spark_mq.ledger.ranges import LIST_LIMIT, TRANSFERRING, Ledger, LedgerHeader, Range
from spark_mq.ledger.routing import FreezeDead, SettleRouted
from spark_mq.ledger.settle import Extend, Settle, SettlePart
from spark_mq.ledger.transitions import settle_lost
from spark_mq.storage.ledger_files import from_rows, to_rows

from .reference import ReferenceGroup, ReferenceMessage

SECOND = 1_000_000
MOST = 400
"""Messages at a time: enough for isolation in four steps, few enough to look at each after every
step.
"""

numbers = st.integers(0, 10**6)
seconds = st.sampled_from([0, 1, 3, 10, 61, 1000])
sizes = st.one_of(st.integers(1, 12), st.sampled_from([30, 100, 10_000]))
FIELDS = [
    "lease_id",
    "worker_id",
    "leased_at",
    "expires_at",
    "lease_size",
    "first_leased_at",
    "first_failed_at",
    "delivery_count",
    "failure_count",
    "suspect",
    "available_at",
    "reason",
]


class LedgerMachine(RuleBasedStateMachine):
    """`self.ledger` and `self.reference` live through the same operations."""

    @initialize(
        n=st.sampled_from([1, 2, 2, 3, 3, 4, 5, None]),
        skew=st.sampled_from([0, SECOND]),
        in_flight=st.sampled_from([None, None, 6, 25]),
        ranges=st.sampled_from([200_000, 200_000, 3, 8]),
        floor=st.sampled_from([-1, -1, 2 << 32]),
        rows=st.integers(1, 60),
        retry=st.sampled_from(["exponential", "exponential", "linear", "constant", "none"]),
        failures=st.sampled_from([None, None, 1, 2, 3]),
        age=st.sampled_from([None, None, 10 * SECOND]),
        exhausted=st.sampled_from(["dead_letter", "dead_letter", "drop", "block"]),
        reject=st.sampled_from(["dead_letter", "dead_letter", "drop"]),
        threshold=st.sampled_from([None, 1, 2, 3]),
        list_limit=st.sampled_from([100, -1, 3]),
    )
    def begin(
        self, *, n, skew, in_flight, ranges, floor, rows, retry, failures, age, exhausted, reject,
        threshold, list_limit,
    ):  # fmt: skip
        # Lists, tables, and both in turn.
        stored_ranges.LIST_LIMIT = list_limit
        self.rules = limits(
            max_delivery_attempts=n,
            clock_skew=skew,
            retry_delay=2 * SECOND,
            max_retry_delay=7 * SECOND,
            max_in_flight=in_flight,
            max_tracked_ranges=ranges,
            retry=retry,
            max_failures=failures,
            max_retry_age=age,
            on_max_deliveries=exhausted,
            on_reject=reject,
            breaker_threshold=threshold,
            breaker_reset_timeout=3 * SECOND,
            breaker_max_wait=10 * SECOND,
        )
        self.reference = ReferenceGroup.of(self.rules)
        self.index = MessageIndex()
        self.ledger = Ledger(LedgerHeader(start_sequence=floor))
        self.now = 1_000 * SECOND
        self.leases: list[str] = []
        self.batches: dict[str, int] = {}  # of a stream: how often it was replayed
        self.routings: list[str] = []
        self.ids = 0
        self.reported: dict[str, int] = {}
        self.version = 2
        self.publish(1, [(rows, 1)])

    def new_id(self, kind):
        self.ids += 1
        return f"{kind}{self.ids}"

    def run(self, command):
        self.ledger, result = applied(command, self.ledger, self.index, self.now, self.rules)
        return result

    def expire_leases(self, keep=()):
        """What every operation does first, on both sides."""
        self.ledger = transitions.expire_leases(self.ledger, self.now, self.rules, keep)
        self.reference.expire_leases(self.now, tuple(keep))
        self.compare()

    # -- the log grows, time passes

    @rule(
        gap=st.sampled_from([1, 1, 1, 2, 5]),
        files=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=3),
    )
    def publish(self, gap, files):
        if len(self.reference.messages) > MOST:
            return
        self.version += gap
        ordinal, added = 0, []
        for number, (rows, size) in enumerate(files):
            first = sequence(self.version, ordinal)
            added.append(DataFile(first, rows, f"{self.version}-{number}", rows * size, self.now))
            self.reference.messages += [ReferenceMessage(first + row, size) for row in range(rows)]
            ordinal += rows
        self.index = self.index.extended(added, self.version)

    @rule(passed=seconds, bit=st.sampled_from([0, 0, 1]))
    def wait(self, passed, bit):
        self.now += passed * SECOND + bit

    @rule()
    def expire(self):
        self.expire_leases()

    @rule()
    def expire_all(self):
        self.now += 1_001 * SECOND
        self.expire_leases()

    # -- leasing

    @rule(
        limit=sizes,
        timeout=seconds,
        reserved_attempts=st.sampled_from([0, 1]),
        stream=st.booleans(),
    )
    def lease(self, limit, timeout, reserved_attempts, stream):
        """A worker asks; a stream with a batch's name and a reserved attempt."""
        self.take(limit, timeout, reserved_attempts if (self.reference.n or 5) >= 3 else 0, stream)

    @rule(
        limit=sizes,
        max_bytes=st.sampled_from([None, 0, 1, 9, 60]),
        max_sequence=st.one_of(st.none(), numbers),
        back=st.sampled_from([None, 0, 5]),
    )
    def lease_less(self, limit, max_bytes, max_sequence, back):
        """With a limit of bytes, or as Trigger.AvailableNow."""
        pool = self.pool()
        max_sequence = None if max_sequence is None else pool[max_sequence % len(pool)]
        self.take(
            limit,
            60,
            0,
            False,
            max_bytes=max_bytes,
            max_sequence=max_sequence,
            due_by=None if back is None else self.now - back * SECOND,
        )

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
        self.take(limit, 60, 0, False, intervals=named)

    @precondition(lambda self: self.reference.opened is not None)
    @rule(limit=sizes)
    def lease_trial(self, limit):
        self.now = max(self.now, self.reference.trial_from)
        self.take(limit, 60, 0, False)

    def take(self, limit, timeout, reserved_attempts, stream, **less):
        self.expire_leases()
        name = f"s/{self.new_id('')}/" if stream else self.new_id("lease")
        lease_id = f"{name}runner0" if stream else name
        wanted = AcquireRequest(
            lease_id,
            f"process{limit % 2}~worker{limit % 3}",
            limit,
            self.now + timeout * SECOND,
            reserved_attempts=reserved_attempts,
            **less,
        )
        before = self.ledger
        self.ledger, grant = acquire(before, self.index, self.now, self.rules, wanted)
        taken = [seq for r in grant.ranges for seq in self.expand(r)]
        self.reference.check_grant(taken, grant.blocked_because, wanted, self.now)
        if not taken:
            assert self.ledger is before
            return
        assert grant.message_count == len(taken)
        self.reference.granted(
            [m for m in self.reference.messages if m.seq in set(taken)],
            lease_id,
            wanted.worker_id,
            self.now,
            wanted.expires_at,
        )
        self.leases.append(lease_id)
        if stream:
            self.batches[name] = 0

    @precondition(lambda self: self.leases)
    @rule(which=numbers, timeout=seconds)
    def extend(self, which, timeout):
        lease_id = self.some_lease(which)
        self.expire_leases([lease_id])
        self.extend_by(lease_id, timeout * SECOND, None)

    @precondition(lambda self: self.leases)
    @rule(which=numbers, timeout=seconds, names=st.lists(numbers, max_size=8))
    def extend_some(self, which, timeout, names):
        """Sequences from anywhere, and some that the lease holds."""
        lease_id, pool = self.some_lease(which), self.pool()
        held = [m.seq for m in self.reference.held_mask(lease_id)]
        seqs = {pool[name % len(pool)] for name in names[::3]}
        seqs |= {held[name % len(held)] for name in names if held}
        self.expire_leases([lease_id])
        self.extend_by(lease_id, timeout * SECOND, sorted(seqs))

    def extend_by(self, lease_id, timeout, seqs):
        timeout = timeout or 1  # microsecond. None and 0 are the group's
        intervals = None if seqs is None else [(seq, seq) for seq in seqs]
        (outcome,) = self.run(Extend(((lease_id, intervals),), timeout)).outcomes
        lost = {seq for first, last, _ in outcome.lost for seq in range(first, last + 1)}
        done = outcome.settled, outcome.already_settled, lost
        assert done == self.reference.extend(lease_id, self.now + timeout, seqs)

    @precondition(lambda self: self.batches)
    @rule(which=numbers, timeout=seconds, keep=st.booleans())
    def replay_batch(self, which, timeout, keep):
        """The replay of a stream's batch, the first time or again."""
        prefix = list(self.batches)[-3:][which % min(3, len(self.batches))]
        self.expire_leases([x for x in self.leases if x.startswith(prefix)] if keep else [])
        lease_id, timeout = self.new_id(f"{prefix}runner"), timeout * SECOND or 1
        given = {
            "lease_id": lease_id,
            "worker_id": "driver",
            "expires_at": self.now + timeout,
        }
        again = self.batches[prefix] > 0
        self.ledger, grant = replayed(
            lease_id, self.ledger, self.index, self.now, self.rules, again=again,
            timeout=timeout,
        )  # fmt: skip
        expected = self.reference.replay_batch(prefix, now=self.now, granted_before=again, **given)
        assert [seq for r in grant.ranges for seq in self.expand(r)] == [m.seq for m in expected]
        self.batches[prefix] += 1
        if grant.ranges:
            self.leases.append(lease_id)

    # -- settling

    @precondition(lambda self: self.leases)
    @rule(
        which=numbers,
        verb=st.sampled_from(["ack", "ack", "nack", "nack", "reject", "release"]),
        delay=st.one_of(st.none(), seconds),
    )
    def settle_all(self, which, verb, delay):
        self.settle(verb, self.some_lease(which), None, delay=delay)

    @precondition(lambda self: self.leases)
    @rule(
        which=numbers,
        verb=st.sampled_from(["ack", "ack", "nack", "nack", "reject", "release"]),
        names=st.lists(numbers, max_size=8),
        delay=st.one_of(st.none(), seconds),
    )
    def settle_any(self, which, verb, names, delay):
        """Sequences from anywhere: of other leases, settled, unread, in gaps, not yet published."""
        pool = self.pool()
        self.settle(
            verb, self.some_lease(which), [pool[name % len(pool)] for name in names], delay=delay
        )

    @precondition(lambda self: self.leases)
    @rule(
        which=numbers,
        verb=st.sampled_from(["ack", "nack", "reject", "release"]),
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
        held = [m.seq for m in self.reference.held_mask(lease_id)] or [
            m.seq for m in self.reference.messages
        ]
        start %= len(held)
        self.settle(verb, lease_id, held[start : start + length : step], whole=whole, jitter=jitter)

    def settle(self, verb, lease_id, seqs, *, whole=False, delay=None, jitter=0.0):
        self.expire_leases([lease_id])
        delay = None if delay is None else delay * SECOND
        intervals = None if seqs is None else [(seq, seq) for seq in seqs]
        wanted = SettlePart(verb, lease_id, intervals, whole=whole, delay=delay, jitter=jitter)
        (outcome,) = self.run(Settle((wanted,)))
        settled, already, lost = self.reference.settle(
            verb, lease_id, seqs, self.now, whole=whole, delay=delay, jitter=jitter
        )
        assert (outcome.settled, outcome.already_settled) == (settled, already)
        known = {m.seq for m in self.reference.messages}
        reported = [seq for first, last, _ in outcome.lost for seq in range(first, last + 1)]
        assert len(reported) == len(set(reported))
        # A holder's own intervals may end in gaps.
        assert set(reported) == {seq for seq in lost if seq in known or not whole}
        assert outcome.lost == sorted(outcome.lost)
        assert sum(self.index.count(first, last) for first, last in outcome.ranges) == settled

    # -- dead letters, seeking

    @rule(ranges=st.integers(1, 3))
    def freeze(self, ranges):
        self.expire_leases()
        transfer_id = self.new_id("routing")
        self.run(FreezeDead(transfer_id, ranges, 10**9))
        frozen = [r for r in self.ledger if (r.state, r.lease_id) == (TRANSFERRING, transfer_id)]
        expected = self.reference.freeze(transfer_id, ranges)
        assert [seq for r in frozen for seq in self.expand(r)] == [m.seq for m in expected]
        if frozen:
            self.routings.append(transfer_id)

    @precondition(lambda self: self.routings)
    @rule(which=numbers)
    def settle_routed(self, which):
        transfer_id = self.routings[which % len(self.routings)]
        self.expire_leases()
        total = self.run(SettleRouted(transfer_id, "routed"))
        assert total == self.reference.settle_routed(transfer_id)

    @rule(where=numbers, gap=st.sampled_from([0, 0, 1]))
    def seek(self, where, gap):
        places = [0, *self.pool()[:-1], self.index.last_sequence + 1]
        target = min(places[where % len(places)] + gap, self.index.last_sequence + 1)
        self.expire_leases()
        self.run(Seek(target))
        self.reference.seek(target)

    # -- what blocks, what is gone

    @rule(
        how=st.sampled_from(["retry", "drop", "dead_letter"]),
        names=st.one_of(st.none(), st.lists(numbers, max_size=8)),
    )
    def unblock(self, how, names):
        self.expire_leases()
        pool = self.pool()
        seqs = None if names is None else [pool[name % len(pool)] for name in names]
        intervals = None if seqs is None else [(seq, seq) for seq in seqs]
        total = self.run(Unblock(how, intervals))
        assert total == self.reference.unblock(how, self.now, seqs)

    @rule(
        how=st.sampled_from([DISCARD, RETRY_NOW, DEAD_LETTER]),
        names=st.lists(numbers, min_size=1, max_size=6),
        near=st.booleans(),
        force=st.booleans(),
    )
    def intervene(self, how, names, near, force):
        """The owner's changes of single messages, wherever they stand."""
        self.expire_leases()
        pool = [m.seq for m in self.reference.messages if m.state != "settled"] if near else []
        pool = pool or self.pool()
        seqs = [pool[name % len(pool)] for name in names]
        done = self.run(Intervene(how, [(seq, seq) for seq in seqs], force=force))
        barred = {seq for first, last, _ in done.held for seq in range(first, last + 1)}
        expected, held = self.reference.intervene(how, seqs, self.now, force)
        assert done.changed == expected
        assert {m.seq for m in self.reference.messages if m.seq in barred} == held

    @rule(really=st.sampled_from([False] * 7 + [True]))
    def pause(self, really):
        if not really:  # most of what is to be seen needs leases
            return
        self.run(Pause("maintenance"))
        self.reference.paused = self.now if self.reference.paused is None else self.reference.paused

    @rule()
    def resume(self):
        self.run(Resume())
        self.reference.paused = None
        self.reference.resume_breaker()

    @precondition(lambda self: self.ids > 3)
    @rule(where=numbers)
    def cut(self, where):
        horizon = self.pool()[where % len(self.pool())]
        self.expire_leases()
        self.ledger, lost = settle_lost(self.ledger, self.index, horizon)
        assert lost == self.reference.cut(horizon)

    # -- files that cannot be read

    @rule(which=numbers)
    def reject_unreadable(self, which):
        """A file is damaged."""
        self.expire_leases()
        file = self.some_file(which)
        interval, view = (file.first, file.last), self.view()
        self.ledger, dead = reject_unreadable(view, self.ledger, interval, "damaged")
        assert dead == self.reference.bury_file(file.first, file.last, UNREADABLE, self.now)

    @rule(which=numbers, delay=st.sampled_from([1, 10]))
    def postpone(self, which, delay):
        """A file is out of reach."""
        self.expire_leases()
        file, until = self.some_file(which), self.now + delay * SECOND
        self.ledger = postpone_due(self.view(), self.ledger, (file.first, file.last), until)
        self.reference.postpone_file(file.first, file.last, self.now, until)

    def view(self):
        return View(self.ledger, self.rules, self.now, self.index)

    def some_file(self, which):
        return self.index.files[which % len(self.index.files)]

    # -- helpers

    def pool(self):
        """All messages, a place in each gap, and one that is not published yet."""
        ends = [b.last + 1 for b in self.index.files]
        return sorted(
            {m.seq for m in self.reference.messages} | set(ends) | {self.index.last_sequence + 5}
        )

    def some_lease(self, which):
        """Mostly one of the last few; any other, too."""
        recent = self.leases[-5:]
        return recent[which % len(recent)] if which % 4 else self.leases[which % len(self.leases)]

    def expand(self, r: Range):
        return [m.seq for m in self.reference.messages if r.first <= m.seq <= r.last]

    # -- what must hold after every step

    @invariant()
    def compare(self):
        """Both say the same of every message.

        The ledger's ranges are in order, joined, and count right.
        """
        if not hasattr(self, "ledger"):
            return
        ledger, head = self.ledger, self.ledger.head
        messages = self.reference.messages
        ranges = list(ledger)
        seqs = {m.seq: m for m in messages}
        covered: set[int] = set()
        below = head.start_sequence
        for r in ranges:
            assert below < r.first <= r.last
            assert r.first in seqs, "both ends are messages"
            assert r.last in seqs
            inside = self.expand(r)
            assert r.message_count == len(inside) == self.index.count(r.first, r.last)
            for seq in inside:
                m = seqs[seq]
                assert (m.state, *m.info.values()) == (
                    r.state,
                    *(getattr(r, name) for name in FIELDS),
                ), f"message {seq:x}"
                m.error = r.error
            covered.update(inside)
            below = r.last
        assert ledger.end_sequence == below
        assert not ranges or ranges[0].state != "settled", "the floor could be higher"
        assert not any(a.same_state_as(b) for a, b in pairwise(ranges)), (
            "neighbours alike are one range"
        )
        for m in messages:
            if m.seq not in covered:
                assert m.state == ("settled" if m.seq <= head.start_sequence else "unread"), (
                    f"message {m.seq:x} is lost"
                )
                m.error = None
        assert head.settled_count == sum(m.seq <= head.start_sequence for m in messages)
        assert len(ranges) == len(self.reference.runs())
        assert head.counters == self.reference.counters
        assert head.leases_without_fresh == self.reference.leases_without_fresh
        breaker, known = head.breaker, self.reference
        assert (list(breaker.failed), breaker.opened_at, breaker.next_trial_at, breaker.trial) == (
            known.streak, known.opened, known.trial_from, known.trial,
        )  # fmt: skip
        assert (breaker.failed_trials, breaker.paused_at) == (known.trials_failed, known.paused)
        for m in messages:
            assert self.reference.n is None or m.info["delivery_count"] <= self.reference.n
            if m.info["reason"] not in (None, "rejected", UNREADABLE, transitions.REQUESTED):
                assert m.own_failure, f"an innocent died: {m.seq:x} by {m.info['reason']}"

    @invariant()
    def round_trip(self):
        """The stored events are read back, and a settle's events end all that it settled."""
        if hasattr(self, "ledger"):
            ended: Counter[str] = Counter()
            for event, r in self.ledger.events:
                assert r.message_count == self.index.count(r.first, r.last)
                if r.state == "settled":
                    ended[end_reason_of(event)] += r.message_count
            counted = self.ledger.head.counters
            assert {
                name: counted[name] - self.reported.get(name, 0)
                for name in counted
                if counted[name] != self.reported.get(name, 0)
            } == ended
            self.reported = dict(counted)
            rows = to_rows("group", self.ledger)
            self.ledger = self.ledger.replaced(self.ledger.head, ())
            if self.ids % 7 == 0:
                again = from_rows(rows)
                assert again.head == self.ledger.head
                assert list(again) == list(self.ledger)

    def teardown(self):
        stored_ranges.LIST_LIMIT = LIST_LIMIT


TestLedger = LedgerMachine.TestCase
