"""The delivery rules of a consumer group: every transition of a range, as pure functions from a ledger to the next.

    state     how it got there                        leaves by
    unread    published                               lease
    leased    lease (counted)                         ack -> settled; nack, expiry -> waiting or dead; reject -> dead;
                                                      release -> waiting, as before the lease
    waiting   nack, expiry, release                   lease, when available_at <= now
    dead      its last attempt failed, or rejected    routing -> settled
    routing   being copied to the DLQ                 settled
    settled   acked, routed, dropped, skipped         forgotten below the floor

Time, the commit index and chance are arguments. The rules come out of an exhaustive search over small models; what a lease
takes is chosen in ``selection.py``. Each operation first folds: other leases past their deadline become waiting or dead. An
operation never folds the lease that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.index import CommitIndex
from spark_mq.intervals import Interval, normalise
from spark_mq.ranges import DEAD, LEASED, ROUTING, SETTLED, WAITING, Draft, Ledger, Range
from spark_mq.settings import GroupSettings

__all__ = [
    "ACK",
    "EXTEND",
    "NACK",
    "REJECT",
    "RELEASE",
    "Outcome",
    "Settle",
    "extend",
    "fold",
    "freeze_dead",
    "give_back",
    "held_by_batch",
    "routed",
    "seek",
    "settle",
    "take_over",
]

ACK: Final = "ack"
NACK: Final = "nack"
REJECT: Final = "reject"
RELEASE: Final = "release"
EXTEND: Final = "extend"

ATTEMPTS_USED: Final = "max_delivery_attempts"
REJECTED: Final = "rejected"


@dataclass(frozen=True, slots=True)
class Settle:
    """What to do to a lease, or to named messages of it.

    ``intervals``: sequences, inclusive pairs; None for all that the lease still holds. ``whole``: the intervals are the lease
    as its holder knows it, no message is named: the culprit of a nack is unknown. ``delay``: microseconds until a nacked
    message is due again; None for the group's backoff. ``jitter``: drawn once a settle, 0 to 1, stretches the backoff by up to a tenth.
    """

    verb: str
    lease_id: str
    intervals: Sequence[Interval] | None = None
    whole: bool = False
    delay: int | None = None
    error: str | None = None
    reason: str = REJECTED
    jitter: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What a settle did: messages settled, messages that already were, and what was not held, as ``(first, last, why)``."""

    settled: int = 0
    already_settled: int = 0
    lost: list[tuple[int, int, str]] = field(default_factory=list)
    ranges: list[Interval] = field(default_factory=list)

    def lose(self, first: int, last: int, why: str) -> None:
        if self.lost and self.lost[-1][1] + 1 == first and self.lost[-1][2] == why:
            first = self.lost.pop()[0]
        self.lost.append((first, last, why))


def fold(ledger: Ledger, now: int, rules: GroupSettings, keep: Iterable[str] = ()) -> Ledger:
    """Turns leases past deadline + margin, but for those in `keep`, into waiting (due at once, suspect) or dead."""
    late = pc.and_(ledger.is_state(LEASED), pc.less(ledger.column("expires_at").cast(pa.int64()), now - rules.clock_skew))
    # A lowered limit applies before the next delivery.
    spent = pc.and_(
        ledger.is_state(WAITING),
        pc.greater_equal(ledger.column("delivery_count"), rules.max_delivery_attempts or 2**31 - 1),
    )
    mask = pc.or_(pc.fill_null(late, False), spent)
    kept = list(keep)
    if kept:
        mask = pc.and_(mask, pc.invert(pc.is_in(ledger.column("lease_id"), value_set=pa.array(kept, pa.string()))))
    draft = Draft(ledger)
    for r in draft.take(ledger.where(mask)):
        draft.put(_expired(r, rules) if r.state == LEASED else _dead(r, ATTEMPTS_USED, r.error))
    return draft.finish()


def settle(ledger: Ledger, index: CommitIndex, now: int, rules: GroupSettings, wanted: Settle) -> tuple[Ledger, Outcome]:
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
    settling.draft.head = ledger.head.counted("acked", settling.acked)
    return settling.draft.finish(), settling.outcome


