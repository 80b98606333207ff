"""Lease messages, unless the breaker, a pause, a cap or a blocked message stops the group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from spark_mq.ledger.budget import MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, Budget, RateLimits, limit_in
from spark_mq.ledger.commands import TRACKED, Change, Command, Needs, Priority, View, join_notes
from spark_mq.ledger.data_files import DataFile
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, format_intervals
from spark_mq.ledger.isolation import RESERVED_ATTEMPTS
from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.lane_selector import LaneSelector
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, LEASED, UNREAD, Ledger, Range
from spark_mq.ledger.schedule import DUE, add_scheduled, split_by_time, split_due
from spark_mq.ledger.selection import (
    FILTERED,
    OTHER_GROUP,
    REPLACED,
    AcquireRequest,
    Grant,
    blocked_by,
)
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.sink_writes import next_write
from spark_mq.ledger.stream_batch import StreamBatch
from spark_mq.ledger.transitions import expire_leases, rejected, without_lost
from spark_mq.util.clock import MICROSECOND, SECOND
from spark_mq.util.user import worker_label

__all__ = ["AcquireRequest", "Grant"]

UNREADABLE: Final = "payload unreadable"
"""The reason of messages that are dead because their file is damaged or missing."""

POSTPONE: Final = 10 * SECOND  # for messages of a file out of reach, if others can be delivered
MAX_OUT_OF_REACH: Final = 100  # files; the store is out of reach then, and a lease gives up
MAX_AHEAD: Final = 100  # files that a filtered lease checks before it needs them
_NOTHING: Final = Grant()


@dataclass(frozen=True, slots=True)
class Acquire(Command[Grant]):
    """Lease due messages whose payload files are readable.

    Messages of damaged files become dead. Those of files out of reach are due again later if others
    can be delivered. If none can, nothing is granted, and nothing is postponed. As far as the lease
    looks, it settles as skipped what the group does not get: messages for another group alone,
    those that later ones replace, and those that the group's filter does not match.
    """

    worker_id: str
    max_messages: int
    timeout: int | None = None  # microseconds; None for the group's
    fail_on_data_loss: bool = True
    max_bytes: int | None = None
    max_timeout: int | None = None  # bounds either timeout
    max_sequence: int | None = None
    due_by: int | None = None  # only messages that were due at this time; None for now
    batch: StreamBatch | None = None  # the batch of a stream that the lease is for
    intervals: Sequence[Interval] | None = None  # only these messages, sorted; None for any

    name = "lease"
    priority = Priority.LEASE
    of_worker = True

    @property
    def needs(self) -> Needs:
        if self.intervals is not None:
            last = max((last for _, last in self.intervals), default=TRACKED)
            return Needs(last, damaged=True, horizon="if lost", new_id=True)
        if self.batch is None:
            return Needs(None, self.max_messages, damaged=True, horizon="if lost", new_id=True)
        # The stream has just looked, and what is published since comes with its next batch.
        return Needs(None, 0, damaged=True, horizon="if lost", apps=self.batch.apps)

    def apply(self, view: View) -> Change[Grant]:
        request, txn, notes = self._request(view), None, list[Mapping[str, Any]]()
        if self.batch is not None:
            self.batch.check_fence(view, highest=2 * self.batch.number)
        ledger, acks = self._with_acks(view)
        notes += [acks] if acks else []
        kept, lost = without_lost(view, ledger, self.fail_on_data_loss)
        notes += [{"operation": "data_loss"}] if kept is not ledger else []
        search = _find_readable(view, kept, request)
        grant = replace(
            search.grant,
            lease_id=request.lease_id,
            expires_at=request.expires_at,
            acked=acks.get("messages", 0),
            sink_key=view.settings.sink_key,
        )
        if search.dead and not view.fresh:
            return Change(None, grant)  # a trim may have dropped them
        if self.batch is None and view.damage is not None and not (grant.ranges or grant.skipped):
            raise view.damage
        notes += [search.note()] if search.dead else []
        notes += _skip_notes(grant)
        if grant.ranges:
            notes.append(_lease_note(request, grant))
            txn = None if self.batch is None else self.batch.txn(1)
        note = notes[0] if len(notes) == 1 else join_notes(notes)
        return Change(search.ledger if notes else None, grant, note, txn, search.unchecked, lost)

    def preview(self, view: View) -> tuple[Ledger, Grant]:
        """Return the ledger before such a lease, and what it would get if all can be read."""
        ledger, _ = self._with_acks(view)
        _, grant = acquire(ledger, view.log, view.now, view.settings, self._request(view))
        return ledger, grant

    def _with_acks(self, view: View) -> tuple[Ledger, Mapping[str, Any]]:
        """Expire leases. Ack what Spark has committed, and return the note about that."""
        if self.batch is None:
            return expire_leases(view.ledger, view.now, view.settings), {}
        return self.batch.ack_earlier(view)

    def _request(self, view: View) -> AcquireRequest:
        timeout = self.timeout or view.settings.visibility_timeout // MICROSECOND
        return AcquireRequest(
            # A new id each time, because a failed attempt may have landed.
            view.new_id if self.batch is None else self.batch.lease_id,
            self.worker_id,
            self.max_messages,
            view.now + min(timeout, self.max_timeout or timeout),
            self.max_bytes,
            reserved_attempts=0 if self.batch is None else RESERVED_ATTEMPTS,
            max_sequence=self.max_sequence,
            due_by=self.due_by,
            sink_write=next_write(view.ledger, view.now) if view.settings.sink else None,
            intervals=self.intervals,
            matches=view.files.matches,
        )


@dataclass(frozen=True, slots=True)
class SkipFiltered(Command[Grant]):
    """Skip what a lease would skip, if it would get nothing before it.

    The grant has the messages that the lease would get, and is never leased.
    """

    lease: Acquire

    name = "filter"
    priority = Priority.LEASE
    of_worker = True

    @property
    def needs(self) -> Needs:
        return self.lease.needs

    def apply(self, view: View) -> Change[Grant]:
        ledger = expire_leases(view.ledger, view.now, view.settings)
        search = _find_readable(view, ledger, self.lease._request(view))
        if search.grant.ranges or search.dead or not search.grant.skipped:
            return Change(None, search.grant, unchecked=search.unchecked)
        return Change(search.ledger, search.grant, join_notes(_skip_notes(search.grant)))


_SKIPS: Final = {FILTERED: SkipFiltered.name, REPLACED: "replace", OTHER_GROUP: "skip"}


def _skip_notes(grant: Grant) -> list[dict[str, Any]]:
    return [{"operation": _SKIPS[event], "messages": n} for event, n in grant.skipped.items()]


def _lease_note(request: AcquireRequest, grant: Grant) -> dict[str, Any]:
    return {
        "operation": "lease",
        "lease_id": request.lease_id,
        "worker_id": worker_label(request.worker_id),
        "messages": sum(r.message_count for r in grant.ranges),
        "ranges": format_intervals([(r.first, r.last) for r in grant.ranges]),
    }


@dataclass(slots=True)
class _Search:
    ledger: Ledger  # the next one
    grant: Grant = _NOTHING
    unchecked: tuple[DataFile, ...] = ()
    rejected: tuple[Interval, ...] = ()  # dead because their file is damaged, by file
    dead: int = 0  # number of rejected messages

    def note(self) -> dict[str, Any]:
        ranges = format_intervals(self.rejected)
        return {"operation": "reject", "messages": self.dead, "ranges": f"reject {ranges}"}


def _find_readable(view: View, ledger: Ledger, request: AcquireRequest) -> _Search:
    """Lease messages of files without a known problem, and reject those of damaged files."""
    search, files, index = _Search(ledger), view.files, view.log
    later, out_of_reach, error = ledger, 0, None  # only later has postponements
    while True:
        after, grant = acquire(later, index, view.now, view.settings, request)
        unsure = files.unsure(index, grant.ranges)
        bad = [file for file in unsure if files.has_problem(file.path)]
        if not bad and (grant.ranges or (grant.skipped and later is search.ledger)):
            search.ledger, search.unchecked = after, tuple(unsure)
            filtered = grant.skipped.get(FILTERED, 0)
            if filtered and unsure and filtered >= grant.message_count:
                search.unchecked += tuple(_files_ahead(view, ledger, grant))
            # More may match after the messages that were skipped.
            search.grant = grant if grant.ranges else replace(grant, unfinished=True)
            return search
        unfinished = any(file.path in files.unfinished for file in bad)
        if unfinished or not bad or out_of_reach >= MAX_OUT_OF_REACH:
            search.grant = replace(grant, ranges=(), skipped={}, error=error, unfinished=unfinished)
            return search
        for file in bad:
            interval = (file.first, file.last)
            if (reason := files.damaged.get(file.path)) is None:
                out_of_reach, error = out_of_reach + 1, error or files.out_of_reach[file.path]
                later = postpone_due(view, later, interval, view.now + POSTPONE)
                continue
            same = later is search.ledger
            search.ledger, dead = reject_unreadable(view, search.ledger, interval, reason)
            later = search.ledger if same else reject_unreadable(view, later, interval, reason)[0]
            search.rejected += (interval,)
            search.dead += dead


def _files_ahead(view: View, before: Ledger, grant: Grant) -> Iterator[DataFile]:
    """Yield files to check now, as many as the filter has passed, because few messages match."""
    index, last = view.log, grant.ranges[-1].last
    passed = sum(1 for _ in islice(index.paths_in(before.end_sequence + 1, last), MAX_AHEAD))
    for path, first in islice(index.paths_in(last + 1, index.last_sequence), passed):
        if not (view.files.knows(path) or view.files.has_problem(path)):
            yield index.file_at(first)


def reject_unreadable(
    view: View, ledger: Ledger, interval: Interval, error: str
) -> tuple[Ledger, int]:
    """Make a damaged file's due messages dead, without a delivery, and count them."""

    def dead(r: Range) -> Range:
        return rejected(r, view.settings, UNREADABLE, error)

    return _replace_due(view, ledger, interval, dead, event="rejected")


