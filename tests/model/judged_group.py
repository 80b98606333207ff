"""A group that its reference follows (``reference.py``): both live through the same operations."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Any

from support.ledger_group import TIMEOUT, Group

from spark_mq import GroupSettings
from spark_mq.ledger.acquire import Grant
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.ledger.settle import SettleOutcome

from .reference import ReferenceGroup, ReferenceMessage

FOR_OTHER_REASONS = (None, "rejected", "payload unreadable", "requested")
"""Why a message may be dead, or due, that never failed by itself."""


class JudgedGroup(Group):
    """A group on a log that grows.

    The reference judges each lease, and says of each other operation what it must do.
    """

    def __init__(self, rules: GroupSettings, floor: int = -1) -> None:
        super().__init__(0, rules, [])
        self.index, self.ledger = MessageIndex(), Ledger(LedgerHeader(start_sequence=floor))
        self.reference = ReferenceGroup.of(rules)

    def publish(self, version: int, *files: tuple[int, int]) -> None:
        """Publish files in one commit. Of each, how many messages it has, and their size."""
        ordinal, added = 0, []
        for number, (rows, size) in enumerate(files):
            first = sequence(version, ordinal)
            added.append(DataFile(first, rows, f"{version}-{number}", rows * size, self.now))
            self.reference.messages += [ReferenceMessage(first + row, size) for row in range(rows)]
            ordinal += rows
        self.index = self.index.extended(added, version)

    def expire_leases(self, *keep: str) -> None:
        before = self.ledger
        super().expire_leases(*keep)
        self.reference.expire_leases(self.now, keep)
        if self.ledger is not before:
            self.check()

    def ask(self, lease_id: str, limit: int = 1, **more: Any) -> Grant:
        self.expire_leases()
        self.check()
        before, grant = self.ledger, super().ask(lease_id, limit, **more)
        taken, request = self.sequences(grant), self.request
        self.reference.check_grant(taken, grant.blocked_because, request, self.now)
        if not taken:
            assert self.ledger is before
            return grant
        assert grant.message_count == len(taken)
        chosen = [m for m in self.reference.messages if m.seq in set(taken)]
        self.reference.granted(chosen, lease_id, request.worker_id, self.now, request.expires_at)
        return grant

    def settle(
        self, verb: str, lease_id: str, seqs: list[int] | None = None, *, whole: bool = False,
        delay: int | None = None, jitter: float = 0.0,
    ) -> SettleOutcome:  # fmt: skip
        given: dict[str, Any] = {"whole": whole, "delay": delay, "jitter": jitter}
        outcome = super().settle(verb, lease_id, seqs, **given)
        settled, already, lost = self.reference.settle(verb, lease_id, seqs, self.now, **given)
        assert (outcome.settled, outcome.already_settled) == (settled, already)
        known = {m.seq for m in self.reference.messages}
        reported = [seq for first, last, _ in outcome.lost for seq in range(first, last + 1)]
        assert len(reported) == len(set(reported))
        # A holder's own intervals may end in gaps.
        assert set(reported) == {seq for seq in lost if seq in known or not whole}
        assert outcome.lost == sorted(outcome.lost)
        assert sum(self.index.count(first, last) for first, last in outcome.ranges) == settled
        return outcome

    def extend(
        self, lease_id: str, timeout: int = TIMEOUT, seqs: list[int] | None = None
    ) -> SettleOutcome:
        outcome = super().extend(lease_id, timeout, seqs)
        lost = {seq for first, last, _ in outcome.lost for seq in range(first, last + 1)}
        done = outcome.settled, outcome.already_settled, lost
        assert done == self.reference.extend(lease_id, self.now + timeout, seqs)
        return outcome

    def replay_batch(
        self, lease_id: str, again: bool = False, *, worker: str = "driver", timeout: int = TIMEOUT
    ) -> int:
        granted = super().replay_batch(lease_id, again, worker=worker, timeout=timeout)
        prefix = lease_id.rpartition("/")[0] + "/"
        kept = self.reference.replay_batch(
            prefix, lease_id, worker, self.now, self.now + timeout, granted_before=again
        )
        assert granted == len(kept)
        self.check()
        return granted

    def reject_file(self, first: int, last: int, error: str) -> int:
        dead = super().reject_file(first, last, error)
        assert dead == self.reference.bury_file(first, last, "payload unreadable", self.now)
        return dead

    def postpone_file(self, first: int, last: int, until: int) -> None:
        super().postpone_file(first, last, until)
        self.reference.postpone_file(first, last, self.now, until)

    def check(self) -> None:
        """Check that both say the same of the group and of every message.

        The ledger's ranges are in order, joined, and count right.
        """
        self.reference.check_ledger(self.ledger)
        messages, head, ranges = self.reference.messages, self.ledger.head, list(self.ledger)
        seqs, below = [m.seq for m in messages], head.start_sequence
        for r in ranges:
            assert below < r.first <= r.last
            at, end = bisect_left(seqs, r.first), bisect_right(seqs, r.last)
            assert (seqs[at], seqs[end - 1]) == (r.first, r.last), "both ends are messages"
            assert r.message_count == end - at == self.index.count(r.first, r.last)
            below = r.last
        assert self.ledger.end_sequence == below
        assert not ranges or ranges[0].state != "settled", "the floor could be higher"
        assert not any(a.same_state_as(b) for a, b in pairwise(ranges)), (
            "neighbours alike are one range"
        )
        assert head.settled_count == sum(m.seq <= head.start_sequence for m in messages)
        assert len(ranges) == len(self.reference.runs())
        assert head.counters == self.reference.counters
        assert head.leases_without_fresh == self.reference.leases_without_fresh
        breaker, known = head.breaker, self.reference
        assert (list(breaker.failed), breaker.opened_at, breaker.next_trial_at, breaker.trial) == (
            known.streak, known.opened, known.trial_from, known.trial,
        )  # fmt: skip
        assert (breaker.failed_trials, breaker.paused_at) == (known.trials_failed, known.paused)
        most = known.max_delivery_attempts
        for m in messages:
            assert most is None or m.info["delivery_count"] <= most
            if m.info["reason"] not in FOR_OTHER_REASONS:
                assert m.own_failure, f"an innocent died: {m.seq:x} by {m.info['reason']}"
