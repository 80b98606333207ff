"""Settle and extend leases or some of their messages, and change messages without a lease."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import CorruptLog, InvalidOption, LeaseLost, MessagesHeld
from spark_mq.ledger.intervals import Interval, from_sequences, subtract
from spark_mq.ledger.interventions import Intervene, Intervention
from spark_mq.ledger.settle import Extend, SettleOutcome, SettlePart
from spark_mq.message import MessageSelector, is_utf8
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.history import find_past_lease
from spark_mq.parquet.reader import MessageReader
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.records import Record
from spark_mq.util.show import show_some
from spark_mq.util.user import act_as
from spark_mq.util.validation import (
    plain_number,
    plain_values,
    short_repr,
    validate_error,
    validate_lease_id,
)

_MAX_NAMED: Final = 400  # characters of lease ids in an error


@dataclass(frozen=True, slots=True)
class SettleResult(Record):
    """How many messages a settle settled, and how many were settled before."""

    settled: int
    already_settled: int = 0


class HeldLease:
    """The messages of a lease that its holder has not settled yet. Thread-safe.

    `on_settle` is told of each settle by the holder, with its outcome.
    """

    def __init__(self, lease_id: str, intervals: Iterable[Interval], expires_at: int) -> None:
        self.lease_id = lease_id
        self.expires_at = expires_at
        self.ends_at: int | None = None  # when the extensions stop, unless a later deadline counts
        self.granted = list(intervals)
        self.on_settle: Callable[[SettlePart, SettleOutcome], None] | None = None
        self._unsettled = list(self.granted)
        self._lock = threading.Lock()

    def unsettled(self) -> list[Interval]:
        with self._lock:
            return list(self._unsettled)

    def mark_settled(self, intervals: Iterable[Interval]) -> None:
        with self._lock:
            self._unsettled = subtract(self._unsettled, intervals)

    def note_settle(self, part: SettlePart, outcome: SettleOutcome) -> None:
        self.mark_settled([*outcome.ranges, *outcome.returned])
        if self.on_settle is not None:
            self.on_settle(part, outcome)

    def move_deadline(self, deadline: int) -> None:
        with self._lock:
            self.expires_at = max(self.expires_at, deadline)

    def has_ended(self, now: int) -> bool:
        """Return whether its longest duration is over, and it has expired."""
        return self.ends_at is not None and now > max(self.ends_at, self.expires_at)


class _Holder(Protocol):
    """A lease for people, which has the messages that it holds."""

    _held: HeldLease


_OneLease = str | HeldLease | _Holder
# One lease or several, or some sequences of each. None stands for all that it holds.
HeldSelector = _OneLease | Iterable[_OneLease] | Mapping[Any, MessageSelector | None]


@dataclass(frozen=True, slots=True)
class _Selection:
    """A lease and some of its intervals, or None for all of them."""

    lease_id: str
    intervals: list[Interval] | None
    held: HeldLease | None = None

    def part(self, verb: str, delay: int | None, error: str | None, jitter: float) -> SettlePart:
        intervals, whole = self.intervals, False
        if intervals is None and self.held is not None:
            intervals, whole = self.held.unsettled(), True
        return SettlePart(
            verb, self.lease_id, intervals, whole=whole, delay=delay, error=error, jitter=jitter
        )


def settle(
    ledger: GroupLedger,
    leases: HeldSelector,
    verb: str,
    *,
    sequences: MessageSelector | None = None,
    delay: int | None = None,
    error: str | None = None,
) -> SettleResult:
    """Settle the selected messages that a lease still holds, in one commit.

    Raise LeaseLost for messages that are not held, after the rest is settled.
    """
    now, jitter = ledger.now(), random.random()
    asked, ended = list[_Asked](), list[tuple[str, SettleOutcome]]()
    for selection in _selections(leases, sequences):
        part = selection.part(verb, delay, error, jitter)
        if lost := _lost_by_end(selection, part, now):
            ended.append((selection.lease_id, SettleOutcome(lost=lost)))
        elif part.intervals != []:
            asked.append((selection, part))
    if not asked:
        ledger.require_group()
    outcomes = ledger.settle([part for _, part in asked]) if asked else []
    asked, outcomes = _without_repeats(ledger, asked, outcomes)
    for (selection, part), outcome in zip(asked, outcomes, strict=True):
        if selection.held is not None:
            selection.held.note_settle(part, outcome)
    lease_ids = [selection.lease_id for selection, _ in asked] + [name for name, _ in ended]
    outcomes += [outcome for _, outcome in ended]
    return _result(lease_ids, outcomes)


_Asked = tuple[_Selection, SettlePart]


def _lost_by_end(selection: _Selection, part: SettlePart, now: int) -> list[tuple[int, int, str]]:
    """Return the unsettled messages that a lease lost when its longest duration was over."""
    if selection.held is None or not selection.held.has_ended(now):
        return []
    settled = subtract(selection.held.granted, selection.held.unsettled())
    lost = subtract(part.intervals or (), settled)
    return [(first, last, "since its lease reached max_lease_duration") for first, last in lost]


def _without_repeats(
    ledger: GroupLedger, asked: Sequence[_Asked], outcomes: Sequence[SettleOutcome]
) -> tuple[list[_Asked], list[SettleOutcome]]:
    """Leave out leases that have settled all of their messages before, by their object or id."""
    kept: list[_Asked] = []
    kept_outcomes: list[SettleOutcome] = []
    for (selection, part), outcome in zip(asked, outcomes, strict=True):
        if part.whole and not (outcome.settled or outcome.already_settled or outcome.lost):
            continue  # only gaps between commits were left of its intervals
        seeks_past = selection.held is None and selection.intervals is None and not outcome.settled
        if seeks_past and (past := find_past_lease(ledger, selection.lease_id)) is not None:
            if not (unsettled := subtract(*past)):
                continue  # it has settled all of its messages
            part = replace(part, intervals=unsettled, whole=True)
            outcome = ledger.settle([part])[0]
        kept.append((selection, part))
        kept_outcomes.append(outcome)
    return kept, kept_outcomes


def extend(
    ledger: GroupLedger,
    leases: HeldSelector,
    timeout: int | None,
    *,
    sequences: MessageSelector | None = None,
) -> tuple[SettleResult, int]:
    """Extend leases, or selected messages, in one commit. Return the new deadline, too.

    `timeout` is in microseconds from now. None takes the group's visibility timeout.
    """
    selected = _selections(leases, sequences)
    targets = [(s.lease_id, s.intervals) for s in selected if s.intervals != []]
    done = ledger.run(Extend(tuple(targets), timeout))
    return _result([name for name, _ in targets], done.outcomes), done.deadline


def _selections(leases: HeldSelector, sequences: MessageSelector | None) -> list[_Selection]:
    """Return the selected messages by lease. Raise InvalidOption."""
    if isinstance(leases, Mapping):
        named: list[tuple[Any, MessageSelector | None]] = list(leases.items())
    elif isinstance(leases, str | HeldLease) or not isinstance(leases, Iterable):
        named = [(leases, sequences)]
    else:
        named = [(lease, sequences) for lease in leases]
    if len(named) > 1 and sequences is not None:
        raise InvalidOption(
            "sequences name messages of one lease: give {lease_id: sequences} for several leases",
            option="sequences",
            value=sequences,
        )
    return [_select(lease, some) for lease, some in named]


def _select(lease: Any, sequences: MessageSelector | None) -> _Selection:
    intervals = None if sequences is None else from_sequences(sequences)
    held = lease if isinstance(lease, HeldLease) else getattr(lease, "_held", None)
    if held is not None:
        return _Selection(held.lease_id, intervals, held)
    return _Selection(validate_lease_id(lease), intervals)


def _result(lease_ids: Sequence[str], outcomes: Sequence[SettleOutcome]) -> SettleResult:
    """Sum up settles. Raise LeaseLost also for a lease that held nothing at all."""
    result = summarize(lease_ids, outcomes)
    empty = [
        lease_id
        for lease_id, outcome in zip(lease_ids, outcomes, strict=True)
        if not (outcome.settled or outcome.already_settled)
    ]
    if empty:
        named = ", ".join(empty)
        raise LeaseLost(
            f"lease {_brief(named)} holds no messages: it has ended, or it never existed",
            lease_id=named, lost=[], result=result,
        )  # fmt: skip
    return result


def summarize(lease_ids: Sequence[str], outcomes: Sequence[SettleOutcome]) -> SettleResult:
    """Sum up outcomes. Raise LeaseLost if messages were not held."""
    result = SettleResult(
        sum(outcome.settled for outcome in outcomes),
        sum(outcome.already_settled for outcome in outcomes),
    )
    lost = [part for outcome in outcomes for part in outcome.lost]
    if not lost:
        return result
    what = show_some([f"{first}..{last} {why}" for first, last, why in lost], 5, "; ")
    losers = [
        lease_id for lease_id, outcome in zip(lease_ids, outcomes, strict=True) if outcome.lost
    ]
    named = ", ".join(dict.fromkeys(losers))
    raise LeaseLost(
        f"lease {_brief(named)} no longer holds these messages: {what} "
        f"({result.settled} settled)",
        lease_id=named, lost=lost, result=result,
    )  # fmt: skip


def _brief(text: str) -> str:
    return text if len(text) <= _MAX_NAMED else f"{text[:_MAX_NAMED]}..."


# -- messages without a lease


def _find(ledger: GroupLedger, given: Mapping[str, Any]) -> list[Interval]:
    """Return the messages that one of sequences, message_id and key names. Raise InvalidOption."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise InvalidOption(
            f"{' and '.join(named) or 'no message'} given: name messages by one of sequences, "
            "message_id (--message-id) and key (--key)",
            option=named[0] if named else "sequences",
            value=given[named[0]] if named else None,
        )
    (name,) = named
    if name != "sequences":
        return _search(ledger, name, given[name])
    number = plain_number(given[name])
    several = [number] if isinstance(number, int | str | bytes) else given[name]
    return _checked(ledger, from_sequences(several))


