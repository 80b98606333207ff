"""A group that its reference follows (``reference.py``): both live through the same operations."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

from support.ledger_group import Group, R

from spark_mq import GroupSettings
from spark_mq.ledger.acquire import Grant
from spark_mq.ledger.commands import Command
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.ledger.settle import SettleOutcome
from spark_mq.ledger.stream_batch import StreamBatch, fence_app_id

from .following import Follower, Settled
from .reference import ReferenceGroup, ReferenceMessage


class JudgedGroup(Group, Follower):
    """A group on a log that grows.

    The reference judges each lease, and says of each other operation what it must do.
    """

    def __init__(self, rules: GroupSettings, floor: int = -1, lanes: int = 0) -> None:
        super().__init__(0, rules, [])
        self.index = MessageIndex(lanes=lanes)
        self.ledger = Ledger(LedgerHeader(start_sequence=floor))
        self.reference = ReferenceGroup.of(rules, by_lane=lanes > 0)

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
        taken, request = self.sequences(grant.ranges), self.request
        self.reference.lease(taken, grant.blocked_because, request, self.now, self.ledger)
        assert taken or self.ledger is before
        assert grant.message_count == len(taken)
        return grant

    def run(self, command: Command[R], **more: Any) -> R:
        self._numbers = more.get("numbers", {})
        result = super().run(command, **more)
        self.follow(self.reference, command, result)
        return result

    def mark(self, batch: StreamBatch) -> int:
        return int(self._numbers[fence_app_id(batch.stream)])

    def compare(
        self, group: ReferenceGroup, outcome: SettleOutcome, expected: Settled,
        named: Iterable[tuple[int, int]],
    ) -> None:  # fmt: skip
        super().compare(group, outcome, expected, named)
        known = {m.seq for m in group.messages}
        reported = [seq for first, last, _ in outcome.lost for seq in range(first, last + 1)]
        assert len(reported) == len(set(reported))
        # A holder's own intervals may end in gaps.
        assert set(reported) - known == {seq for seq, _ in named} - known
        assert outcome.lost == sorted(outcome.lost)
        settled = sum(self.index.count(first, last) for first, last in outcome.ranges)
        assert settled == outcome.settled

    def replay_batch(self, lease_id: str, again: bool = False, **more: Any) -> int:
        granted = super().replay_batch(lease_id, again, **more)
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
        assert head.settled_count == sum(m.seq <= head.start_sequence for m in messages)
        self.reference.check_limits()
