"""Turn a handler's result into parts of a settle, for the worker loop and foreachBatch."""

from __future__ import annotations

import logging
import operator
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from spark_mq.errors import InvalidHandlerResult, InvalidOption
from spark_mq.ledger.intervals import Interval, from_sequences, normalise, subtract
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, DEAD, LEASED, SETTLED, TRANSFERRING
from spark_mq.ledger.settle import ACK, NACK, REJECT, SettleOutcome, SettlePart
from spark_mq.operations.settle import SettleResult
from spark_mq.util.clock import to_datetime
from spark_mq.util.failures import describe_error, safe_text
from spark_mq.util.show import show_count, show_number, show_time
from spark_mq.util.validation import short_repr, validate_choice, validate_duration

_log = logging.getLogger(__name__)

OUTCOMES: Final = (ACK, NACK, REJECT)
COLUMNS: Final = ("sequence", "outcome", "delay", "error")
ON_ERROR: Final = ("nack", "reject", "ack", "raise")
WHEN: Final = ("on_success", "on_receive", "manual")
_PAST: Final = {ACK: "acked despite the error", NACK: "nacked", REJECT: "rejected"}
_STATES: Final = {
    AVAILABLE: "due again",
    DEAD: "dead",
    TRANSFERRING: "dead",
    BLOCKED: "blocking the group",
    SETTLED: "dropped",
    LEASED: "leased again already",
}
_DELIVERED_AGAIN: Final = {AVAILABLE, LEASED}


@dataclass(frozen=True, slots=True)
class HandlerPolicy:
    """What follows a handler: ``on_error`` and ``ack`` of :meth:`spark_mq.ConsumerGroup.work`."""

    on_error: str = "nack"
    ack: str = "on_success"

    @classmethod
    def validated(cls, on_error: object = "nack", ack: object = "on_success") -> HandlerPolicy:
        return cls(
            validate_choice("on_error", on_error, ON_ERROR), validate_choice("ack", ack, WHEN)
        )

    @property
    def failure_verb(self) -> str:
        return self.on_error if self.on_error in (ACK, REJECT) else NACK

    def verb_for_rest(self, failed: bool) -> str | None:
        """Return the verb for messages that the handler did not settle, or None to leave them."""
        if failed:
            return None if self.ack == "on_receive" else self.failure_verb
        return ACK if self.ack == "on_success" else None


@dataclass(frozen=True, slots=True)
class MessageVerdict:
    """The verdict for messages ``first..last`` of a lease. None as ``outcome`` is a failure."""

    lease_id: str
    first: int
    last: int
    outcome: str | None = None
    delay: int | None = None
    error: str | None = None


def verdict(
    lease_id: str,
    interval: Interval,
    *,
    outcome: Any = None,
    delay: Any = None,
    error: Any = None,
) -> MessageVerdict:
    if outcome is not None and outcome not in OUTCOMES:
        raise InvalidHandlerResult(
            f"outcome={short_repr(outcome)} is not valid: use ack, nack or reject, or null",
            option="outcome",
            value=outcome,
        )
    try:
        pause = None if delay is None else validate_duration("delay", delay, zero=True)
    except InvalidOption as wrong:
        raise InvalidHandlerResult(str(wrong), option="delay", value=delay) from wrong
    text = None if error is None else safe_text(error)
    return MessageVerdict(lease_id, *interval, outcome, pause, text)


def parse_result(returned: Any, lease_id: str, held: Iterable[Interval]) -> list[MessageVerdict]:
    """Return the verdicts of a Python handler on its lease. Raises InvalidHandlerResult."""
    if returned is None or is_settle_result(returned):
        return []
    rows = _rows(returned)
    try:
        named = from_sequences(row["sequence"] for row in rows)
    except InvalidOption as wrong:
        value = wrong.data["value"]
        raise InvalidHandlerResult(str(wrong), option="sequence", value=value) from wrong
    if len(rows) > sum(last - first + 1 for first, last in named):
        _refuse_contradictions(rows)
    if unknown := subtract(named, held):
        first = unknown[0][0]
        raise InvalidHandlerResult(
            f"message {first} does not belong to this lease", option="sequence", value=first
        )
    return [
        verdict(lease_id, interval, **{name: row.get(name) for name in COLUMNS[1:]})
        for row in rows
        for interval in from_sequences([row["sequence"]])
    ]  # fmt: skip


def _refuse_contradictions(rows: Iterable[Mapping[str, Any]]) -> None:
    known: dict[int, Mapping[str, Any]] = {}
    for row in rows:
        sequence = operator.index(row["sequence"])
        if any(known.setdefault(sequence, row).get(name) != row.get(name) for name in COLUMNS[1:]):
            raise InvalidHandlerResult(
                f"message {sequence} has two rows that differ: give one for each message",
                option="sequence",
                value=sequence,
            )


