"""A consumer group on a log of numbered messages, for tests of the delivery rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from spark_mq import GroupSettings
from spark_mq.ledger import transitions
from spark_mq.ledger.acquire import AcquireRequest, Grant, acquire, postpone_due, reject_unreadable
from spark_mq.ledger.commands import Command, View
from spark_mq.ledger.interventions import FreezeDead
from spark_mq.ledger.message_index import DataFile, MessageIndex
from spark_mq.ledger.owner_commands import Seek
from spark_mq.ledger.ranges import Ledger, LedgerHeader, Range
from spark_mq.ledger.settle import Extend, Settle, SettleOutcome, SettlePart
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
        self.request: AcquireRequest | None = None
        """The last one."""

    def expire_leases(self, *keep: str) -> None:
        self.ledger = transitions.expire_leases(self.ledger, self.now, self.rules, keep)

    def ask(
        self, lease_id: str, limit: int = 1, *, worker: str = "", timeout: int = TIMEOUT, **more
    ) -> Grant:
        self.expire_leases()
        worker = worker or f"worker of {lease_id}"
        self.request = AcquireRequest(lease_id, worker, limit, self.now + timeout, **more)
        self.ledger, grant = acquire(self.ledger, self.index, self.now, self.rules, self.request)
        return grant

    def lease(self, lease_id: str, limit: int = 1, **more) -> list[int]:
        """The sequences of a new lease."""
        return self.sequences(self.ask(lease_id, limit, **more).ranges)

    def sequences(self, ranges: Iterable[Range]) -> list[int]:
        return [
            seq
            for r in ranges
            for piece in self.index.slices(r.first, r.last)
            for seq in range(piece.first, piece.first + piece.rows)
        ]

    def settle(
        self, verb: str, lease_id: str, seqs: list[int] | None = None, **more
    ) -> SettleOutcome:
        self.expire_leases(lease_id)
        (outcome,) = self.run(Settle((SettlePart(verb, lease_id, intervals_of(seqs), **more),)))
        return outcome

    def extend(
        self, lease_id: str, timeout: int = TIMEOUT, seqs: list[int] | None = None
    ) -> SettleOutcome:
        self.expire_leases(lease_id)
        return self.run(Extend(((lease_id, intervals_of(seqs)),), timeout)).outcomes[0]

    def replay_batch(
        self, lease_id: str, again: bool = False, *, worker: str = "driver", timeout: int = TIMEOUT
    ) -> int:
        """Replay a batch under a new lease id, ``stream/n/runner``.

        Return how many messages were granted.
        """
        stream, number, runner = lease_id.split("/")
        numbers = {fence_app_id(stream): 2 * int(number) + 1 + again}
        command = Replay(StreamBatch(stream, int(number), runner), worker, timeout, timeout)
        return self.run(command, numbers=numbers).message_count

    def cut(self, horizon: int) -> int:
        """Settle what lies up to a horizon, because it's lost. Return how many messages."""
        self.expire_leases()
        self.ledger, lost = transitions.settle_lost(self.ledger, self.index, horizon)
        return lost

    def reject_file(self, first: int, last: int, error: str) -> int:
        """Make the messages of a damaged file dead. Return how many."""
        self.ledger, dead = reject_unreadable(self.view(), self.ledger, (first, last), error)
        return dead

    def postpone_file(self, first: int, last: int, until: int) -> None:
        """Make the messages of a file that is out of reach due later."""
        self.ledger = postpone_due(self.view(), self.ledger, (first, last), until)

    def run(self, command: Command[R], **more) -> R:
        change = command.apply(self.view(held=command.lease_ids, **more))
        self.ledger = self.ledger if change.ledger is None else change.ledger
        return change.result

    def view(self, **more) -> View:
        return View(self.ledger, self.rules, self.now, self.index, **more)

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


def intervals_of(seqs: list[int] | None) -> list[tuple[int, int]] | None:
    return None if seqs is None else [(seq, seq) for seq in seqs]


def freeze(group: Group) -> None:
    group.run(FreezeDead("routing", 10, 10**9))


def seek(group: Group, target: int) -> None:
    group.run(Seek(target))
