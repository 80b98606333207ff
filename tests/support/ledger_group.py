"""A consumer group on a log of numbered messages, for tests of the delivery rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from spark_mq import GroupSettings
from spark_mq.ledger import transitions
from spark_mq.ledger.acquire import AcquireRequest, Grant, acquire
from spark_mq.ledger.commands import Command, View
from spark_mq.ledger.message_index import DataFile, MessageIndex
from spark_mq.ledger.owner_commands import Seek
from spark_mq.ledger.ranges import Ledger, LedgerHeader, Range
from spark_mq.ledger.routing import FreezeDead
from spark_mq.ledger.settle import REJECT, Extend, Settle, SettleOutcome, SettlePart
from spark_mq.ledger.stream_batch import Replay, StreamBatch, fence_app_id

R = TypeVar("R")

SECOND = 1_000_000
TIMEOUT = 60 * SECOND


@dataclass
class Group:
    """A group on a log whose messages are 0, 1, 2, ...

    (commit 0), unless `files` say otherwise. Each operation folds first.
    """

    messages: int = 10
    rules: GroupSettings = field(default_factory=lambda: limits(clock_skew=0))
    files: list[DataFile] | None = None
    now: int = 1_000 * SECOND

    def __post_init__(self):
        plain = [DataFile(0, self.messages, "a", self.messages * 10, 0)]
        self.index = MessageIndex(plain if self.files is None else self.files, 9)
        self.ledger = Ledger(LedgerHeader())

    def expire_leases(self, *keep: str) -> None:
        self.ledger = transitions.expire_leases(self.ledger, self.now, self.rules, keep)

    def ask(self, lease_id: str, limit: int = 1, *, worker: str = "", **more) -> Grant:
        self.expire_leases()
        worker = worker or f"worker of {lease_id}"
        wanted = AcquireRequest(lease_id, worker, limit, self.now + TIMEOUT, **more)
        self.ledger, grant = acquire(self.ledger, self.index, self.now, self.rules, wanted)
        return grant

    def lease(self, lease_id: str, limit: int = 1, **more) -> list[int]:
        """The sequences of a new lease."""
        grant = self.ask(lease_id, limit, **more)
        return [
            seq
            for r in grant.ranges
            for piece in self.index.slices(r.first, r.last)
            for seq in range(piece.first, piece.first + piece.rows)
        ]

    def settle(
        self, verb: str, lease_id: str, seqs: list[int] | None = None, **more
    ) -> SettleOutcome:
        self.expire_leases(lease_id)
        wanted = SettlePart(
            verb, lease_id, None if seqs is None else [(seq, seq) for seq in seqs], **more
        )
        (outcome,) = self.run(Settle((wanted,)))
        return outcome

    def extend(
        self, lease_id: str, timeout: int = TIMEOUT, seqs: list[int] | None = None
    ) -> SettleOutcome:
        self.expire_leases(lease_id)
        intervals = None if seqs is None else [(seq, seq) for seq in seqs]
        return self.run(Extend(((lease_id, intervals),), timeout)).outcomes[0]

    def replay_batch(self, lease_id: str, again: bool = False) -> int:
        """How many messages were granted."""
        self.ledger, grant = replayed(
            lease_id, self.ledger, self.index, self.now, self.rules, again=again
        )
        return grant.message_count

    def run(self, command: Command[R]) -> R:
        self.ledger, result = applied(command, self.ledger, self.index, self.now, self.rules)
        return result

    def expire(self) -> None:
        """Past the deadline of all leases, and folded."""
        self.now += TIMEOUT + 1
        self.expire_leases()

    def at(self, seq: int) -> Range | None:
        """The range that a message is in; None if it is unread or below the floor."""
        return next((r for r in self.ledger if r.first <= seq <= r.last), None)

    def state(self, seq: int) -> str:
        r = self.at(seq)
        return r.state if r else "settled" if seq <= self.ledger.head.start_sequence else "unread"

    def states(self) -> str:
        """One letter a message, the first of its state, as U for an unread one."""
        return "".join(self.state(seq)[0].upper() for seq in range(self.messages))


def limits(**given) -> GroupSettings:
    """Return settings of a group, with durations in microseconds."""
    return GroupSettings.decoded({"clock_skew": 0, **given})


def applied(
    command: Command[R], ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings
) -> tuple[Ledger, R]:
    """Return the ledger after a command, and its result."""
    change = command.apply(View(ledger, rules, now, index, held=command.lease_ids))
    return ledger if change.ledger is None else change.ledger, change.result


def replayed(
    lease_id: str, ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings, *,
    again: bool, worker_id: str = "driver", timeout: int = TIMEOUT,
) -> tuple[Ledger, Grant]:  # fmt: skip
    """Return the ledger after a replay under a new lease id, ``stream/n/runner``, and its grant."""
    stream, number, runner = lease_id.split("/")
    numbers = {fence_app_id(stream): 2 * int(number) + 1 + again}
    command = Replay(StreamBatch(stream, int(number), runner), worker_id, timeout, timeout)
    change = command.apply(View(ledger, rules, now, index, numbers=numbers))
    return change.ledger, change.result


def freeze_dead(group: Group, transfer_id: str, ranges: int = 10) -> int:
    return group.run(FreezeDead(transfer_id, ranges, 10**9))


def dead_ones() -> Group:
    group = Group()
    group.lease("a", 8)
    for seq in (1, 3, 5):
        group.settle(REJECT, "a", [seq], error=str(seq))
    return group


def freeze(group: Group) -> None:
    freeze_dead(group, "routing")


def seek(group: Group, target: int) -> None:
    group.run(Seek(target))
