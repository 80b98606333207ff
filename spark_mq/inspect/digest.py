"""Count the ledgers of many groups without ledger objects.

A digest holds until the ledger changes or until time changes a count. So a second look reads only
the changed ledgers. A digest is small, so memory does not grow with the ledgers.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.breaker import CLOSED
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, DEAD, EVENT, FLOOR, LEASED, TRANSFERRING
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.stats import GroupStats, age_at
from spark_mq.util.columns import to_arrow

__all__ = ["DIGEST_COLUMNS", "LedgerDigest", "digest_rows", "stats_of"]

DIGEST_COLUMNS: Final = (
    "state",
    "first",
    "last",
    "message_count",
    "leased_at",
    "expires_at",
    "available_at",
    "delivery_count",
    "detail",
)

_DUE: Final = "due"
_LATER: Final = "later"
_LATE: Final = "late"
_MAX_INT32: Final = 2**31 - 1


@dataclass(slots=True)
class LedgerDigest:
    """The counts of one ledger at one time. Instants are microseconds since 1970."""

    settings: GroupSettings
    mark: tuple[int, str] | None  # first sequence and path of the newest data file that it reached
    counters: Mapping[str, int]
    floor: int  # all messages up to this sequence are settled
    counts: dict[str, int] = field(default_factory=dict)
    """Messages by state. Available ones are "due" or "later". Those of a late lease are "due"."""
    ranges: int = 0
    tracked_up_to: int = -1  # the last sequence that is not unread
    first_unsettled: int | None = None  # the first in the ledger: its lowest range is unsettled
    oldest_lease: int | None = None  # start of the oldest live lease
    valid_until: int | None = None  # time changes a count from then on, or never
    needs_rules: bool = False
    """Only the ledger's own rules give the counts, for example after a limit was lowered."""

    def holds(self, now: int) -> bool:
        """Return whether time has not changed the digest of an unchanged ledger."""
        return self.valid_until is None or now < self.valid_until


def digest_rows(
    parts: Iterable[tuple[str, pa.Table]], defaults: GroupSettings, now: int
) -> dict[str, LedgerDigest]:
    """Return the digests of groups, from their names and rows in DIGEST_COLUMNS."""
    names, tables, numbers = [], [], array("q")
    for number, (name, rows) in enumerate(parts):
        names.append(name)
        tables.append(rows)
        numbers.extend([number] * rows.num_rows)
    if not tables:
        return {}
    # A filter takes its time for each chunk.
    rows = pa.concat_tables(tables).combine_chunks().append_column("group", to_arrow(numbers))
    digests = [LedgerDigest(defaults, None, {}, -1) for _ in names]
    _add_headers(digests, rows.filter(pc.equal(rows["state"], FLOOR)))
    kept = pc.invert(pc.is_in(rows["state"], value_set=pa.array([FLOOR, EVENT])))
    _add_counts(digests, rows.filter(kept), now)
    return dict(zip(names, digests, strict=True))


def _add_headers(digests: Sequence[LedgerDigest], floors: pa.Table) -> None:
    columns = (floors[name].to_pylist() for name in ("group", "last", "detail"))
    for number, floor, text in zip(*columns, strict=True):
        detail = json.loads(text)
        digest = digests[number]
        digest.settings = GroupSettings.from_stored(detail["settings"])
        digest.counters = detail["counters"]
        digest.needs_rules = bool(detail.get("breaker"))
        if marks := detail["marks"]:
            digest.mark = (int(marks[-1][0]), str(marks[-1][1]))
        digest.floor = digest.tracked_up_to = floor


def _add_counts(digests: Sequence[LedgerDigest], rows: pa.Table, now: int) -> None:
    for row in _grouped(digests, rows, now):
        digest, kind = digests[row["group"]], row["kind"]
        count = row["message_count_sum"]
        digest.counts[_DUE if kind == _LATE else kind] = (
            digest.counts.get(_DUE if kind == _LATE else kind, 0) + count
        )
        digest.ranges += row["first_count"]
        digest.tracked_up_to = max(digest.tracked_up_to, row["last_max"])
        digest.first_unsettled = _least(digest.first_unsettled, row["first_min"])
        _note_times(digest, row)
        _note_rules(digest, row)


