"""Say which messages hold their dedup id, so that no other message with it is published."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence, Set
from typing import Final, NamedTuple

from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import Ledger
from spark_mq.ledger.settings import UNTIL_LEASED
from spark_mq.ledger.states import BLOCKED, DELAYED, LEASED, READY
from spark_mq.ledger.walk import Piece, walk

# A dead message, or one in transfer, is delivered again only if the owner wants that.
_UNFINISHED: Final = (READY, DELAYED, LEASED, BLOCKED)


class Held(NamedTuple):
    """Which of some messages hold their id."""

    up_to: int  # no message up to this sequence holds its id
    sequences: Set[int]


AskHeld = Callable[[Collection[int]], Held]
"""Looks at the ledgers of all groups, for some sequences."""


def held_ids(
    groups: Sequence[tuple[Ledger, MessageIndex]],
    sequences: Collection[int],
    *,
    horizon: int,
    now: int,
    until: str,
) -> Held:
    """Return which messages hold their id, by the ledgers of all groups.

    Without a group, all messages do that a trim has not dropped. Otherwise a message holds its id
    until the last group has settled it, or with UNTIL_LEASED until the first group has leased or
    settled it.
    """
    wanted = sorted(sequence for sequence in sequences if sequence > horizon)
    if not groups:
        return Held(horizon, set(wanted))
    starts = [ledger.head.start_sequence for ledger, _ in groups]
    held = [_held_in(ledger, index, wanted, now, until) for ledger, index in groups]
    if until == UNTIL_LEASED:
        return Held(max(horizon, *starts), set.intersection(*held))
    return Held(max(horizon, min(starts)), set.union(*held))


def _held_in(
    ledger: Ledger, index: MessageIndex, sequences: Sequence[int], now: int, until: str
) -> set[int]:
    """Return which sequences, which are sorted, hold their id as far as one group knows."""
    left = sequences[bisect_right(sequences, ledger.head.start_sequence) :]
    held, low = set(left), 0
    for piece in walk(ledger, index, now, left[0]) if left else ():
        low = bisect_left(left, piece.first, low)
        high = bisect_right(left, piece.last, low)
        if low < high and not _holds(piece, ledger, until):
            held.difference_update(left[low:high])
        if high == len(left):
            break
    return held


def _holds(piece: Piece, ledger: Ledger, until: str) -> bool:
    if piece.state not in _UNFINISHED:
        return False
    if until != UNTIL_LEASED:
        return True
    fresh = piece.row is None or not ledger.values_at("delivery_count", [piece.row])[0]
    return fresh and piece.state in (READY, DELAYED)
