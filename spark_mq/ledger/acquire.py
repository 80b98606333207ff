"""Which messages a lease takes: the rules of isolation, turns and caps. Pure, part of the ledger's rules.

A lease holds one of: a piece of one suspect range; messages on their last attempt, all with failures of their own; or
anything else that is due (waiting first, then unread, in sequence order). The kinds take turns, so none starves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, DEAD, LEASED, ROUTING, WAITING, Ledger, Range
from spark_mq.ledger.schedule import Sorted, put_aside, ripen, sort_out
from spark_mq.ledger.settings import GroupSettings

__all__ = ["AcquireRequest", "Grant", "isolation_size", "lease", "tidy"]

SUSPECT: Final = "suspect"
LAST: Final = "last attempt"
REST: Final = "rest"
KINDS: Final = (SUSPECT, LAST, REST)

_DEFAULT_ATTEMPTS: Final = 5
"""The shape of isolation where a group has no limit of attempts."""


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """What a worker asks for. ``spare``: attempts kept back for a replay (1 for the source, else 0). ``upto``: no sequence past
    it; ``due_by``: nothing that became due later (both for Trigger.AvailableNow). Instants in microseconds."""

    lease_id: str
    worker_id: str
    max_messages: int
    expires_at: int
    max_bytes: int | None = None
    spare: int = 0
    upto: int | None = None
    due_by: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What a lease got: its ranges in the order of sequence, or none and why (``blocked_because``, empty if nothing is due)."""

    ranges: tuple[Range, ...] = ()
    blocked_because: str = ""

    @property
    def message_count(self) -> int:
        return sum(r.message_count for r in self.ranges)


def isolation_size(limit: int, deliveries: int, attempts: int) -> int:
    """How many messages of a suspect range go into one lease: fewer with each delivery, one at the last.

    ``max(1, floor(limit ** ((n-1-d)/(n-1))))`` for `d` deliveries of `n` attempts. With 10,000 and n = 5: 1,000, 100, 10, 1.
    """
    if attempts <= 1:
        return 1
    exponent = min(1.0, max(0.0, (attempts - 1 - deliveries) / (attempts - 1)))
    return max(1, min(limit, int(limit**exponent + 1e-9)))


def lease(ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings, wanted: AcquireRequest) -> tuple[Ledger, Grant]:
    """Leases what the rules allow. The caller folds first. The ledger comes back unchanged if nothing was granted."""
    attempts = rules.attempts(wanted.spare)
    wanted, blocked = _up_to_block(ledger, wanted)
    limit = 1 if attempts == 1 else wanted.max_messages
    if rules.max_in_flight is not None:
        limit = min(limit, rules.max_in_flight - ledger.count(ledger.is_state(LEASED)))
    given, ledger = ledger, ripen(ledger, index, now, _by(now, wanted))
    waiting = _due(ledger, _by(now, wanted), wanted, attempts)
    may_read = _has_unread(ledger, index, wanted)
    if limit < 1:
        return given, Grant(blocked_because="max_in_flight" if may_read or any(waiting.values()) else "")
    full = _full(ledger, now, rules)
    start = KINDS.index(ledger.head.turn) if ledger.head.turn in KINDS else 0
    for kind in (*KINDS[start:], *KINDS[:start]):
        draft, aside, reach = LedgerEditor(ledger), cast(list[Range], []), -1
        if kind == SUSPECT and waiting[SUSPECT]:
            row = waiting[SUSPECT][0] if attempts is not None else _longest_due(ledger, waiting[SUSPECT])
            size = isolation_size(limit, ledger.at(row).delivery_count, attempts or _DEFAULT_ATTEMPTS)
            taken = _take(draft, [row], size, wanted.upto, index)
        else:
            taken = _take(draft, waiting[kind], limit, wanted.upto, index)
        if kind == REST and may_read and not full:
            unread, reach = _read(ledger, index, limit - sum(r.message_count for r in taken), wanted, now)
            taken += unread.due
            aside = [*unread.later, *unread.expired]
        fitting = _within_bytes(draft, taken, index, wanted.max_bytes)
        if fitting:
            if fitting is not taken:
                taken, reach = fitting, fitting[-1].last
            draft.head = replace(ledger.head, turn=KINDS[(KINDS.index(kind) + 1) % len(KINDS)])
            size = sum(r.message_count for r in taken)
            granted = tuple(_leased(r, now, wanted, size) for r in taken)
            for r in granted:
                draft.put(r, "leased")
            for r in aside:
                if r.last <= reach:  # what lies past a message that is due, and was not granted, stays unread with it
                    put_aside(draft, r)
            return draft.finish(), Grant(granted)
    return given, Grant(blocked_because="max_ledger_ranges" if full and may_read else blocked)