def _grouped(digests: Sequence[LedgerDigest], rows: pa.Table, now: int) -> Iterator[dict[str, Any]]:
    """Yield the sums of each group and kind. A kind is a state, or a part of one."""
    skew = pa.array([digest.settings.clock_skew for digest in digests], pa.int64())
    deadline = pc.add(rows["expires_at"].cast(pa.int64()), skew.take(rows["group"]))
    available_at = rows["available_at"].cast(pa.int64())
    state = rows["state"]
    leased, available = pc.equal(state, LEASED), pc.equal(state, AVAILABLE)
    late = pc.and_(leased, pc.fill_null(pc.less(deadline, now), False))
    later = pc.and_(available, pc.fill_null(pc.greater(available_at, now), True))
    kinds = pc.case_when(
        pc.make_struct(late, later, available),
        pa.scalar(_LATE), pa.scalar(_LATER), pa.scalar(_DUE), state,
    )  # fmt: skip
    table = rows.select(["group", "message_count", "first", "last", "delivery_count"])
    for name, column in (
        ("kind", kinds),
        ("deadline", deadline),
        ("available_at", available_at),
        ("leased_at", rows["leased_at"].cast(pa.int64())),
    ):
        table = table.append_column(name, column)
    sums = table.group_by(["group", "kind"], use_threads=False).aggregate(
        [
            ("message_count", "sum"),
            ("first", "count"),
            ("first", "min"),
            ("last", "max"),
            ("delivery_count", "max"),
            ("deadline", "min"),
            ("available_at", "min"),
            ("leased_at", "min"),
        ]
    )
    columns = [column.to_pylist() for column in sums.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(sums.schema.names, values, strict=True))


def _note_times(digest: LedgerDigest, row: Mapping[str, Any]) -> None:
    if row["kind"] == LEASED:
        digest.oldest_lease = _least(digest.oldest_lease, row["leased_at_min"])
        if row["deadline_min"] is not None:
            digest.valid_until = _least(digest.valid_until, row["deadline_min"] + 1)
    elif row["kind"] == _LATER:
        digest.valid_until = _least(digest.valid_until, row["available_at_min"])


def _note_rules(digest: LedgerDigest, row: Mapping[str, Any]) -> None:
    """Note whether a limit may have ended some messages."""
    settings, kind = digest.settings, row["kind"]
    if kind in (_LATE, _LATER, _DUE):
        attempts = settings.max_delivery_attempts or _MAX_INT32
        other_limits = settings.failure_limit(own=True) is not None or (
            settings.max_retry_age is not None
        )
        if row["delivery_count_max"] >= attempts or other_limits:
            digest.needs_rules = True
        if kind == _LATE and row["delivery_count_max"] > 1:
            digest.needs_rules = True  # its expiry may open the breaker
    elif kind == BLOCKED:
        digest.needs_rules = True


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def stats_of(digest: LedgerDigest, index: MessageIndex, now: int) -> GroupStats | None:
    """Return the stats of a digest that holds, or None if they need the ledger's own rules."""
    counts, counters = digest.counts, digest.counters
    if digest.needs_rules or _may_be_capped(digest) or index.has_times_after(digest.floor):
        return None
    if not _is_of_log(digest, index):
        return None
    unread = index.count(digest.tracked_up_to + 1, index.last_sequence)
    first = digest.first_unsettled
    if first is None:
        first = index.first_at_or_after(digest.floor + 1)
    published = None if first is None else index.file_at(first).committed_at
    return GroupStats(
        ready=unread + counts.get(_DUE, 0),
        unread=unread,
        delayed=counts.get(_LATER, 0),
        leased=counts.get(LEASED, 0),
        dead=counts.get(DEAD, 0),
        blocked=0,
        transferring=counts.get(TRANSFERRING, 0),
        acked=counters.get("acked", 0),
        dead_lettered=counters.get("dead_lettered", 0),
        dropped=counters.get("dropped", 0),
        skipped=counters.get("skipped", 0),
        expired=counters.get("expired", 0),
        lost=counters.get("lost", 0),
        floor=digest.floor,
        tail=index.last_sequence,
        tail_version=index.version,
        oldest_unsettled_age=age_at(published, now),
        oldest_lease_age=age_at(digest.oldest_lease, now),
        ledger_ranges=digest.ranges,
        blocked_because="",
        breaker=CLOSED,
    )


def _is_of_log(digest: LedgerDigest, index: MessageIndex) -> bool:
    """Return whether the log has all that the ledger knows."""
    mark = digest.mark
    same = mark is None or index.may_have(mark[0], mark[1])
    return same and digest.tracked_up_to <= index.last_sequence


def _may_be_capped(digest: LedgerDigest) -> bool:
    settings = digest.settings
    leased = digest.counts.get(LEASED, 0)
    full = settings.max_in_flight is not None and leased >= settings.max_in_flight
    return full or digest.ranges >= settings.max_tracked_ranges
