"""Keep the order of keys: find held lanes, and messages that return after a failure.

Nothing is stored for that, because the ledger's ranges and the index's slots contain it all.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, LEASED, Ledger
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.transitions import returned


def is_ordered(index: MessageIndex, rules: GroupSettings) -> bool:
    """Return whether a group delivers the messages of a key in order."""
    return rules.order == "key" and index.layout.lanes > 0


def held_lanes(ledger: Ledger, index: MessageIndex) -> int:
    rows = ledger.find((LEASED,))
    sets = set(index.slots_of(ledger.first_sequences, ledger.last_sequences, rows))
    return index.layout.lanes_in(reduce(or_, sets, 0))


def _slots_of(ledger: Ledger, index: MessageIndex, row: int) -> int:
    return index.slots_in(ledger.first_sequences[row], ledger.last_sequences[row])


def leases_held(ledger: Ledger) -> int:
    return len(ledger.distinct("lease_id", (LEASED,)))


def claims_on_lanes(ledger: Ledger, index: MessageIndex, taken: list[Interval]) -> list[int]:
    """Return rows of the expired leases that lose their claim to a lease of `taken`.

    These are the leases with a message in one of its lanes.
    """
    claimed: dict[str | None, list[int]] = {}
    rows = ledger.find((AVAILABLE,), ("lease_id", "is set", None))
    for row, r in zip(rows, ledger.ranges_at(rows), strict=True):
        claimed.setdefault(r.lease_id, []).append(row)
    if not claimed:
        return []
    layout = index.layout
    slots = layout.of_lanes(layout.lanes_in(reduce(or_, (index.slots_in(*i) for i in taken), 0)))
    return [
        row
        for of_lease in claimed.values()
        if any(_slots_of(ledger, index, row) & slots for row in of_lease)
        for row in of_lease
    ]


def return_behind(
    ledger: Ledger, index: MessageIndex, now: int, lease_id: str
) -> tuple[Ledger, list[Interval]]:
    """Return a lease's messages after an unsettled one of their slot, uncounted."""
    lost: list[Interval] = []
    held = ledger.rows_held(lease_id)
    if not held:
        return ledger, lost
    own, last = set(held), held[-1]
    without_lane = index.layout.without_lane
    given_back = expired = 0  # the slots with a message before that others get first
    editor = LedgerEditor(ledger)
    for row in ledger.find((LEASED, AVAILABLE, BLOCKED)):
        if row > last:
            break
        state = ledger.state_at(row)
        if row not in own:
            given_back |= 0 if state == LEASED else _slots_of(ledger, index, row) & ~without_lane
        elif state == LEASED:
            lost += _split(editor, index, row, given_back | expired, now)
        else:
            lost += _split(editor, index, row, given_back, now)
            expired |= _slots_of(ledger, index, row) & ~without_lane
    return editor.build(), lost


def _split(
    editor: LedgerEditor, index: MessageIndex, row: int, closed: int, now: int
) -> list[Interval]:
    """Give back the messages of a row in closed slots. The others stay with the lease."""
    ledger, lost = editor.ledger, list[Interval]()
    if not closed & _slots_of(ledger, index, row):
        return lost
    r = editor.remove([row])[0]
    back = returned(r, now) if r.state == LEASED else r._replace(lease_id=None)
    for number, first, last in index.slot_runs(r.first, r.last):
        closes = closed >> number & 1
        piece = (back if closes else r).at(first, last, last - first + 1)
        editor.add(piece, r, "returned" if closes and r.state == LEASED else "")
        if closes:
            lost.append((first, last))
    return lost
