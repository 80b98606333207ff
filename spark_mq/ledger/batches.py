"""Find what of a message batch is unsettled, and count how its messages ended. All of it is pure.

The members of a batch are intervals. Between them lie the messages of others, and within them
sequences that no message has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_mq.ledger.intervals import Interval, intersect, subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import SETTLED, Ledger

__all__ = ["count_ends", "count_messages", "unsettled_members"]


def unsettled_members(
    ledger: Ledger, index: MessageIndex, members: Sequence[Interval]
) -> list[Interval]:
    """Return the members that a group has not settled, in any state."""
    start = ledger.head.start_sequence
    rest = subtract(members, [(0, start)] if start >= 0 else [])
    if rest:
        settled = ledger.ranges_at(ledger.find((SETTLED,)))
        rest = subtract(rest, [(r.first, r.last) for r in settled])
    return [interval for interval in rest if index.count(*interval)]


def count_messages(index: MessageIndex, members: Iterable[Interval]) -> int:
    return sum(index.count(*interval) for interval in members)


def count_ends(
    ends: Iterable[tuple[str, Interval]], index: MessageIndex, members: Sequence[Interval]
) -> dict[str, int]:
    """Count the members by outcome. Those without a known end are missing."""
    of_outcome: dict[str, list[Interval]] = {}
    for outcome, interval in ends:
        of_outcome.setdefault(outcome, []).append(interval)
    counts, left = dict[str, int](), list(members)
    for outcome, intervals in of_outcome.items():
        counts[outcome] = count_messages(index, intersect(left, intervals))
        left = subtract(left, intervals)  # each message counts once, also if it ended twice
    return counts
