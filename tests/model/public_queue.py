"""A queue in memory of which each group stands beside its reference (``reference.py``).

Worlds drive it through the public API. The reference judges each lease, and follows each settle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from support.handles import again
from support.tables import group_ledger_of, messages_of

from spark_mq import ConsumerGroup, Lease, Message
from spark_mq.errors import LeaseLost
from spark_mq.ledger.slots import SlotLayout
from spark_mq.testing import ManualClock, memory_queue
from spark_mq.util.clock import to_micros

from .reference import MICROSECOND, ReferenceGroup, ReferenceMessage

SECOND = 1_000_000


@dataclass
class Held:
    """A lease that its worker has not settled whole."""

    group: str
    lease: Lease
    left: list[int]
    """The sequences that it has not settled by name."""
    appended: bool = False


class PublicQueue:
    """Two handles, which stand for two processes, on one queue. Nothing waits after a nack."""

    def __init__(self, groups: Mapping[str, Mapping[str, Any]], **settings: Any) -> None:
        self.clock = ManualClock()
        given = {"breaker_threshold": None, "retry_delay": 0, **settings}
        self.queue = memory_queue(self.clock, **given)
        self.handles = [self.queue, again(self.queue)]
        lanes = settings.get("lanes", 0)
        self.lane_of = SlotLayout(lanes).lane if lanes else lambda key: None
        self.groups: dict[str, ReferenceGroup] = {}
        self.leases: list[Held] = []
        for name, own in groups.items():
            self.begin(name, **own)

    @property
    def now(self) -> int:
        return to_micros(self.clock())

    def group(self, name: str, handle: int = 0) -> ConsumerGroup:
        return self.handles[handle].group(name)

    def begin(self, name: str, **settings: Any) -> None:
        """Begin a group at the earliest message."""
        self.group(name).ensure()
        known = self.group(name).configure(**settings) if settings else self.group(name).settings
        by_lane = self.queue.settings.lanes > 0
        self.groups[name] = ReferenceGroup.of(known, by_lane=by_lane)

    def publish(self, messages: Sequence[Message], handle: int = 0) -> Any:
        """Publish messages whose times, if they have any, are timedeltas. Return the receipt."""
        receipt = self.handles[handle].publish(messages)
        for at, message in enumerate(messages):
            if (seq := receipt.sequence_of(at)) is not None:
                self.add(seq, message)
        return receipt

    def add(self, seq: int, message: Message, names: Iterable[str] | None = None) -> None:
        """Let the references of all groups, or of some, know of a message."""
        due, expires = self._time(message.deliver_at), self._time(message.expires_at)
        for name in self.groups if names is None else names:
            group = self.groups[name]
            group.messages.append(
                ReferenceMessage(
                    seq, key=message.key, priority=message.priority,
                    lane=self.lane_of(message.key), due=due or 0, expires=expires,
                )
            )  # fmt: skip
            group.messages.sort(key=lambda m: m.seq)

    def _time(self, given: Any) -> int | None:
        """A time in the future is rounded up to a second."""
        if given is None:
            return None
        assert isinstance(given, timedelta)
        at = self.now + given // MICROSECOND
        return -(-at // SECOND) * SECOND

    def message(self, name: str, seq: int) -> ReferenceMessage:
        return next(m for m in self.groups[name].messages if m.seq == seq)

    def each_group(self, seq: int) -> list[ReferenceMessage]:
        """The message as each group sees it."""
        return [self.message(name, seq) for name in self.groups]

    def lease(self, name: str, limit: int, handle: int = 0, **more: Any) -> Lease | None:
        """Lease, and let the reference judge what was leased."""
        group = self.groups[name]
        lease = self.group(name, handle).lease("w", max_messages=limit, **more)
        group.expire_leases(self.now)
        if lease is None:
            self.follow_skips(name)
            return None
        chosen = [self.message(name, m.sequence) for m in lease.messages]
        group.check_some(chosen, limit, self.now)
        group.end_claims(chosen, self.now)
        group.granted(chosen, lease.lease_id, "1~w", self.now, to_micros(lease.expires_at))
        counts = {m.sequence: m.delivery_count for m in lease.messages}
        assert counts == {m.seq: m.info["delivery_count"] for m in chosen}, "deliveries"
        self.leases.append(Held(name, lease, [m.seq for m in chosen]))
        self.follow_skips(name)
        return lease

    def follow_skips(self, name: str) -> None:
        ledger = group_ledger_of(self.group(name)).current()
        self.groups[name].follow_skips(ledger, self.now)

    def settle(self, how: str, at: int = -1, *named: int) -> None:
        """Settle all that a lease has left, or messages by name. It may be too late for some."""
        held = self.leases[at]
        group, seqs, late = self.groups[held.group], list(named) or held.left, False
        try:
            getattr(held.lease, how)(*[named] if named else [])
        except LeaseLost:
            late = True
        group.expire_leases(self.now, (held.lease.lease_id,))
        for m in group.held_mask(held.lease.lease_id):
            if m.is_expired(self.now):  # and its lease has
                group.count("expired", 1)
                m.forget("settled")
        *_, lost, returned = group.settle(
            how, held.lease.lease_id, seqs, self.now, whole=not named, delay=None, jitter=0.0
        )
        assert late == bool(lost), f"{how} is {'' if late else 'not '}refused, and {lost} are lost"
        held.left = [seq for seq in held.left if seq not in {*seqs, *returned}]
        if not held.left:
            self.leases.remove(held)

    def extend(self, at: int) -> None:
        held = self.leases[at]
        group, lease_id = self.groups[held.group], held.lease.lease_id
        with contextlib.suppress(LeaseLost):
            held.lease.extend()
        group.expire_leases(self.now, (lease_id,))
        timeout = self.queue.group(held.group).settings.visibility_timeout // MICROSECOND
        group.extend(lease_id, self.now + timeout, None, self.now)

    def advance(self, duration: str) -> None:
        """Let time pass, and fold the leases that end."""
        self.clock.advance(duration)
        for name, group in self.groups.items():
            self.group(name).expire()
            group.expire_leases(self.now)

    def expire(self) -> None:
        """Let all leases end with their workers."""
        self.leases.clear()
        self.advance("70s")

    def index(self) -> None:
        """Write the commits so far to ``commits/``, from which a new handle reads them."""
        messages_of(self.queue).index_commits()

    def open_again(self) -> None:
        self.handles[1] = again(self.queue)