class _Settling:
    """One settle under way: cuts the named intervals out of the ranges they lie in."""

    def __init__(self, ledger: Ledger, index: CommitIndex, now: int, rules: GroupSettings, wanted: Settle) -> None:
        self.ledger, self.index, self.now, self.rules, self.wanted = ledger, index, now, rules, wanted
        self.draft = Draft(ledger)
        self.outcome = Outcome()
        self.acked = 0
        self._left: dict[int, Range] = {}  # by row: what lies above the last cut, if anything does

    def intervals(self, intervals: Sequence[Interval]) -> None:
        """Settles what lies in some intervals, which are in ascending order."""
        rows = sorted({row for first, last in intervals for row in self.ledger.overlapping(first, last)})
        self._left = dict(zip(rows, self.ledger.select(rows), strict=True))
        held = [row for row in rows if self._holds(self._left[row])]
        self.draft.take(held)
        for first, last in intervals:
            self._interval(first, last)
        for row in held:
            if row in self._left:
                self.draft.put(self._left[row])

    def _holds(self, r: Range) -> bool:
        return r.state in (LEASED, WAITING) and r.lease_id == self.wanted.lease_id

    def _interval(self, first: int, last: int) -> None:
        low, high = self.index.at_or_after(first), self.index.at_or_before(last)
        if low is None or high is None or low > high:
            self._lose_gap(first, last)
            return
        self._lose_gap(first, low - 1)
        head, frontier = self.ledger.head, self.ledger.frontier
        self.outcome.already_settled += self.index.count(low, min(high, head.floor))
        for row in self.ledger.overlapping(low, high):
            self._cut(row, low, high)
        if high > frontier:
            self.outcome.lose(max(low, frontier + 1), high, "unread")
        self._lose_gap(high + 1, last)

    def _lose_gap(self, first: int, last: int) -> None:
        """Sequences that no message has. Those of a whole lease are no mistake: what is left of its ranges may end in a gap."""
        if first <= last and not self.wanted.whole:
            self.outcome.lose(first, last, "no message")

    def _cut(self, row: int, low: int, high: int) -> None:
        r = self._left.get(row)
        if r is None or (piece := r.part(low, high, self.index)).message_count == 0:
            return
        if r.state == SETTLED:
            self.outcome.already_settled += piece.message_count
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
        self.outcome.settled += r.message_count
        self.outcome.ranges.append((r.first, r.last))
        if self.wanted.verb == ACK:
            self.acked += r.message_count
            self.draft.put(r.settled())
        elif self.wanted.verb == REJECT:
            self.draft.put(_dead(r, self.wanted.reason, self.wanted.error))
        elif self.wanted.verb == NACK:
            self.draft.put(_nacked(r, self.now, self.rules, self.wanted))
        elif r.state == WAITING:
            self.draft.put(replace(r, lease_id=None, worker_id=None, leased_at=None))
        else:
            self.draft.put(_released(r, self.now))


def _why_not(r: Range) -> str:
    if r.state == LEASED:
        return f"leased by {r.lease_id}"
    return "given back" if r.state == WAITING else f"dead: {r.reason}"


def _nacked(r: Range, now: int, rules: GroupSettings, wanted: Settle) -> Range:
    by_name = wanted.intervals is not None and not wanted.whole
    failures = r.failure_count + (r.state == LEASED)  # an expiry has counted already
    error = wanted.error or r.error
    if _used_up(r, rules):
        return _dead(replace(r, failure_count=failures), ATTEMPTS_USED, error)
    delay = wanted.delay
    if delay is None:
        delay = 0 if r.state == WAITING else round(rules.delay(failures) * (1 + wanted.jitter / 10))
    return replace(_waiting(r, now + delay, error), failure_count=failures, suspect=not by_name)


def _released(r: Range, now: int) -> Range:
    back = _waiting(r, now, r.error)
    count = r.delivery_count - 1
    return replace(back, delivery_count=count, first_leased_at=r.first_leased_at if count else None)


def _expired(r: Range, rules: GroupSettings) -> Range:
    error = f"lease {r.lease_id} of {r.worker_id} expired"
    r = replace(r, failure_count=r.failure_count + 1)
    if _used_up(r, rules):
        return _dead(r, ATTEMPTS_USED, error)
    # What belongs to the lease stays with its id, for an extension would revive it.
    back = _waiting(r, r.expires_at or 0, error)
    return replace(back, lease_id=r.lease_id, worker_id=r.worker_id, leased_at=r.leased_at, suspect=True)


def _used_up(r: Range, rules: GroupSettings) -> bool:
    return rules.max_delivery_attempts is not None and r.delivery_count >= rules.max_delivery_attempts


def _waiting(r: Range, available_at: int, error: str | None) -> Range:
    return replace(
        r,
        state=WAITING,
        lease_id=None,
        worker_id=None,
        leased_at=None,
        expires_at=None,
        available_at=available_at,
        error=error,
    )


def _dead(r: Range, reason: str, error: str | None) -> Range:
    return replace(_waiting(r, 0, error), state=DEAD, available_at=None, suspect=False, reason=reason)


def extend(ledger: Ledger, lease_id: str, expires_at: int) -> tuple[Ledger, Outcome]:
    """Moves the deadline of what a lease holds to `expires_at`, never earlier. What had expired, unclaimed, is leased again."""
    draft, outcome = Draft(ledger), Outcome()
    for r in draft.take(ledger.where(ledger.held_by(lease_id))):
        if r.state == WAITING:
            r = replace(r, state=LEASED, failure_count=r.failure_count - 1, available_at=None, expires_at=expires_at)
        draft.put(replace(r, expires_at=max(expires_at, r.expires_at or 0)))
        outcome.settled += r.message_count
        outcome.ranges.append((r.first, r.last))
    return draft.finish(), outcome


