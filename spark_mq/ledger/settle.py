"""Settle the messages of a lease by ack, nack, reject or release, or extend the lease.

The lease id is the right to settle. After its deadline, a lease may settle messages that no other
lease holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_mq.ledger.commands import Change, Command, Needs, View
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, format_intervals, intersect, normalise, subtract
from spark_mq.ledger.key_order import is_ordered, return_behind
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, LEASED, SETTLED, Ledger, Range
from spark_mq.ledger.schedule import settle_expired_held
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.sink_writes import without_last_write
from spark_mq.ledger.transitions import (
    after_failure,
    expire_leases,
    expired,
    is_late,
    record_expired_leases,
    record_failure,
    rejected,
    released,
    revived,
    with_failure,
)
from spark_mq.util.clock import MICROSECOND
from spark_mq.util.process import without_collections
from spark_mq.util.validation import truncate_error

ACK: Final = "ack"
NACK: Final = "nack"
REJECT: Final = "reject"
RELEASE: Final = "release"

REJECTED: Final = "rejected"
_EVENTS: Final = {ACK: "acked", NACK: "nacked", REJECT: "rejected", RELEASE: "released"}


@dataclass(frozen=True, slots=True)
class SettlePart:
    """What to do with a lease, or with some of its messages."""

    verb: str  # ACK, NACK, REJECT or RELEASE
    lease_id: str
    intervals: Sequence[Interval] | None = None  # None for all messages that the lease holds
    whole: bool = False
    """The intervals are the whole lease and name no message, so a nack knows no culprit."""
    delay: int | None = None
    """Microseconds until messages are due. None for the retry policy, or for a release at once."""
    error: str | None = None  # the failure as text, truncated
    reason: str = REJECTED  # why rejected messages are dead
    jitter: float = 0.0  # the share of the policy's jitter, 0 to 1, drawn once for each part
    handler_failed: bool = False
    """A reject or an ack although the handler failed, which counts for the breaker."""

    def __post_init__(self) -> None:
        if self.error is not None:
            object.__setattr__(self, "error", truncate_error(self.error))


@dataclass(slots=True)
class SettleOutcome:
    """The outcome of a command."""

    settled: int = 0
    already_settled: int = 0  # before, by any lease
    lost: list[tuple[int, int, str]] = field(default_factory=list)  # (first, last, reason)
    ranges: list[Interval] = field(default_factory=list)  # the settled sequences
    returned: list[Interval] = field(default_factory=list)
    """Sequences that the lease has lost too, because an earlier message of their key waits."""
    states: dict[str, int] = field(default_factory=dict, compare=False)  # for logs
    next_due_at: int | None = field(default=None, compare=False)  # of those that wait
    ended: int = field(default=0, compare=False)
    """Messages that the late command did not settle, because their expiry ended them first."""

    def add_lost(self, first: int, last: int, reason: str) -> None:
        """Add lost sequences. Join them with the last ones if the reason is the same."""
        if self.lost and self.lost[-1][1] + 1 == first and self.lost[-1][2] == reason:
            first = self.lost.pop()[0]
        self.lost.append((first, last, reason))

    def sort_lost(self) -> None:
        lost, self.lost = sorted(self.lost), []
        for part in lost:
            self.add_lost(*part)

    def add(self, r: Range, became: Range) -> None:
        self.settled += r.message_count
        self.ranges.append((r.first, r.last))
        self.states[became.state] = self.states.get(became.state, 0) + r.message_count
        if became.state == AVAILABLE:
            due = became.available_at or 0
            self.next_due_at = due if self.next_due_at is None else min(self.next_due_at, due)


@dataclass(frozen=True, slots=True)
class Settle(Command[list[SettleOutcome]]):
    """Settle messages of several leases, in order.

    A lease may hold messages after its deadline, until another lease takes them. Then ack and
    reject count as usual. A nack or release expires them first and then gives up the lease's claim,
    so it does the same as after another operation's expiry. Messages that are settled already, by
    any lease, are counted and stay as they are. All others are ``lost``.
    In an ordered group, a nack or release of some messages also returns the later messages of their
    keys, uncounted.
    """

    parts: tuple[SettlePart, ...]

    name = "settle"
    of_worker = True

    @property
    def needs(self) -> Needs:
        # A caller that names later messages than this process knows may know more.
        named = (last for part in self.parts for _, last in part.intervals or ())
        return Needs(max(named, default=-1))

    @property
    def lease_ids(self) -> frozenset[str]:
        return frozenset(part.lease_id for part in self.parts)

    def apply(self, view: View) -> Change[list[SettleOutcome]]:
        ledger = expire_leases(view.ledger, view.now, view.settings, view.held)
        ledger, outcomes = without_collections(lambda: settle_all(view, ledger, self.parts))
        changed = any(outcome.settled or outcome.ended for outcome in outcomes)
        return Change(ledger if changed else None, outcomes, settle_note(self.parts, outcomes))


def settle_note(parts: Sequence[SettlePart], outcomes: Sequence[SettleOutcome]) -> dict[str, Any]:
    """Return the note of a commit about settles, for DESCRIBE HISTORY."""
    done = [(c, o) for c, o in zip(parts, outcomes, strict=True) if o.settled or o.ended]
    return {
        "operation": "+".join(dict.fromkeys(c.verb for c, _ in done)),
        "lease_id": ",".join(dict.fromkeys(c.lease_id for c, _ in done)),
        "messages": sum(o.settled for _, o in done),
        "ranges": " ".join(f"{c.verb} {format_intervals(o.ranges)}" for c, o in done if o.settled),
    }


def settle_all(
    view: View, ledger: Ledger, parts: Sequence[SettlePart]
) -> tuple[Ledger, list[SettleOutcome]]:
    """Settle on a ledger whose late leases have expired."""
    index, now, rules = view.log, view.now, view.settings
    for lease_id in dict.fromkeys(part.lease_id for part in parts):
        ledger = settle_expired_held(ledger, index, now, rules, lease_id)
    order = list(range(len(parts)))
    if is_ordered(index, rules):
        # Nacks and releases first, because no other part may settle what they return.
        order.sort(key=lambda at: parts[at].verb not in (NACK, RELEASE))
    outcomes, returned = dict[int, SettleOutcome](), dict[str, list[Interval]]()
    for at in order:
        part = parts[at]
        if part.intervals is not None and (gone := returned.get(part.lease_id)):
            part = replace(part, intervals=subtract(part.intervals, gone))
        ledger, outcomes[at] = _settle_part(view, ledger, part)
        returned.setdefault(part.lease_id, []).extend(outcomes[at].returned)
    return ledger, [outcomes[at] for at in range(len(parts))]


def _settle_part(view: View, ledger: Ledger, part: SettlePart) -> tuple[Ledger, SettleOutcome]:
    """Settle on a ledger in which all other late leases have expired."""
    index, now, rules = view.log, view.now, view.settings
    ordered = is_ordered(index, rules)
    if ordered and _has_expired_part(ledger, part.lease_id):
        ledger, _ = return_behind(ledger, index, now, part.lease_id)
    settling = _Settling(view, ledger, part)
    settling.visit(part.intervals)
    after = settling.finish()
    if ordered and part.verb in (NACK, RELEASE):
        after, settling.outcome.returned = return_behind(after, index, now, part.lease_id)
    return after, settling.outcome


def _has_expired_part(ledger: Ledger, lease_id: str) -> bool:
    own = ("lease_id", "=", lease_id)
    return bool(ledger.find((AVAILABLE,), own)) and bool(ledger.find((LEASED,), own))


class LeaseWalker:
    """Change messages that a lease holds, and report the others that it is given.

    Intervals that are the `whole` lease may end in a gap.
    """

    def __init__(
        self, ledger: Ledger, index: MessageIndex, lease_id: str, *, whole: bool = False
    ) -> None:
        self.ledger, self.index, self.lease_id = ledger, index, lease_id
        self.editor = LedgerEditor(ledger)
        self.outcome = SettleOutcome()
        self._whole = whole

    def apply(self, r: Range) -> None:
        """Apply the change to a range that the lease holds."""
        raise NotImplementedError

    def visit(self, intervals: Sequence[Interval] | None) -> None:
        """Apply the change to some messages. None for all that the lease holds."""
        if intervals is None or self._are_held(intervals):
            for r in self.editor.remove(self.ledger.rows_held(self.lease_id)):
                self.apply(r)
            return
        wanted, held = normalise(intervals), list[Interval]()
        named = self.index.trim_to_messages(wanted)
        for r in self.editor.cut(named, self.index, (LEASED, AVAILABLE), self._holds):
            self.apply(r)
            held.append((r.first, r.last))
        if named != wanted and not self._whole:
            for first, last in subtract(wanted, named):
                self.outcome.add_lost(first, last, "no message")
        if held != named:
            self._report(subtract(named, held))
        self.outcome.sort_lost()

    def _are_held(self, intervals: Sequence[Interval]) -> bool:
        """Return whether intervals are the ranges that the lease holds, as in most whole leases."""
        if len(intervals) < 2:
            return False
        ledger, rows = self.ledger, self.ledger.rows_held(self.lease_id)
        firsts, lasts = ledger.first_sequences, ledger.last_sequences
        return [(firsts[row], lasts[row]) for row in rows] == list(intervals)

    def _holds(self, r: Range) -> bool:
        return r.lease_id == self.lease_id

    def _report(self, intervals: Sequence[Interval]) -> None:
        """Report messages that the lease does not hold."""
        ledger, end = self.ledger, self.ledger.end_sequence
        touched = [ledger.overlapping(first, last) for first, last in intervals]
        rows = sorted(set().union(*touched))
        ranges = dict(zip(rows, ledger.ranges_at(rows), strict=True))
        for (first, last), of in zip(intervals, touched, strict=True):
            self.count_settled(first, min(last, ledger.head.start_sequence))
            for row in of:
                piece = ranges[row].slice(first, last, self.index)
                if piece.state == SETTLED:
                    self.count_settled(piece.first, piece.last)
                elif piece.message_count:
                    self.outcome.add_lost(piece.first, piece.last, why_lost(piece))
            if last > end:
                self.outcome.add_lost(max(first, end + 1), last, "unread")

    def count_settled(self, first: int, last: int) -> None:
        """Count settled messages. Messages that a seek skipped are lost, not processed."""
        if first > last:
            return
        done = subtract([(first, last)], self.ledger.head.skipped_intervals)
        self.outcome.already_settled += sum(self.index.count(*part) for part in done)
        for low, high in subtract([(first, last)], done):
            if self.index.count(low, high):
                self.outcome.add_lost(low, high, "skipped")


def why_lost(r: Range) -> str:
    if r.state == LEASED:
        return f"leased by {r.lease_id}"
    if r.state == AVAILABLE:
        return "given back"
    return f"{'blocked' if r.state == BLOCKED else 'dead'}: {r.reason}"


class _Settling(LeaseWalker):
    def __init__(self, view: View, ledger: Ledger, part: SettlePart) -> None:
        super().__init__(ledger, view.log, part.lease_id, whole=part.whole)
        self.now, self.rules, self.part = view.now, view.settings, part
        self._last: Range | None = None  # the last settled piece, and the result for it
        self._result: Range | None = None
        self._failed: Range | None = None  # the first leased piece that failed
        self._expired: list[Range] = []  # the late pieces, as they were leased
        explicit = part.verb == ACK or (part.verb == REJECT and part.reason == REJECTED)
        self._succeeds = explicit and not part.handler_failed
        self._fails = part.verb == NACK or part.handler_failed
        self._by_name = part.intervals is not None and not part.whole
        self._of_lease = self._fails and not self._by_name
        self._expires_first = part.verb in (NACK, RELEASE)

    def apply(self, r: Range) -> None:
        late = r.state == LEASED and self._expires_first and is_late(r, self.now, self.rules)
        if late:
            r = self._expire(r)
        elif r.state == LEASED and self._fails:
            self._failed = self._failed or r
        if r.state not in (LEASED, AVAILABLE):
            self._report_ended(r)
            return
        if self._succeeds:
            self._close_breaker(r)
        # Computed once for all pieces of a range, because the result depends on its state only.
        if self._last is None or self._result is None or not r.same_state_as(self._last):
            piece = self._result = self._after(r)
        else:
            piece = self._result.at(r.first, r.last, r.message_count)
        self._last = r
        self.outcome.add(r, piece)
        self.editor.add(piece, r, _EVENTS[self.part.verb], of_lease=self._of_lease)

    def _expire(self, r: Range) -> Range:
        """Expire a piece, as any other operation would have done before."""
        after = expired(r, self.rules)
        self._expired.append(r)
        if after.state == AVAILABLE:
            self.editor.record_event("lease_expired", after)
        else:
            self.editor.add(after, r, "lease_expired", of_lease=True)
            self.outcome.ended += r.message_count
        return after

    def _report_ended(self, r: Range) -> None:
        """Report a piece that its expiry has ended. A part for all held messages skips it."""
        if self.part.intervals is None:
            return
        if r.state == SETTLED:
            self.count_settled(r.first, r.last)
        else:
            self.outcome.add_lost(r.first, r.last, why_lost(r))

    def _close_breaker(self, r: Range) -> None:
        editor, before = self.editor, self.editor.head.breaker
        after = before.with_success([(r.first, r.last)])
        if after is not before:
            editor.head = replace(editor.head, breaker=after)
            if before.opened_at is not None:
                editor.record_event("breaker_closed", r)

    def finish(self) -> Ledger:
        """Return the next ledger. A lease that ends as failed counts for the breaker."""
        after = self.editor.build()
        if not (self._failed or self._expired):
            return after
        if after.rows_held(self.part.lease_id):
            return after
        editor = LedgerEditor(after)
        if self._expired:
            record_expired_leases(editor, self._expired, self.rules)
        elif self._failed is not None:
            first = self._failed.first
            after_it = after.ranges_at(list(after.overlapping(first, first)))
            failed = self._failed._replace(state=after_it[0].state if after_it else SETTLED)
            record_failure(editor, failed, self.part.error, self.now, self.rules)
        return editor.build()

    def _after(self, r: Range) -> Range:
        part, rules = self.part, self.rules
        if part.verb == ACK:
            return Range(r.first, r.last, SETTLED, r.message_count)
        r = self._unwritten(r)
        if part.verb == REJECT:
            return rejected(r, rules, part.reason, part.error)
        if part.verb == NACK:
            return _nacked(r, self.now, rules, part)
        return released(r, self.now, part.delay)

    def _unwritten(self, r: Range) -> Range:
        """Return the range without the lease's write, if the holder names the message."""
        # It names what it does not write. The write of a whole lease may be in the sink.
        return r._replace(sink_writes=without_last_write(r)) if self._by_name else r


