"""Discard, retry or make dead single messages for the group's owner, without a lease."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_mq.ledger.commands import Change, Command, Needs, View
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, format_intervals, normalise, subtract
from spark_mq.ledger.key_order import is_ordered, return_behind
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.message_range import range_between
from spark_mq.ledger.ranges import (
    AVAILABLE,
    BLOCKED,
    DEAD,
    LEASED,
    SETTLED,
    TRANSFERRING,
    UNREAD,
    Ledger,
    Range,
)
from spark_mq.ledger.schedule import split_by_time
from spark_mq.ledger.transitions import REQUESTED, expire_leases, to_available, to_dead
from spark_mq.util.validation import truncate_error

__all__ = ["DEAD_LETTER", "DISCARD", "RETRY_NOW", "Intervene", "Intervention", "intervene"]

DISCARD: Final = "discard"
RETRY_NOW: Final = "retry now"
DEAD_LETTER: Final = "dead letter"
_EVENTS: Final = {DISCARD: "discarded", RETRY_NOW: "retried", DEAD_LETTER: "made_dead"}


@dataclass(slots=True)
class Intervention:
    """The outcome of an owner's change."""

    changed: int = 0  # messages in another state now, or due earlier
    ranges: list[Interval] = field(default_factory=list)  # their sequences
    held: list[tuple[int, int, str]] = field(default_factory=list)
    """``(first, last, who)`` of messages that must not change. With any, nothing was changed."""


@dataclass(frozen=True, slots=True)
class Intervene(Command[Intervention]):
    """Change messages without a lease, for the group's owner."""

    how: str  # DISCARD, RETRY_NOW or DEAD_LETTER
    intervals: Sequence[Interval]
    reason: str | None = None
    force: bool = False

    name = "intervene"
    alone = True  # the whole commit names the person

    @property
    def needs(self) -> Needs:
        return Needs(max(last for _, last in self.intervals))

    def apply(self, view: View) -> Change[Intervention]:
        ledger, reason = expire_leases(view.ledger, view.now, view.settings), self.reason
        after, done = intervene(
            ledger, view.log, view.now, self.how, self.intervals,
            error=reason, force=self.force, ordered=is_ordered(view.log, view.settings),
            attempts=view.settings.max_delivery_attempts,
        )  # fmt: skip
        note = {
            "operation": self.how, "messages": done.changed,
            "ranges": format_intervals(done.ranges),
            **({"reason": reason, "detail": reason} if reason else {}),
        }  # fmt: skip
        return Change(after if done.changed else None, done, note)


def intervene(
    ledger: Ledger,
    index: MessageIndex,
    now: int,
    how: str,
    intervals: Sequence[Interval],
    *,
    error: str | None = None,
    force: bool = False,
    ordered: bool = False,
    attempts: int | None = None,
) -> tuple[Ledger, Intervention]:
    """Change the unsettled messages of some intervals, leased ones too.

    Nothing changes if a lease holds any of them, unless `force` takes them from it, or if any is in
    transfer. RETRY_NOW makes messages due now. Those that are dead, blocked or leased for the last
    of their `attempts` count from zero. In an `ordered` group, a lease then also loses the messages
    after one that is due again.
    """
    change = _Change(
        ledger, index, now, how, intervals=normalise(intervals), error=error, attempts=attempts
    )
    change.done.held = list(change.held(force))
    if change.done.held:
        return ledger, change.done
    change.change_tracked()
    change.change_unread()
    if not change.done.changed:
        return ledger, change.done
    after = change.editor.build()
    if ordered and how == RETRY_NOW:
        for lease_id in sorted(change.fenced):
            after, _ = return_behind(after, index, now, lease_id)
    return after, change.done