def held_by_batch(ledger: Ledger, prefix: str) -> list[int]:
    """The rows of what the batch of a stream still holds, under whichever runner's lease id (``stream/n/runner``)."""
    return ledger.where(pc.and_(ledger.is_state(LEASED, WAITING), pc.starts_with(ledger.column("lease_id"), prefix)))


def take_over(
    ledger: Ledger,
    now: int,
    rules: GroupSettings,
    prefix: str,
    *,
    lease_id: str,
    worker_id: str,
    expires_at: int,
    granted_before: bool,
) -> tuple[Ledger, list[Range]]:
    """The replay of a batch: what it still holds passes to `lease_id`, counted as a delivery. Returns what was granted.

    A batch that was replayed before is not granted again, nor one that would put a message on its last attempt in company: its
    messages go back as suspects, without a lease id.
    """
    rows = held_by_batch(ledger, prefix)
    draft = Draft(ledger)
    held = draft.take(rows)
    limit = rules.max_delivery_attempts
    alone = sum(r.message_count for r in held) == 1
    last = limit is not None and any(r.delivery_count + 1 >= limit for r in held)
    spent = limit is not None and any(r.delivery_count >= limit for r in held)
    if granted_before or spent or (last and not alone):
        for r in held:
            draft.put(give_back(r, now, rules))
        return draft.finish(), []
    granted = [
        replace(
            r,
            state=LEASED,
            lease_id=lease_id,
            worker_id=worker_id,
            leased_at=now,
            expires_at=expires_at,
            available_at=None,
            delivery_count=r.delivery_count + 1,
        )
        for r in held
    ]
    for r in granted:
        draft.put(r)
    return draft.finish(), granted


def give_back(r: Range, now: int, rules: GroupSettings) -> Range:
    """A range of a batch that died: due at once, suspect, no claim left; dead if it has no attempt left."""
    r = replace(r, failure_count=r.failure_count + (r.state == LEASED))
    error = r.error or f"batch {r.lease_id} died"
    if _used_up(r, rules):
        return _dead(r, ATTEMPTS_USED, error)
    return replace(_waiting(r, now, error), suspect=True)


def freeze_dead(ledger: Ledger, routing_id: str, limit: int) -> tuple[Ledger, list[Range]]:
    """First step of routing: up to `limit` dead ranges are set aside under a routing id."""
    draft = Draft(ledger)
    frozen = [replace(r, state=ROUTING, lease_id=routing_id) for r in draft.take(ledger.where(ledger.is_state(DEAD))[:limit])]
    for r in frozen:
        draft.put(r)
    return draft.finish(), frozen


def routed(ledger: Ledger, routing_id: str) -> tuple[Ledger, int]:
    """Last step of routing: what was set aside under the id is settled. Returns how many messages."""
    draft = Draft(ledger)
    rows = ledger.where(pc.and_(ledger.is_state(ROUTING), pc.equal(ledger.column("lease_id"), routing_id)))
    total = 0
    for r in draft.take(rows):
        draft.put(r.settled())
        total += r.message_count
    draft.head = draft.head.counted("dead_lettered", total)
    return draft.finish(), total


def seek(ledger: Ledger, index: CommitIndex, target: int) -> Ledger:
    """All before `target` is settled (skipped), all from it on is unread; leases are fenced, ``routing`` is left alone."""
    routing = ledger.select(ledger.where(ledger.is_state(ROUTING)))
    ranges: list[Range] = []
    reach = min([target, *(r.first for r in routing)])
    head = replace(ledger.head, floor=reach - 1, forgotten=index.count(0, reach - 1))
    for r in routing:
        ranges += _sought(reach, r.first - 1, target, index)
        ranges.append(r)
        reach = r.last + 1
    # Past the last routing range only what is skipped needs a range: the rest is unread by being past the frontier.
    ranges += _sought(reach, target - 1, target, index)
    skipped = index.count(ledger.head.floor + 1, target - 1) - sum(
        index.count(r.first, min(r.last, target - 1)) for r in ledger.select(ledger.where(ledger.is_state(SETTLED, ROUTING)))
    )
    return Ledger.of(head.counted("skipped", max(0, skipped)), ranges)


def _sought(first: int, last: int, target: int, index: CommitIndex) -> list[Range]:
    pieces = [(first, min(last, target - 1), SETTLED), (max(first, target), last, WAITING)]
    return [
        Range(index.cut(low, 1), index.cut(low, count), state, count, available_at=0 if state == WAITING else None)
        for low, high, state in pieces
        if (count := index.count(low, high))
    ]