def _nacked(r: Range, now: int, rules: GroupSettings, part: SettlePart) -> Range:
    live = r.state == LEASED  # an expiry has counted the failure already
    r = with_failure(r, now) if live else r
    delay = part.delay
    if delay is None:
        delay = rules.delay(r.failure_count, part.jitter) if live else 0
    own = (part.intervals is not None and not part.whole) or r.lease_size == 1
    return after_failure(r, rules, now, part.error or r.error, own=own, due_at=now + delay)


@dataclass(frozen=True, slots=True)
class Extended:
    """What an extension did to each of its leases."""

    outcomes: list[SettleOutcome]
    deadline: int


@dataclass(frozen=True, slots=True)
class Extend(Command[Extended]):
    """Extend leases, or some messages of each, never to an earlier deadline.

    Expired messages that no other lease took are leased again. In an ordered group no message is
    revived after one of its key that has expired. ``settled`` counts the extended messages.
    """

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
        now, rules = view.now, view.settings
        after = expire_leases(view.ledger, now, rules, view.held)
        deadline = now + (self.timeout or rules.visibility_timeout // MICROSECOND)
        outcomes = list[SettleOutcome]()
        for lease_id, intervals in self.targets:
            after = settle_expired_held(after, view.log, now, rules, lease_id)
            after, outcome = _extend(view, after, lease_id, intervals, deadline)
            outcomes.append(outcome)
        lease_ids = dict.fromkeys(lease_id for lease_id, _ in self.targets)
        note = {"operation": self.name, "lease_id": ",".join(lease_ids)}
        changed = any(outcome.settled or outcome.returned for outcome in outcomes)
        return Change(after if changed else None, Extended(outcomes, deadline), note)


def _extend(
    view: View,
    ledger: Ledger,
    lease_id: str,
    intervals: Sequence[Interval] | None,
    expires_at: int,
) -> tuple[Ledger, SettleOutcome]:
    index = view.log
    extension = _Extension(ledger, index, lease_id, expires_at)
    extension.visit(intervals)
    if intervals is None or not is_ordered(index, view.settings):
        return extension.editor.build(), extension.outcome
    kept, lost = return_behind(extension.editor.build(), index, view.now, lease_id)
    if stay := intersect(extension.revived, lost):
        # An expiry has counted their delivery, so they stay as it left them.
        extension = _Extension(ledger, index, lease_id, expires_at)
        extension.visit(subtract(intervals, stay))
        kept, lost = return_behind(extension.editor.build(), index, view.now, lease_id)
    outcome = extension.outcome
    for first, last in intersect(outcome.ranges, lost):
        outcome.settled -= index.count(first, last)
    for first, last in normalise([*stay, *intersect(outcome.ranges, lost)]):
        outcome.add_lost(first, last, "after an unsettled message of its key")
    outcome.sort_lost()
    outcome.ranges, outcome.returned = subtract(outcome.ranges, lost), lost
    return kept, outcome


class _Extension(LeaseWalker):
    def __init__(self, ledger: Ledger, index: MessageIndex, lease_id: str, expires_at: int) -> None:
        super().__init__(ledger, index, lease_id)
        self._expires_at = expires_at
        self.revived: list[Interval] = []  # the messages that had expired

    def apply(self, r: Range) -> None:
        before, expires_at = r, self._expires_at
        if r.state == AVAILABLE:
            r = revived(r, expires_at)
            self.revived.append((r.first, r.last))
            self.editor.record_event("extended", r)
        self.editor.add(r._replace(expires_at=max(expires_at, r.expires_at or 0)), before)
        self.outcome.settled += r.message_count
        self.outcome.ranges.append((r.first, r.last))
