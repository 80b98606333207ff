"""Settling: what ack, nack, reject, release and extend do to the ranges of a lease. Pure, part of the ledger's rules.

Ownership is by lease id. Past its deadline a lease may still settle what nobody has leased since; see :func:`settle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, normalise, subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, LEASED, SETTLED, WAITING, Ledger, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.transitions import failed, final, past_limit, to_waiting
from spark_mq.util.validation import error_text

__all__ = ["ACK", "NACK", "REJECT", "REJECTED", "RELEASE", "SettleCommand", "SettleOutcome", "extend", "settle"]

ACK: Final = "ack"
NACK: Final = "nack"
REJECT: Final = "reject"
RELEASE: Final = "release"

REJECTED: Final = "rejected"
_EVENTS: Final = {ACK: "acked", NACK: "nacked", REJECT: "rejected", RELEASE: "released"}


@dataclass(frozen=True, slots=True)
class SettleCommand:
    """What to do to a lease, or to named messages of it.

    ``intervals``: sequences, inclusive pairs; None for all that the lease still holds. ``whole``: the intervals are the lease
    as its holder knows it, no message is named: the culprit of a nack is unknown. ``delay``: microseconds until a nacked
    message is due again; None for the group's retry policy. ``jitter``: drawn once a settle, 0 to 1: how much of the policy's jitter.
    """

    verb: str
    lease_id: str
    intervals: Sequence[Interval] | None = None
    whole: bool = False
    delay: int | None = None
    error: str | None = None
    reason: str = REJECTED
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.error is not None:
            object.__setattr__(self, "error", error_text(self.error))


@dataclass(slots=True)
class SettleOutcome:
    """What a settle did: messages settled, messages that already were, and what was not held, as ``(first, last, why)``."""

    settled: int = 0
    already_settled: int = 0
    lost: list[tuple[int, int, str]] = field(default_factory=list)
    ranges: list[Interval] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict, compare=False)
    """How many messages went to which state, for logs."""
    next_due: int | None = field(default=None, compare=False)
    """When the first of those that wait is due again, in microseconds."""

    def lose(self, first: int, last: int, why: str) -> None:
        if self.lost and self.lost[-1][1] + 1 == first and self.lost[-1][2] == why:
            first = self.lost.pop()[0]
        self.lost.append((first, last, why))

    def add(self, r: Range, became: Range) -> None:
        """Count a range that was settled, and what became of it."""
        self.settled += r.message_count
        self.ranges.append((r.first, r.last))
        self.states[became.state] = self.states.get(became.state, 0) + r.message_count
        if became.state == WAITING:
            due = became.available_at or 0
            self.next_due = due if self.next_due is None else min(self.next_due, due)


def settle(ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings, wanted: SettleCommand) -> tuple[Ledger, SettleOutcome]:
    """Applies one settle. The caller folds first, keeping ``wanted.lease_id``.

    Past the deadline and not leased again, ack and reject count; nack and release give up the claim of the lease. Settled
    already, by whatever lease: counted, nothing done. Anything else is in ``Outcome.lost``.
    """
    settling = _Settling(ledger, index, now, rules, wanted)
    if wanted.intervals is None:
        for r in settling.draft.take(ledger.where(ledger.held_by(wanted.lease_id))):
            settling.apply(r)
    else:
        settling.intervals(normalise(wanted.intervals))
    return settling.draft.finish(), settling.outcome


class _Settling:
    """One settle under way: cuts the named intervals out of the ranges they lie in."""

    def __init__(self, ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings, wanted: SettleCommand) -> None:
        self.ledger, self.index, self.now, self.rules, self.wanted = ledger, index, now, rules, wanted
        self.draft = LedgerEditor(ledger)
        self.outcome = SettleOutcome()
        self._left: dict[int, Range] = {}  # by row: what lies above the last cut, if anything does
        self._of: Range | None = None  # what was settled last, and what became of it
        self._became: Range | None = None

    def intervals(self, intervals: Sequence[Interval]) -> None:
        """Settles what lies in some intervals, which are in ascending order."""
        touched = [self.ledger.overlapping(first, last) for first, last in intervals]
        rows = sorted(set().union(*touched))
        self._left = dict(zip(rows, self.ledger.select(rows), strict=True))
        held = [row for row in rows if self._holds(self._left[row])]
        self.draft.take(held)
        for (first, last), of in zip(intervals, touched, strict=True):
            self._interval(first, last, of)
        for row in held:
            if row in self._left:
                self.draft.put(self._left[row])

    def _holds(self, r: Range) -> bool:
        return r.state in (LEASED, WAITING) and r.lease_id == self.wanted.lease_id

    def _interval(self, first: int, last: int, rows: range) -> None:
        low, high = self.index.at_or_after(first), self.index.at_or_before(last)
        if low is None or high is None or low > high:
            self._lose_gap(first, last)
            return
        self._lose_gap(first, low - 1)
        head, frontier = self.ledger.head, self.ledger.frontier
        self._past(low, min(high, head.floor))
        for row in rows:
            self._cut(row, low, high)
        if high > frontier:
            self.outcome.lose(max(low, frontier + 1), high, "unread")
        self._lose_gap(high + 1, last)

    def _past(self, first: int, last: int) -> None:
        """Messages that are settled: fine, unless a seek skipped them, unprocessed as they were."""
        if first > last:
            return
        done = subtract([(first, last)], self.ledger.head.skipped)
        self.outcome.already_settled += sum(self.index.count(*part) for part in done)
        for low, high in subtract([(first, last)], done):
            if self.index.count(low, high):
                self.outcome.lose(low, high, "skipped")

    def _lose_gap(self, first: int, last: int) -> None:
        """Sequences that no message has. Those of a whole lease are no mistake: what is left of its ranges may end in a gap."""
        if first <= last and not self.wanted.whole:
            self.outcome.lose(first, last, "no message")

    def _cut(self, row: int, low: int, high: int) -> None:
        r = self._left.get(row)
        if r is None or (piece := r.part(low, high, self.index)).message_count == 0:
            return
        if r.state == SETTLED:
            self._past(piece.first, piece.last)
        elif not self._holds(r):
            self.outcome.lose(piece.first, piece.last, _why_not(r))
        else:
            if r.first < piece.first:
                self.draft.put(r.part(r.first, piece.first - 1, self.index))
            self.apply(piece)
            if piece.last < r.last:
                self._left[row] = r.part(piece.last + 1, r.last, self.index)
            else:
                del self._left[row]

    def apply(self, r: Range) -> None:
        """Does to a range that the lease holds what the settle wants."""
        if self._of is None or self._became is None or not r.alike(self._of):
            self._became = self._after(r)  # the same for all pieces of a range, wherever they lie
        self._of = r
        self.outcome.add(r, self._became)
        self.draft.put(self._became._replace(first=r.first, last=r.last, message_count=r.message_count), _EVENTS[self.wanted.verb], of=r)

    def _after(self, r: Range) -> Range:
        if self.wanted.verb == ACK:
            return r.settled()
        if self.wanted.verb == REJECT:
            return past_limit(r, self.rules, self.wanted.reason, self.wanted.error, blocks=False)
        if self.wanted.verb == NACK:
            return _nacked(r, self.now, self.rules, self.wanted)
        if r.state == WAITING:
            return r._replace(lease_id=None, worker_id=None, leased_at=None, lease_size=None)
        return _released(r, self.now)


def _why_not(r: Range) -> str:
    if r.state == LEASED:
        return f"leased by {r.lease_id}"
    return "given back" if r.state == WAITING else f"{'blocked' if r.state == BLOCKED else 'dead'}: {r.reason}"


def _nacked(r: Range, now: int, rules: GroupSettings, wanted: SettleCommand) -> Range:
    by_name = wanted.intervals is not None and not wanted.whole
    fresh = r.state == LEASED  # an expiry has counted already
    error = wanted.error or r.error
    r = failed(r, now) if fresh else r
    if reason := final(r, rules, now, own=by_name or r.lease_size == 1):
        return past_limit(r, rules, reason, error)
    delay = wanted.delay
    if delay is None:
        delay = rules.delay(r.failure_count, wanted.jitter) if fresh else 0
    return to_waiting(r, now + delay, error)._replace(suspect=not by_name)


def _released(r: Range, now: int) -> Range:
    back = to_waiting(r, now, r.error)
    count = r.delivery_count - 1
    return back._replace(delivery_count=count, first_leased_at=r.first_leased_at if count else None)


def extend(ledger: Ledger, lease_id: str, expires_at: int) -> tuple[Ledger, SettleOutcome]:
    """Moves the deadline of what a lease holds to `expires_at`, never earlier. What had expired, unclaimed, is leased again."""
    draft, outcome = LedgerEditor(ledger), SettleOutcome()
    for r in draft.take(ledger.where(ledger.held_by(lease_id))):
        if r.state == WAITING:
            failures = r.failure_count - 1
            first = r.first_failed_at if failures else None
            r = r._replace(state=LEASED, failure_count=failures, first_failed_at=first, available_at=None, expires_at=expires_at)
            draft.note("extended", r)
        draft.put(r._replace(expires_at=max(expires_at, r.expires_at or 0)))
        outcome.settled += r.message_count
        outcome.ranges.append((r.first, r.last))
    return draft.finish(), outcome
