"""Repeat transfers of dead letters that a restore lost.

``history/`` of the source has the messages and the id of each transfer. The target notes each id in
its log. So a target that lacks an id was restored from before the transfer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.intervals import Interval, normalise, subtract
from spark_mq.ledger.log_marks import MAX_SEQUENCE, REWOUND, agreed_up_to
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import RANGE_SCHEMA, TRANSFERRING, Range
from spark_mq.maintenance.dead_letters import Routing, copy_dead
from spark_mq.maintenance.redrive import REDRIVE, Redrive
from spark_mq.maintenance.transfer import Transfer
from spark_mq.operations.context import QueueContext
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.storage.history_rows import history_rows
from spark_mq.storage.history_table import BATCH

__all__ = ["count_lost_transfers", "repeat_lost_transfers"]

_log = logging.getLogger(__name__)
_INSTANTS: Final = [f.name for f in RANGE_SCHEMA if pa.types.is_timestamp(f.type)]


class _Lost(NamedTuple):
    transfer: Transfer
    transfer_id: str
    ranges: list[Range]


def count_lost_transfers(context: QueueContext) -> tuple[int, int]:
    """Return the numbers of lost dead letters and lost redriven messages."""
    dead = context.existing_dead_letters()  # None before the first dead letter, or if it is lost
    routed = sum(_size(lost) for lost in _lost_routings(context, dead))
    return routed, sum(_size(lost) for lost in _lost_redrives(context))


def repeat_lost_transfers(context: QueueContext) -> tuple[int, int]:
    """Publish lost dead letters and lost redriven messages again. Return their numbers.

    The old id of a transfer publishes its messages once, however often this runs.
    """
    dead = context.dead_letters()
    routed = sum(_repeat(lost) for lost in _lost_routings(context, dead))
    return routed, sum(_repeat(lost) for lost in _lost_redrives(context))


def _size(lost: _Lost) -> int:
    return sum(r.message_count for r in lost.ranges)


def _repeat(lost: _Lost) -> int:
    return _size(lost) if lost.transfer.publish_again(lost.ranges, lost.transfer_id) else 0


def _lost_routings(context: QueueContext, dead: QueueContext | None) -> Iterator[_Lost]:
    """Yield the lost transfers of dead letters, which are all of them without a queue for them."""
    for group in context.groups():
        routing = Routing(group, (dead or context).messages, copy_dead)
        yield from _lost(context, group, routing, "routed", all_lost=dead is None)


def _lost_redrives(context: QueueContext) -> Iterator[_Lost]:
    dead = context.existing_dead_letters()
    if dead is not None and (group := dead.group(REDRIVE)).exists():
        yield from _lost(dead, group, Redrive(context), "redriven")


def _lost(
    source: QueueContext,
    group: GroupLedger,
    transfer: Transfer,
    event: str,
    *,
    all_lost: bool = False,
) -> Iterator[_Lost]:
    rows = _events(source, group.name)
    done = rows.filter(pc.equal(rows["event"], event))
    ids = [one for one in pc.unique(done["lease_id"]).to_pylist() if one is not None]
    lost = [one for one in ids if all_lost or transfer.target.last_number(one) is None]
    index = source.messages.plan_recovery().index if lost else None
    for transfer_id in lost:
        assert index is not None
        mine = done.filter(pc.equal(done["lease_id"], transfer_id))
        ranges = list(_ranges(group, index, mine, rows))
        if ranges:
            yield _Lost(transfer, transfer_id, ranges)


def _events(source: QueueContext, group: str) -> pa.Table:
    """Return the events of a group that archive and ledgers agree on."""
    agreed = source.history.agreed_up_to()
    rows, archived = source.history.read([("consumer_group", "=", group)])
    if agreed is not None:
        rows, archived = rows.filter(pc.less_equal(rows["version"], agreed)), agreed
    parts, latest = [rows], source.ledgers.version()
    for first in range(archived + 1, latest + 1, BATCH):
        recent = history_rows(source.ledgers.commits(first, min(first + BATCH - 1, latest)))
        parts.append(recent.filter(pc.equal(recent["consumer_group"], group)))
    return pa.concat_tables(parts)


def _ranges(
    group: GroupLedger, index: MessageIndex, done: pa.Table, rows: pa.Table
) -> Iterator[Range]:
    """Yield the transferred ranges that the source still has, in their earlier state."""
    agreed = agreed_up_to(group.ledger_in(group.snapshot()), index)
    beyond: list[Interval] = [] if agreed is None else [(agreed + 1, MAX_SEQUENCE)]
    rewound = rows.filter(pc.equal(rows["event"], REWOUND)).to_pylist()
    for row in done.to_pylist():
        later = [(r["first"], r["last"]) for r in rewound if r["version"] > row["version"]]
        trimmed = (0, group.horizon())
        r = _range(row)
        for first, last in subtract([(r.first, r.last)], normalise([*beyond, *later, trimmed])):
            piece = r.slice(first, last, index)
            if piece.message_count:
                yield piece


def _range(row: dict[str, Any]) -> Range:
    fields = {name: row[name] for name in RANGE_SCHEMA.names if name in row}
    for name in _INSTANTS:
        if fields.get(name) is not None:
            fields[name] = round(fields[name].timestamp() * 1_000_000)
    return Range(**{**fields, "state": TRANSFERRING})
