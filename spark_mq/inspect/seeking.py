"""Preview a seek."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_mq.ledger.admin import unsettled_ranges
from spark_mq.ledger.ranges import LEASED
from spark_mq.operations.group_ledger import GroupLedger, StartPosition
from spark_mq.util.records import Record
from spark_mq.util.validation import validate_position

__all__ = ["SeekPreview", "preview_seek"]


@dataclass(frozen=True, slots=True)
class SeekPreview(Record):
    """The effects that a seek would have on a group.

    Attributes
    ----------
    group
        The name of the group.
    floor
        All messages up to this sequence are settled now.
    position
        The first sequence that the seek makes unread, between the trim horizon and the tail.
    skipped
        Unsettled messages before the position. No worker gets them.
    delivered_again
        Messages from the position on that were settled or leased before.
    fenced_leases
        Live leases. Their workers can settle nothing after the seek.
    """

    group: str
    floor: int
    position: int
    skipped: int
    delivered_again: int
    fenced_leases: int


def preview_seek(group: GroupLedger, target: str | int | datetime) -> SeekPreview:
    to: StartPosition = validate_position("to", target)
    ledger, index = group.current(), group.messages.index()
    position = group.seek_position(index, to)
    position = index.first_at_or_after(position) or position
    ahead = unsettled_ranges(ledger, index, position - 1)
    leased = ledger.ranges_at(ledger.find((LEASED,)))
    return SeekPreview(
        group.name,
        ledger.head.ack_floor,
        position,
        sum(r.message_count for r in ahead),
        max(0, index.count(position, ledger.tracked_up_to)),
        len({r.lease_id for r in leased}),
    )
