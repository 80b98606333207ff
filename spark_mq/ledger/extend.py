"""Extend a lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_mq.ledger.commands import Change, Command, Needs, View
from spark_mq.ledger.intervals import Interval, intersect, normalise, subtract
from spark_mq.ledger.key_order import is_ordered, return_behind
from spark_mq.ledger.lease_walker import LeaseWalker, SettleOutcome
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, LEASED, Ledger, Range
from spark_mq.ledger.schedule import settle_expired_held
from spark_mq.ledger.transitions import expire_leases
from spark_mq.util.clock import MICROSECOND

__all__ = ["Extend", "Extended", "extend"]


@dataclass(frozen=True, slots=True)
class Extended:
    """What an extension did to each of its leases."""

    outcomes: list[SettleOutcome]
    deadline: int


@dataclass(frozen=True, slots=True)
class Extend(Command[Extended]):
    """Extend leases, or some messages of each."""

    targets: tuple[tuple[str, list[Interval] | None], ...]  # None for all that a lease holds
    timeout: int | None  # microseconds; None for the group's

    name = "extend"

    @property
    def needs(self) -> Needs:
        named = [last for _, intervals in self.targets for _, last in intervals or ()]
        return Needs(max(named, default=-1))

    @property
    def lease_ids(self) -> frozenset[str]:
        return frozenset(lease_id for lease_id, _ in self.targets)

    def apply(self, view: View) -> Change[Extended]:
        now, rules, index = view.now, view.settings, view.log
        after = expire_leases(view.ledger, now, rules, view.held)
        deadline = now + (self.timeout or rules.visibility_timeout // MICROSECOND)
        outcomes = []
        for lease_id, intervals in self.targets:
            after = settle_expired_held(after, index, now, rules, lease_id)
            after, outcome = extend(
                after, index, lease_id, deadline, intervals,
                ordered_at=now if is_ordered(index, rules) else None,
            )  # fmt: skip
            outcomes.append(outcome)
        lease_ids = dict.fromkeys(lease_id for lease_id, _ in self.targets)
        note = {"operation": self.name, "lease_id": ",".join(lease_ids)}
        changed = any(outcome.settled for outcome in outcomes)
        return Change(after if changed else None, Extended(outcomes, deadline), note)


def extend(
    ledger: Ledger,
    index: MessageIndex,
    lease_id: str,
    expires_at: int,
    intervals: Sequence[Interval] | None = None,
    *,
    ordered_at: int | None = None,
) -> tuple[Ledger, SettleOutcome]:
    """Move the deadline of a lease or of some of its messages, never to an earlier time.

    Expired messages that no other lease took are leased again. `ordered_at` is the current time if
    the group delivers keys in order, else None. In such a group no message is revived after one of
    its key that has expired. ``settled`` of the outcome counts the extended messages.
    """
    extension = _Extension(ledger, index, lease_id, expires_at)
    extension.visit(intervals)
    if ordered_at is None or intervals is None:
        return extension.editor.build(), extension.outcome
    kept, lost = return_behind(extension.editor.build(), index, ordered_at, lease_id)
    if stay := intersect(extension.revived, lost):
        # An expiry has counted their delivery, so they stay as it left them.
        extension = _Extension(ledger, index, lease_id, expires_at)
        extension.visit(subtract(intervals, stay))
        kept, lost = return_behind(extension.editor.build(), index, ordered_at, lease_id)
    outcome = extension.outcome
    for first, last in intersect(outcome.ranges, lost):
        outcome.settled -= index.count(first, last)
    for first, last in normalise([*stay, *intersect(outcome.ranges, lost)]):
        outcome.add_lost(first, last, "after an unsettled message of its key")
    outcome.ranges = subtract(outcome.ranges, lost)
    return kept, outcome


class _Extension(LeaseWalker):
    def __init__(self, ledger: Ledger, index: MessageIndex, lease_id: str, expires_at: int) -> None:
        super().__init__(ledger, index, lease_id)
        self._expires_at = expires_at
        self.revived: list[Interval] = []  # the messages that had expired

    def apply(self, r: Range) -> None:
        before, expires_at = r, self._expires_at
        if r.state == AVAILABLE:
            r = _revived(r, expires_at)
            self.revived.append((r.first, r.last))
            self.editor.record_event("extended", r)
        self.editor.add(r._replace(expires_at=max(expires_at, r.expires_at or 0)), before)
        self.outcome.settled += r.message_count
        self.outcome.ranges.append((r.first, r.last))


def _revived(r: Range, expires_at: int) -> Range:
    """Return an expired range as leased, without the failure of the expiry."""
    failures = r.failure_count - 1
    return r._replace(
        state=LEASED,
        failure_count=failures,
        first_failed_at=r.first_failed_at if failures else None,
        available_at=None,
        expires_at=expires_at,
    )
