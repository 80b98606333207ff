"""Sum up the ranges of one or many ledgers by state, without an object for each range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.states import AVAILABLE, DELAYED, LEASED, READY, STATES

__all__ = ["LATE", "SUMMED_COLUMNS", "StateSum", "sum_states"]

LATE: Final = "late"  # leased, and past the deadline
SUMMED_COLUMNS: Final = (
    "state", "first", "last", "message_count", "leased_at", "expires_at", "available_at",
    "delivery_count",
)  # fmt: skip
_NAMES: Final = (*map(str, STATES), READY, DELAYED, LATE)
_STORED: Final = pa.array(_NAMES[: len(STATES)])
_SUMS: Final = (
    ("message_count", "sum"), ("first", "count"), ("first", "min"), ("last", "max"),
    ("leased_at", "min"), ("expires_at", "min"), ("available_at", "min"),
    ("delivery_count", "max"),
)  # fmt: skip


class StateSum(NamedTuple):
    """The ranges of a ledger in one state. Instants are microseconds."""

    messages: int = 0
    ranges: int = 0
    first: int | None = None  # sequence
    last: int | None = None
    leased_at: int | None = None  # the earliest
    expires_at: int | None = None  # the earliest
    available_at: int | None = None  # the earliest
    delivery_count: int = 0  # the highest

    def joined(self, other: StateSum) -> StateSum:
        """Return the sum of both."""
        return StateSum(
            self.messages + other.messages,
            self.ranges + other.ranges,
            _least(self.first, other.first),
            max((one for one in (self.last, other.last) if one is not None), default=None),
            _least(self.leased_at, other.leased_at),
            _least(self.expires_at, other.expires_at),
            _least(self.available_at, other.available_at),
            max(self.delivery_count, other.delivery_count),
        )


def _least(*given: int | None) -> int | None:
    return min((one for one in given if one is not None), default=None)


def sum_states(
    rows: pa.Table, now: int, groups: pa.Array | None = None, skews: Sequence[int] = ()
) -> dict[int, dict[str, StateSum]]:
    """Return the sums of ledgers by group and state, with available ranges as ready or delayed.

    Parameters
    ----------
    rows
        Ranges with SUMMED_COLUMNS.
    now
        The time in microseconds.
    groups
        The number of each row's group. Default: all belong to group 0.
    skews
        The ``clock_skew`` of each group. Leases past their deadline and it are LATE. Default: no
        lease is late, because the caller has expired these.
    """
    if groups is None:
        groups = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    columns = {name: rows[name] for name in SUMMED_COLUMNS}
    for name in ("leased_at", "expires_at", "available_at"):
        columns[name] = columns[name].cast(pa.int64())
    columns["state"] = _numbers(columns, now, pa.array(skews, pa.int64()), groups)
    columns["group"] = groups
    sums = pa.table(columns).group_by(["group", "state"], use_threads=False).aggregate(list(_SUMS))
    names = [f"{column}_{how}" for column, how in _SUMS]
    found: dict[int, dict[str, StateSum]] = {}
    values = (sums[name].to_pylist() for name in ("group", "state", *names))
    for group, state, *own in zip(*values, strict=True):
        name = "" if state is None else _NAMES[state]  # no state of ours
        found.setdefault(group, {})[name] = StateSum(*own)
    return found


def _numbers(
    columns: Mapping[str, pa.ChunkedArray], now: int, skews: pa.Array, groups: pa.Array
) -> pa.ChunkedArray:
    """Return the number in _NAMES of each row's state. Arrow compares and groups numbers faster."""
    found = pc.index_in(columns["state"], value_set=_STORED)
    due = pc.fill_null(pc.less_equal(columns["available_at"], now), False)
    shown = pc.if_else(due, _number(READY), _number(DELAYED))
    found = pc.if_else(pc.equal(found, _number(AVAILABLE)), shown, found)
    if len(skews):
        deadline = pc.add(columns["expires_at"], skews.take(groups))
        late = pc.and_(pc.equal(found, _number(LEASED)), pc.less(deadline, now))
        found = pc.if_else(pc.fill_null(late, False), _number(LATE), found)
    return found


def _number(state: str) -> pa.Scalar:
    return pa.scalar(_NAMES.index(state), pa.int32())
