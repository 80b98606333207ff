"""A ledger as the rows that ``leases/`` keeps of it, and back; and what a commit did, which its
rows tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import NotAQueue, UnsupportedTable
from spark_mq.ledger.ranges import (
    EVENT,
    FLOOR,
    RANGE_SCHEMA,
    Ledger,
    LedgerHeader,
    LogMark,
    to_table,
)

__all__ = ["LEASES_SCHEMA", "events_of", "from_rows", "to_rows"]

LEASES_SCHEMA: Final = pa.schema(
    [
        pa.field("consumer_group", pa.string()),
        *RANGE_SCHEMA,
        pa.field("revision", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)


_DETAILS: Final = frozenset(json.loads(LedgerHeader().to_json()))
"""The fields in the detail of a floor row. A newer version may write more."""


def to_rows(group: str, ledger: Ledger) -> pa.Table:
    """A ledger as rows of the table: the floor row, its ranges, and what has happened since the
    version before (``state`` = event)."""
    head = ledger.head
    floor = {
        "consumer_group": group,
        "first": -1,
        "last": head.ack_floor,
        "state": FLOOR,
        "message_count": head.settled_count,
        "delivery_count": 0,
        "failure_count": 0,
        "suspect": False,
        "revision": head.revision,
        "detail": head.to_json(),
    }
    parts = [pa.Table.from_pylist([floor], schema=LEASES_SCHEMA), _rows(group, ledger.ranges)]
    if ledger.events:
        happened = to_table(r for _, r in ledger.events)
        told = pa.array([f"{event}:{r.state}" for event, r in ledger.events], pa.string())
        state = pa.repeat(pa.scalar(EVENT), len(told))
        parts.append(
            _rows(
                group,
                happened.set_column(happened.schema.names.index("state"), "state", state),
                told,
            )
        )
    return pa.concat_tables(parts)


def _rows(group: str, ranges: pa.Table, detail: pa.Array | None = None) -> pa.Table:
    n = ranges.num_rows
    names = pa.repeat(pa.scalar(group, pa.string()), n)
    return pa.table(
        [
            names,
            *ranges.columns,
            pa.nulls(n, pa.int64()),
            pa.nulls(n, pa.string()) if detail is None else detail,
        ],
        schema=LEASES_SCHEMA,
    )


def from_rows(rows: pa.Table) -> Ledger:
    """A ledger from the rows of its group."""
    floors = rows.filter(pc.equal(rows["state"], FLOOR)).to_pylist()
    if len(floors) != 1:
        raise NotAQueue(
            f"a consumer group has {len(floors)} floor rows in leases/, not one; something else "
            f"has written there",
            path="leases",
        )
    try:
        head = _head(floors[0])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NotAQueue(
            f"the floor row of a consumer group in leases/ says what spark_mq never wrote "
            f"({type(error).__name__}: {error})",
            path="leases",
        ) from error
    ranges = rows.filter(
        pc.invert(pc.is_in(rows["state"], value_set=pa.array([FLOOR, EVENT])))
    ).select(RANGE_SCHEMA.names)
    return Ledger(head, ranges.sort_by("first"))


def _head(floor: Mapping[str, Any]) -> LedgerHeader:
    detail = json.loads(floor["detail"])
    if unknown := sorted(set(detail) - _DETAILS):
        raise UnsupportedTable(
            f"cannot read the ledger of a group: this version of spark_mq does not know "
            f"{', '.join(unknown)}. Update spark_mq.",
            path="leases",
            features=unknown,
        )
    head = LedgerHeader(
        floor["last"],
        floor["message_count"],
        floor["revision"],
        detail["turn"],
        detail["counters"],
        detail["settings"],
        tuple((int(first), int(last)) for first, last in detail["skipped"]),
        tuple(LogMark(int(first), str(path)) for first, path in detail["marks"]),
    )
    if None in (head.ack_floor, head.settled_count, head.revision) or not isinstance(
        head.next_kind, str
    ):
        raise ValueError("a number is missing")
    if not isinstance(head.settings, dict) or not all(
        isinstance(count, int) for count in head.counters.values()
    ):
        raise TypeError("settings or counters are none")
    return head


def events_of(rows: pa.Table) -> pa.Table:
    """What the commit did that wrote these rows of a group: columns of RANGE_SCHEMA, ``state``
    being what came of it, and ``event``."""
    happened = rows.filter(pc.equal(rows["state"], EVENT))
    told = pc.split_pattern(happened["detail"], ":")
    state = happened.schema.names.index("state")
    table = happened.set_column(state, "state", pc.list_element(told, 1)).select(RANGE_SCHEMA.names)
    return table.append_column("event", pc.list_element(told, 0))