def _up_to_block(ledger: Ledger, wanted: AcquireRequest) -> tuple[AcquireRequest, str]:
    """Where the group blocks: the request for what lies before the first blocked message, and the reason for having no more."""
    blocked = ledger.where(ledger.is_state(BLOCKED))
    if not blocked:
        return wanted, ""
    first = ledger.at(blocked[0])
    before = first.first - 1
    upto = before if wanted.upto is None else min(before, wanted.upto)
    return replace(wanted, upto=upto), f"message {first.first} is past its limit ({first.reason})"


def _due(ledger: Ledger, by: int, wanted: AcquireRequest, attempts: int | None) -> dict[str, list[int]]:
    """The rows that are waiting and due, by kind."""
    due = pc.and_(ledger.is_state(WAITING), pc.less_equal(ledger.column("available_at").cast(pa.int64()), by))
    if wanted.upto is not None:
        due = pc.and_(due, pc.less_equal(ledger.column("first"), wanted.upto))
    suspect = ledger.column("suspect")
    count = ledger.column("delivery_count")
    last = pc.and_(pc.greater(count, 0), pc.greater_equal(count, 2**31 - 1 if attempts is None else attempts - 1))
    # One that was replayed and then released has come so far without a failure: an innocent, so it goes alone, as a suspect does.
    suspect = pc.or_(suspect, pc.and_(last, pc.equal(ledger.column("failure_count"), 0)))
    clear = pc.and_(due, pc.invert(suspect))
    return {
        SUSPECT: ledger.where(pc.and_(due, suspect)),
        LAST: ledger.where(pc.and_(clear, last)),
        REST: ledger.where(pc.and_(clear, pc.invert(last))),
    }


def _longest_due(ledger: Ledger, rows: list[int]) -> int:
    """The suspect range whose turn it is where no limit ends a message: due the longest, then the least delivered, then the lowest.

    Elsewhere the lowest goes first, until it is settled or dead. Without a limit one that fails each time would starve those behind it.
    """
    places = pa.array(rows, pa.int64())
    due, count = ledger.column("available_at").cast(pa.int64()).take(places), ledger.column("delivery_count").take(places)
    longest = pc.equal(due, pc.min(due))
    least = pc.and_(longest, pc.equal(count, pc.min(count.filter(longest))))
    return rows[pc.index(least, True).as_py()]


def _full(ledger: Ledger, now: int, rules: GroupSettings) -> bool:
    """Whether nothing unread may be added to the ledger. Ranges that wait for someone else, or for their time, don't count."""
    delayed = pc.and_(ledger.is_state(WAITING), pc.greater(ledger.column("available_at").cast(pa.int64()), now))
    elsewhere = pc.or_kleene(ledger.is_state(DEAD, BLOCKED, ROUTING), delayed)
    return len(ledger) - (pc.sum(elsewhere).as_py() or 0) >= rules.max_ledger_ranges


def _take(draft: LedgerEditor, rows: list[int], limit: int, upto: int | None, index: MessageIndex) -> list[Range]:
    """Takes from ranges, lowest first, up to `limit` messages and no sequence past `upto`; the rest of the last one stays.

    The ranges all begin at or before `upto`.
    """
    counts, enough = draft.ledger.counts, 0
    for size, row in enumerate(rows):
        if enough >= limit:
            rows = rows[:size]
            break
        enough += counts[row]
    taken = draft.take(rows)
    if taken:
        r = taken.pop()
        end = index.cut(r.first, r.message_count - max(0, enough - limit))
        if upto is not None:
            end = min(end, upto)
        draft.put(r.part(end + 1, r.last, index))
        taken.append(r.part(r.first, end, index))
    return taken