def _checked(ledger: GroupLedger, intervals: list[Interval]) -> list[Interval]:
    """Return the intervals. Raise InvalidOption if one of them has no message at all."""
    index = ledger.messages.index(max((last for _, last in intervals), default=0))
    for first, last in intervals:
        if not index.count(first, last) and first > index.forgotten_to:
            raise InvalidOption(
                f"sequences={first}: no message of {ledger.queue_path} has it; the last one "
                f"published is {index.last_sequence}",
                option="sequences",
                value=first,
            )
    return intervals


def _search(ledger: GroupLedger, column: str, wanted: object) -> list[Interval]:
    """Return the messages with some ids or keys, those after the start sequence if any."""
    values = [wanted] if isinstance(wanted, str) else plain_values(wanted)
    if not isinstance(values, Sequence) or not all(isinstance(value, str) for value in values):
        raise InvalidOption(
            f"{column}={short_repr(wanted)} is not text: give a text, or a list of texts",
            option=column,
            value=wanted,
        )
    low, latest = ledger.queue.horizon() + 1, ledger.messages.index().last_sequence
    start = max(ledger.current().head.start_sequence + 1, low)
    matching = _sequences_of(ledger.messages, column, values, (start, latest))
    # What is settled already stays as it is, as a change by sequence leaves it.
    matching = matching or _sequences_of(ledger.messages, column, values, (low, start - 1))
    if not matching:
        raise InvalidOption(
            f"{column}={short_repr(wanted)}: {ledger.queue_path} has no message with it",
            option=column,
            value=wanted,
        )
    return from_sequences(matching)