def postpone_due(view: View, ledger: Ledger, interval: Interval, until: int) -> Ledger:
    """Let the due messages of a file wait until a time, with their counts and claims."""

    def later(r: Range) -> Range:
        return r._replace(state=AVAILABLE, available_at=until)

    return _replace_due(view, ledger, interval, later)[0]


def _replace_due(
    view: View,
    ledger: Ledger,
    interval: Interval,
    become: Callable[[Range], Range],
    *,
    event: str = "",
) -> tuple[Ledger, int]:
    """Replace the due messages of an interval, and count them."""
    editor, now, total = LedgerEditor(ledger), view.now, 0
    for piece in editor.cut([interval], view.log, (AVAILABLE, UNREAD)):
        if (piece.available_at or 0) > now:
            editor.add(piece, piece)
            continue
        for when, part in split_by_time(piece, view.log, now, now):
            if when == DUE:
                editor.add(become(part), part, event)
                total += part.message_count
            else:
                add_scheduled(editor, part, piece, view.settings)
    return (editor.build(), total) if total else (ledger, 0)


def acquire(
    ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings, request: AcquireRequest
) -> tuple[Ledger, Grant]:
    """Return the next ledger and the lease's messages, or `ledger` itself without a grant."""
    breaker = ledger.head.breaker
    if why := breaker.blocked_because(rules, now, _is_leased(ledger, breaker.trial)):
        return ledger, Grant((), why, blocked_for_now=True)
    trials = breaker.is_open(rules)
    held, max_bytes, rates = 0, request.max_bytes, None
    if (most := rules.max_in_flight_bytes) is not None:
        held = _count_bytes(ledger.ranges_at(ledger.find((LEASED,))), index)
        most = max(1, most - held)
        max_bytes = min(most, max_bytes or most)
    budget = Budget(index, request.max_messages, max_bytes)
    if rules.rate_limit is not None or rules.byte_rate_limit is not None:
        rates = RateLimits.of(ledger.head, rules, now)
        budget.messages, budget.bytes = rates.limit(request.max_messages, max_bytes)
    limited = budget.messages < 1  # by the rate
    if trials:
        budget.messages = min(1, budget.messages)
    if rules.max_in_flight is not None:
        in_flight = ledger.count((LEASED,))
        budget.messages = min(budget.messages, rules.max_in_flight - in_flight)
    after, grant = _select(ledger, index, now, rules, request, budget=budget, trials=trials)
    if not grant.ranges and not (limited and limit_in(grant.blocked_because) == MAX_IN_FLIGHT):
        return after, grant
    size = _count_bytes(grant.ranges, index) if held or (rates and rates.bytes) else 0
    if rates is not None:
        asked, taken = request.max_messages, grant.message_count
        until = rates.wait_until(asked, max_bytes, taken, size, cut=budget.out_of_bytes)
        if until is not None:
            why = rates.why(until)
            return ledger, Grant((), why, blocked_for_now=True, wait_until=until)
        after = after.replaced(rates.after(after.head, taken, size), after.events)
    if held and most is not None and size > most:  # a larger message goes alone
        return ledger, Grant((), MAX_IN_FLIGHT_BYTES, blocked_for_now=True)
    return after, grant