def _has_unread(ledger: Ledger, index: MessageIndex, wanted: AcquireRequest) -> bool:
    end = index.tail if wanted.upto is None else min(index.tail, wanted.upto)
    return index.count(ledger.frontier + 1, end) > 0


def _read(ledger: Ledger, index: MessageIndex, limit: int, wanted: AcquireRequest, now: int) -> tuple[Sorted, int]:
    """The first unread messages, up to `limit` that are due; with those among them that are not due yet, or have expired.

    And how far that reaches: no other message up to there is due.
    """
    end = index.tail if wanted.upto is None else min(index.tail, wanted.upto)
    out, first, reach = Sorted(), index.at_or_after(ledger.frontier + 1), -1
    while limit > 0 and first is not None and first <= end:
        # Where no file ahead has times of its own, all is one range; else it is looked at file by file.
        last = min(end, index.file_at(first).last) if index.timed_after(first - 1) else end
        found = sort_out(Range(first, last, WAITING, index.count(first, last)), index, now, _by(now, wanted))
        reach = last
        for r in found.due:
            if limit < r.message_count:
                reach = min(reach, r.first - 1 if limit == 0 else index.cut(r.first, limit))
            if limit > 0:
                out.due.append(r.part(r.first, index.cut(r.first, min(limit, r.message_count)), index))
                limit -= out.due[-1].message_count
        out.later += found.later
        out.expired += found.expired
        first = index.at_or_after(last + 1)
    return out, reach


def tidy(ledger: Ledger, index: MessageIndex, now: int) -> Ledger:
    """Settles what has expired, and sets aside what is not due yet, ahead of the first unread message that is due.

    A lease does so by the way; where nothing is due, the sweep does it, so that looking stays cheap and trims go on.
    """
    draft = LedgerEditor(ripen(ledger, index, now, now))
    first = index.at_or_after(ledger.frontier + 1)
    while first is not None and index.is_timed(first, first):
        last = index.file_at(first).last
        found = sort_out(Range(first, last, WAITING, last - first + 1), index, now, now)
        for r in (*found.later, *found.expired):
            if not found.due or r.last < found.due[0].first:
                put_aside(draft, r)
        first = None if found.due else index.at_or_after(last + 1)
    return draft.finish()


def _by(now: int, wanted: AcquireRequest) -> int:
    return now if wanted.due_by is None else min(now, wanted.due_by)


def _within_bytes(draft: LedgerEditor, taken: list[Range], index: MessageIndex, max_bytes: int | None) -> list[Range]:
    """What fits into `max_bytes` (of the files, estimated), at least one message; the rest goes back."""
    if max_bytes is None:
        return taken
    kept: list[Range] = []
    for at, r in enumerate(taken):
        fits, max_bytes = _fitting(r, index, max_bytes)
        if fits == r.message_count:
            kept.append(r)
            continue
        if fits or not kept:
            end = index.cut(r.first, max(1, fits))
            kept.append(r.part(r.first, end, index))
            r = r.part(end + 1, r.last, index)
        for back in [r, *taken[at + 1 :]]:
            if back.available_at is not None:  # unread stays unread by not being put
                draft.put(back)
        break
    return kept


def _fitting(r: Range, index: MessageIndex, max_bytes: int) -> tuple[int, int]:
    """How many of the first messages of a range fit into `max_bytes`, and how many bytes are left then. File by file: sizes differ."""
    fits = 0
    for piece in index.slices(r.first, r.last):
        if piece.size > max_bytes:
            return fits + piece.rows * max_bytes // piece.size, 0
        fits += piece.rows
        max_bytes -= piece.size
    return fits, max_bytes


def _leased(r: Range, now: int, wanted: AcquireRequest, size: int) -> Range:
    return r._replace(
        state=LEASED,
        lease_id=wanted.lease_id,
        worker_id=wanted.worker_id,
        leased_at=now,
        expires_at=wanted.expires_at,
        lease_size=size,
        first_leased_at=r.first_leased_at or now,
        delivery_count=r.delivery_count + 1,
        available_at=None,
    )