def _sequences_of(
    messages: MessageTable, column: str, wanted: Sequence[str], within: Interval
) -> list[int]:
    """Return the messages whose `column` (message_id or key) has one of some values."""
    # No other text can be in the table.
    values = pa.array([text for text in wanted if is_utf8(text)], pa.string())
    reader = MessageReader(messages.files, [column])
    sequences = list[int]()
    for piece in messages.index(within[1]).slices(*within):
        try:
            rows = reader.read(piece)[column]
        except CorruptLog:
            continue  # a damaged file has no values
        hits = pc.indices_nonzero(pc.is_in(rows, value_set=values))
        sequences += [piece.first + row for row in hits.to_pylist()]
    return sequences


def change_messages(
    ledger: GroupLedger,
    how: str,
    named: Mapping[str, Any],
    *,
    force: bool,
    reason: str | None = None,
    by: str | None = None,
) -> int:
    """Change messages, and count them.

    Raise GroupNotFound, MessagesHeld unless `force`, or InvalidOption for expired ones.
    """
    intervals, why = _find(ledger, named), validate_error(reason, "reason")
    if not intervals:
        return 0
    command = Intervene(how, intervals, why, force)
    done = act_as(by or None, lambda: ledger.run(command))
    if done.held:
        raise _held(ledger.name, how, done)
    if done.expired:
        raise _expired(ledger.name, how, done)
    return done.changed


def _held(group: str, how: str, done: Intervention) -> MessagesHeld:
    each = [f"{first}..{last}: {who}" for first, last, who in done.held]
    return MessagesHeld(
        f"{how} in group {group!r} changed nothing: {show_some(each, 5, '; ')}. Wait, or use "
        "force=True (--force) to take messages from their leases",
        group=group,
        held=list(done.held),
    )


def _expired(group: str, how: str, done: Intervention) -> InvalidOption:
    shown = show_some([f"{first}..{last}" for first, last in done.expired], 5)
    return InvalidOption(
        f"{how} in group {group!r} changed nothing: the expires_at of messages {shown} is over, so "
        "no worker could lease them. Leave them out. For dead ones, redrive their dead letters "
        "after a sweep, because these do not expire",
        option="sequences",
        value=list(done.expired),
    )
