"""A reference (``reference.py``) runs the commands of a ledger, and must report the same."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from spark_mq.ledger.settle import SettleOutcome
from spark_mq.ledger.stream_batch import StreamBatch

from .reference import ReferenceGroup

Settled = tuple[int, int, set[int], set[int]]


class Follower:
    """Knows what to do with a group for each command, by its name."""

    now: int

    def follow(self, group: ReferenceGroup, command: Any, result: Any) -> None:
        """Run a command on a group as it was before it."""
        if run := getattr(self, "_" + command.name.replace(" ", "_"), None):
            run(group, command, result)

    def acked(self) -> set[str]:
        """Return the leases that a stream's command has acked."""
        return set()

    def mark(self, batch: StreamBatch) -> int:
        """Return the number of the stream's last transaction."""
        raise NotImplementedError

    def _expire(self, group: ReferenceGroup, command: Any, result: Any) -> None:
        group.expire_leases(self.now)

    def _ack(self, group: ReferenceGroup, command: Any, result: Any, *keep: str) -> None:
        done = sorted(self.acked())
        group.expire_leases(self.now, (*done, *keep))
        for lease_id in done:
            group.settle("ack", lease_id, None, self.now)

    def _replay(self, group: ReferenceGroup, command: Any, grant: Any) -> None:
        batch = command.batch
        ids = {str(m.info["lease_id"]) for m in group.messages}
        self._ack(group, command, grant, *(one for one in ids if one.startswith(batch.prefix)))
        kept = group.replay_batch(
            batch.prefix, batch.lease_id, command.worker_id, self.now, grant.expires_at,
            granted_before=self.mark(batch) == 2 * batch.number + 2,
        )  # fmt: skip
        taken = group.inside((r.first, r.last) for r in grant.ranges)
        assert [m.seq for m in kept] == taken, f"{batch} is replayed with {taken}, not {kept}"

    def _settle(self, group: ReferenceGroup, command: Any, outcomes: Any) -> None:
        if not any(outcome.settled or outcome.ended for outcome in outcomes):
            group = deepcopy(group)  # nothing is stored, not even what has expired
        group.expire_leases(self.now, tuple(command.lease_ids))
        gone, done = set[int](), list(zip(command.parts, outcomes, strict=True))
        if group.order == "key":  # what they return is settled by no other part
            done.sort(key=lambda one: one[0].verb not in ("nack", "release"))
        for part, outcome in done:
            named = part.intervals
            seqs = None if named is None else [m for m in group.inside(named) if m not in gone]
            came = group.settle(
                part.verb, part.lease_id, seqs, self.now, whole=part.whole, delay=part.delay,
                jitter=part.jitter,
            )  # fmt: skip
            self.compare(group, outcome, came, () if part.whole else named or ())
            gone |= came[-1]

    def _extend(self, group: ReferenceGroup, command: Any, result: Any) -> None:
        if not any(outcome.settled or outcome.returned for outcome in result.outcomes):
            group = deepcopy(group)
        group.expire_leases(self.now, tuple(command.lease_ids))
        for (lease_id, named), outcome in zip(command.targets, result.outcomes, strict=True):
            seqs = None if named is None else group.inside(named)
            came = group.extend(lease_id, result.deadline, seqs, self.now)
            self.compare(group, outcome, came, named or ())

    def compare(
        self, group: ReferenceGroup, outcome: SettleOutcome, expected: Settled,
        named: Iterable[tuple[int, int]],
    ) -> None:  # fmt: skip
        """Compare outcomes, of which messages are `named`."""
        lost, returned = set(group.inside(outcome.lost)), set(group.inside(outcome.returned))
        came = outcome.settled, outcome.already_settled, lost, returned
        assert came == expected, f"{outcome} is reported, not {expected}"

    def _freeze_dead(self, group: ReferenceGroup, command: Any, total: int) -> None:
        group.expire_leases(self.now)
        assert total == len(group.freeze(command.transfer_id, command.max_ranges))

    def _settle_routed(self, group: ReferenceGroup, command: Any, total: int) -> None:
        assert total == group.settle_routed(command.transfer_id)

    def _unblock(self, group: ReferenceGroup, command: Any, total: int) -> None:
        group.expire_leases(self.now)
        seqs = None if command.intervals is None else group.inside(command.intervals)
        assert total == group.unblock(command.how, self.now, seqs)

    def _intervene(self, group: ReferenceGroup, command: Any, done: Any) -> None:
        group.expire_leases(self.now)
        seqs = group.inside(command.intervals)
        expected = group.intervene(command.how, seqs, self.now, command.force)
        came = done.changed, set(group.inside(done.held))
        assert came == expected, f"{command}: {came}, not {expected}"

    def _pause(self, group: ReferenceGroup, command: Any, result: None) -> None:
        group.paused = self.now if group.paused is None else group.paused

    def _resume(self, group: ReferenceGroup, command: Any, result: None) -> None:
        group.paused = None
        group.resume_breaker()

    def _seek(self, group: ReferenceGroup, command: Any, result: None) -> None:
        group.seek(0 if command.target == "earliest" else command.target)