class _Change:
    def __init__(
        self,
        ledger: Ledger,
        index: MessageIndex,
        now: int,
        how: str,
        *,
        intervals: list[Interval],
        error: str | None,
        attempts: int | None,
    ) -> None:
        self.attempts = attempts
        self.ledger, self.index, self.now, self.how = ledger, index, now, how
        self.intervals = intervals
        touched = [ledger.overlapping(first, last) for first, last in intervals]
        self._rows = sorted(set().union(*touched))
        self.error = None if error is None else truncate_error(error)
        self.editor = LedgerEditor(ledger)
        self.done = Intervention()
        self.fenced: set[str] = set()  # the leases that messages were taken from

    def held(self, force: bool) -> Iterator[tuple[int, int, str]]:
        """Yield the messages that must not change, and their holders."""
        for row in self._rows:
            r = self.ledger.range_at(row)
            if r.state == TRANSFERRING or (r.state == LEASED and not force):
                who = "a sweep or redrive copies it" if r.state == TRANSFERRING else (
                    f"lease {r.lease_id} of {r.worker_id} holds it"
                )  # fmt: skip
                for piece in self._inside(r):
                    yield piece.first, piece.last, who

    def change_tracked(self) -> None:
        for row in self._rows:
            r = self.ledger.range_at(row)
            pieces = [] if r.state in (SETTLED, TRANSFERRING) else self._inside(r)
            if not pieces:
                continue
            self.editor.remove([row])
            for piece in pieces:
                self._change(piece)
            for first, last in subtract([(r.first, r.last)], [(p.first, p.last) for p in pieces]):
                self.editor.add(r.slice(first, last, self.index), r)

    def change_unread(self) -> None:
        """Change unread messages. Those before them are in the ledger from then on."""
        first = self.ledger.end_sequence + 1
        unread = range_between(self.index, first, self.intervals[-1][1], UNREAD)
        pieces = [piece for r in ([unread] if unread else []) for piece in self._inside(r)]
        if self.how == RETRY_NOW:
            split = (split_by_time(piece, self.index, self.now, self.now) for piece in pieces)
            pieces = [later for parts in split for later in parts.later]
        if unread is None or not pieces:
            return
        for piece in pieces:
            self._change(piece)
        reach = [(unread.first, pieces[-1].last)]
        for low, high in subtract(reach, [(piece.first, piece.last) for piece in pieces]):
            if before := range_between(self.index, low, high, AVAILABLE):
                self.editor.add(before._replace(available_at=0), unread)

    def _inside(self, r: Range) -> list[Range]:
        whole = [(r.first, r.last)]
        wanted = subtract(whole, subtract(whole, self.intervals))
        pieces = (r.slice(first, last, self.index) for first, last in wanted)
        return [piece for piece in pieces if piece.message_count]

    def _change(self, r: Range) -> None:
        after = self._after(r)
        if after == r:
            self.editor.add(r, r)
            return
        if r.state == LEASED:
            self.editor.record_event("fenced", r._replace(state=AVAILABLE))
            self.fenced.add(r.lease_id or "")
        self.editor.add(after, self._shown_before(r), _EVENTS[self.how])
        self.done.changed += r.message_count
        self.done.ranges.append((r.first, r.last))

    def _shown_before(self, r: Range) -> Range:
        """Return the range as its event shows it, because a settled range keeps no reason."""
        if self.how != DISCARD:
            return r
        return r._replace(reason=REQUESTED, error=self.error or r.error)

    def _after(self, r: Range) -> Range:
        if self.how == DISCARD:
            return r.as_settled()
        if self.how == DEAD_LETTER:
            return r if r.state == DEAD else to_dead(r, REQUESTED, self.error or r.error)
        if r.state in (DEAD, BLOCKED) or self._is_spent(r):
            return Range(
                r.first, r.last, AVAILABLE, r.message_count,
                first_leased_at=r.first_leased_at, available_at=self.now,
                reason=REQUESTED, error=r.error,
            )  # fmt: skip
        if r.state == AVAILABLE and self._is_due(r):
            return r
        size = r.lease_size if r.suspect and r.state == AVAILABLE else None
        return to_available(r, self.now, r.error)._replace(
            lease_size=size, reason=REQUESTED if r.delivery_count == 0 else r.reason
        )

    def _is_spent(self, r: Range) -> bool:
        """Return whether a leased message would be dead, not due, after this delivery."""
        return r.state == LEASED and self.attempts is not None and r.delivery_count >= self.attempts

    def _is_due(self, r: Range) -> bool:
        """Return whether all messages of an available range are due."""
        if (r.available_at or 0) > self.now:
            return False
        return not split_by_time(r, self.index, self.now, self.now).later