def is_settle_result(returned: Any) -> bool:
    several = returned if isinstance(returned, list | tuple) else [returned]
    return bool(several) and all(isinstance(result, SettleResult) for result in several)


def _rows(returned: Any) -> list[Mapping[str, Any]]:
    rows = returned.to_pylist() if isinstance(returned, pa.Table) else returned
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        appended = " Do not return what lease.append returns." if isinstance(returned, bool) else ""
        raise InvalidHandlerResult(
            f"the handler returned {type(returned).__name__}: return None, or a pyarrow.Table or "
            f"a list of dicts with {', '.join(COLUMNS)}.{appended}",
            option="handler",
            value=type(returned).__name__,
        )
    for row in rows:
        if "sequence" not in row or not set(row) <= set(COLUMNS):
            raise InvalidHandlerResult(
                f"the handler returned a row with {', '.join(map(safe_text, row))}: give sequence, "
                f"and only these other columns: {', '.join(COLUMNS[1:])}",
                option="handler",
                value=list(row),
            )
    return rows


def parts_for(
    result: Sequence[MessageVerdict] | Exception,
    policy: HandlerPolicy,
    held: Mapping[str, list[Interval] | None],
) -> list[SettlePart]:
    """Return the parts that settle leases, one for equal verdicts, after a result or error."""
    error, verdicts = None, result
    if isinstance(result, Exception):
        error, verdicts = describe_error(result), ()
    assert not isinstance(verdicts, Exception)
    parts = _named(verdicts, policy.failure_verb)
    verb = policy.verb_for_rest(failed=error is not None)
    if verb is None:
        return parts
    named = {
        lease_id: [interval for part in some for interval in part.intervals or ()]
        for lease_id, some in groupby(parts, key=lambda part: part.lease_id)
    }
    for lease_id, intervals in held.items():
        rest = None if intervals is None else subtract(intervals, named.get(lease_id, []))
        if rest != []:
            jitter, whole = random.random(), rest is not None
            parts.append(
                SettlePart(
                    verb,
                    lease_id,
                    rest,
                    whole=whole,
                    error=error,
                    jitter=jitter,
                    handler_failed=error is not None,
                )
            )
    return parts


def _named(verdicts: Iterable[MessageVerdict], failure_verb: str) -> list[SettlePart]:
    def same(verdict: MessageVerdict) -> tuple[str, str, int, str]:
        delay = -1 if verdict.delay is None else verdict.delay
        return verdict.lease_id, verdict.outcome or failure_verb, delay, verdict.error or ""

    parts, jitter = [], random.random()
    for (lease_id, verb, delay, error), some in groupby(sorted(verdicts, key=same), key=same):
        intervals = normalise((verdict.first, verdict.last) for verdict in some)
        pause = None if delay < 0 else delay
        parts.append(
            SettlePart(verb, lease_id, intervals, delay=pause, error=error or None, jitter=jitter)
        )
    return parts


def describe_held(deliveries: Mapping[int, int], max_delivery_attempts: int | None) -> str:
    """Describe for a log the messages in a lease, from their numbers by delivery count."""
    if not deliveries:
        return "no unsettled message"
    low, high = min(deliveries), max(deliveries)
    delivery = str(low) if low == high else f"{low} to {high}"
    limit = f" of {max_delivery_attempts}" if max_delivery_attempts else ""
    messages = show_count(sum(deliveries.values()), "unsettled message")
    return f"{messages} (delivery {delivery}{limit})"


def log_outcomes(group: str, now: int, done: Iterable[tuple[SettlePart, SettleOutcome]]) -> None:
    """Log what became of failed messages, as a warning only if some are not delivered again."""
    for part, outcome in done:
        failed = part.handler_failed or part.verb in (NACK, REJECT)
        if not outcome.settled or not failed:
            continue
        counts: dict[str, int] = {}
        for state, count in outcome.states.items():
            counts[_STATES[state]] = counts.get(_STATES[state], 0) + count
        when = _due(outcome.next_due_at, now)
        ends = ", ".join(
            f"{show_number(count)} {end}{when if end == _STATES[AVAILABLE] else ''}"
            for end, count in counts.items()
        )
        verb = _PAST[part.verb]
        level = logging.WARNING if outcome.states.keys() - _DELIVERED_AGAIN else logging.INFO
        _log.log(
            level, "group %s: %s %s: %s (lease %s)",
            group, show_count(outcome.settled, "message"), verb, ends, part.lease_id,
        )  # fmt: skip


def _due(at: int | None, now: int) -> str:
    if at is None:
        return ""
    return " at once" if at <= now else f" from {show_time(to_datetime(at))}"
