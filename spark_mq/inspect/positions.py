"""Label a group's messages with their states, by sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from spark_mq.ledger.admin import unsettled_ranges
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.message_range import range_between
from spark_mq.ledger.ranges import AVAILABLE, SETTLED, UNREAD, Ledger, Range
from spark_mq.ledger.schedule import split_by_time
from spark_mq.util.validation import validate_choice

__all__ = ["STATE_NAMES", "LabelledRange", "label_ranges", "validate_state"]

STATE_NAMES: Final = (
    "ready",
    "unread",
    "delayed",
    "leased",
    "dead",
    "blocked",
    "transferring",
    "settled",
)
"""The states that a look at messages knows. "ready" contains "unread"."""


@dataclass(frozen=True, slots=True)
class LabelledRange:
    state: str
    range: Range
    outcome: str | None = None  # how it has ended, if no commit has settled it yet


def validate_state(state: str | None) -> str | None:
    return None if state is None else validate_choice("state", state, STATE_NAMES)


def label_ranges(
    ledger: Ledger, index: MessageIndex, now: int, state: str | None = None, first: int = 0
) -> Iterator[LabelledRange]:
    """Yield a group's ranges in order, each with its state. Its leases are expired already."""
    for r in _ranges(ledger, index, first):
        for name, piece in _split(r, index, now):
            if _matches(name, piece, state):
                expired = name == SETTLED and r.state != SETTLED
                yield LabelledRange(name, piece, "expired" if expired else None)


def _ranges(ledger: Ledger, index: MessageIndex, first: int) -> Iterator[Range]:
    if settled := range_between(index, first, ledger.head.ack_floor, SETTLED):
        yield settled
    for r in unsettled_ranges(ledger, index, index.last_sequence, but=()):
        piece = r.slice(max(first, r.first), r.last, index)
        if r.last >= first and piece.message_count:
            yield piece


def _split(r: Range, index: MessageIndex, now: int) -> Iterator[tuple[str, Range]]:
    """Split an available or unread range by time, and name the state of each piece."""
    if r.state == AVAILABLE and (r.available_at or 0) > now:
        yield "delayed", r
    elif r.state in (AVAILABLE, UNREAD):
        found = split_by_time(r, index, now, now)
        named = [("ready", piece) for piece in found.due]
        named += [("delayed", piece) for piece in found.later]
        named += [("settled", piece) for piece in found.expired]
        yield from sorted(named, key=lambda one: one[1].first)
    else:
        yield str(r.state), r


def _matches(name: str, piece: Range, state: str | None) -> bool:
    if state == "unread":
        return name == "ready" and piece.state == UNREAD
    return state in (None, name)