def _count_bytes(ranges: Iterable[Range], index: MessageIndex) -> int:
    return sum(index.size(r.first, r.last) for r in ranges)


def _select(
    ledger: Ledger,
    index: MessageIndex,
    now: int,
    rules: GroupSettings,
    request: AcquireRequest,
    *,
    budget: Budget,
    trials: bool,
) -> tuple[Ledger, Grant]:
    """Lease the messages whose turn it is, as far as the budget allows."""
    blocked = ""
    if not is_ordered(index, rules):
        # In an ordered group a blocked message stops only its lane.
        request, blocked = _limit_to_unblocked(ledger, request)
    cutoff = now if request.due_by is None else min(now, request.due_by)
    split = split_due(ledger, index, now, cutoff, rules)
    selector = LaneSelector(split, index, now, rules, request, budget=budget, cutoff=cutoff)
    if budget.messages < 1:
        if not selector.has_due():
            return ledger, selector.nothing(blocked)
        return ledger, Grant((), MAX_IN_FLIGHT, blocked_for_now=True)
    selected = None
    if trials and request.intervals is None:
        # Messages that have failed may be bad by themselves, and would keep the breaker open.
        selected = selector.acquire(undelivered_first=True)
    if selected is None and (selected := selector.acquire()) is None:
        return ledger, selector.nothing(blocked)
    after, grant = selected
    if trials and grant.ranges:
        on_trial = after.head.breaker.with_trial(grant.ranges[0].first, now, rules)
        after = after.replaced(replace(after.head, breaker=on_trial), after.events)
    return after, grant


def _is_leased(ledger: Ledger, message: int | None) -> bool:
    if message is None:
        return False
    return any(ledger.state_at(row) == LEASED for row in ledger.overlapping(message, message))


def _limit_to_unblocked(ledger: Ledger, request: AcquireRequest) -> tuple[AcquireRequest, str]:
    """Return the request up to the first blocked message, and why it ends there."""
    blocked = ledger.find((BLOCKED,))
    if not blocked:
        return request, ""
    first = ledger.range_at(blocked[0])
    before = first.first - 1
    max_sequence = before if request.max_sequence is None else min(before, request.max_sequence)
    return replace(request, max_sequence=max_sequence), blocked_by(first)
