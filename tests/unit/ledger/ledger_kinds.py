"""Ranges of a few kinds, and ledgers of them."""

from __future__ import annotations

from itertools import groupby

from hypothesis import strategies as st

from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import AVAILABLE, DEAD, LEASED, SETTLED, Ledger, LedgerHeader, Range

FILES = [
    DataFile(0, 5, "a", 5, 0),
    DataFile(sequence(2, 0), 4, "b", 4, 0),
    DataFile(sequence(2, 4), 3, "c", 3, 0),
]
INDEX = MessageIndex(FILES, 2)
SEQS = [f.first + row for f in FILES for row in range(f.rows)]

_ONCE = {"first_leased_at": 1, "delivery_count": 1}
_WAITING = Range(0, 0, AVAILABLE, 1, available_at=5, failure_count=1, **_ONCE)
_HELD = Range(0, 0, LEASED, 1, worker_id="w", leased_at=1, expires_at=9, **_ONCE)
KINDS = [
    Range(0, 0, SETTLED, 1),
    _WAITING,
    _WAITING._replace(suspect=True, lease_id="a"),
    _HELD._replace(lease_id="a"),
    _HELD._replace(lease_id="b"),
    Range(0, 0, DEAD, 1, reason="rejected", error="é\n"),
]
"""What a message may be; two are leased, two waiting, and differ in little."""


def ranges_of(kinds, first=0) -> list[Range]:
    """The ranges of messages of some kinds, alike neighbours joined, by counting on fingers."""
    out = []
    for kind, run in groupby(enumerate(kinds, first), key=lambda pair: pair[1]):
        at = [number for number, _ in run]
        out.append(
            KINDS[kind]._replace(first=SEQS[at[0]], last=SEQS[at[-1]], message_count=len(at))
        )
    return out


def ledger_of(kinds) -> Ledger:
    """A ledger in which the messages, from the first, are of these kinds.

    Settled ones at the start are below the floor.
    """
    floor = next((at for at, kind in enumerate(kinds) if kind), len(kinds))
    head = LedgerHeader(start_sequence=SEQS[floor - 1] if floor else -1, settled_count=floor)
    return Ledger.from_ranges(head, ranges_of(kinds[floor:], floor))


kind_lists = st.lists(st.integers(0, len(KINDS) - 1), max_size=len(SEQS))
