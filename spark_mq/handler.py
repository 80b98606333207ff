"""What a handler says of single messages, as settles: the rows (sequence, outcome, delay, error) that it returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from spark_mq.errors import InvalidHandlerResult, InvalidOption
from spark_mq.ledger.intervals import Interval, from_sequences, normalise, subtract
from spark_mq.ledger.settle import ACK, NACK, REJECT, SettleCommand
from spark_mq.util.validation import check_duration

__all__ = ["OUTCOMES", "MessageVerdict", "settles_of", "verdict", "verdicts_of"]

OUTCOMES: Final = (ACK, NACK, REJECT)
COLUMNS: Final = ("sequence", "outcome", "delay", "error")


@dataclass(frozen=True, slots=True)
class MessageVerdict:
    """What is to become of messages ``first..last`` of a lease. ``outcome`` None: a failure. ``delay``: microseconds."""

    lease_id: str
    first: int
    last: int
    outcome: str | None = None
    delay: int | None = None
    error: str | None = None


def verdict(lease_id: str, interval: Interval, *, outcome: Any = None, delay: Any = None, error: Any = None) -> MessageVerdict:
    """A verdict on messages (first and last sequence) from what a handler gave. ``delay``: seconds, or "30s". Raises
    InvalidHandlerResult."""
    if outcome is not None and outcome not in OUTCOMES:
        raise InvalidHandlerResult(f"outcome={outcome!r} is not valid: use ack, nack or reject, or null", option="outcome", value=outcome)
    try:
        pause = None if delay is None else check_duration("delay", delay, zero=True)
    except InvalidOption as wrong:
        raise InvalidHandlerResult(str(wrong), option="delay", value=delay) from wrong
    return MessageVerdict(lease_id, *interval, outcome, pause, None if error is None else str(error))


def verdicts_of(returned: Any, lease_id: str, held: Iterable[Interval]) -> list[MessageVerdict]:
    """The verdicts of a Python handler: None, an Arrow table, or a list of dicts, with ``sequence`` and what else there is to say.

    ``held``: what the lease was granted. Raises InvalidHandlerResult for what is no such thing.
    """
    if returned is None:
        return []
    rows = returned.to_pylist() if isinstance(returned, pa.Table) else returned
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidHandlerResult(
            f"the handler returned {type(returned).__name__}: return None, or a pyarrow.Table or a list of dicts with {', '.join(COLUMNS)}",
            option="handler", value=type(returned).__name__,
        )  # fmt: skip
    for row in rows:
        if "sequence" not in row or not set(row) <= set(COLUMNS):
            raise InvalidHandlerResult(
                f"the handler returned a row with {', '.join(map(str, row))}: give sequence, and besides only {', '.join(COLUMNS[1:])}",
                option="handler", value=list(row),
            )  # fmt: skip
    try:
        named = from_sequences(row["sequence"] for row in rows)
    except InvalidOption as wrong:
        raise InvalidHandlerResult(str(wrong), option="sequence", value=wrong.data["value"]) from wrong
    if strange := subtract(named, held):
        raise InvalidHandlerResult(f"message {strange[0][0]} is none of this lease's", option="sequence", value=strange[0][0])
    return [
        verdict(lease_id, (row["sequence"], row["sequence"]), **{name: row.get(name) for name in COLUMNS if name != "sequence"})
        for row in rows
    ]


def settles_of(verdicts: Iterable[MessageVerdict], on_failure: str, jitter: float = 0.0) -> list[SettleCommand]:
    """One settle for all messages of a lease with the same outcome, delay and error. ``on_failure``: the verb where none is given."""

    def alike(one: MessageVerdict) -> tuple[str, str, int, str]:
        return one.lease_id, one.outcome or on_failure, -1 if one.delay is None else one.delay, one.error or ""

    settles = []
    for (lease_id, verb, delay, error), some in groupby(sorted(verdicts, key=alike), key=alike):
        intervals = normalise((one.first, one.last) for one in some)
        settles.append(SettleCommand(verb, lease_id, intervals, delay=None if delay < 0 else delay, error=error or None, jitter=jitter))
    return settles
