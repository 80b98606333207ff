"""Make charts of a queue. Templates draw them as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.inspect.activity import ENDS
from spark_mq.ledger.stats import GroupStats, state_figures
from spark_mq.web.view import Past

__all__ = [
    "Chart",
    "StateBar",
    "group_charts",
    "queue_charts",
    "settled_chart",
    "state_bar",
]

HEIGHT: Final = 40  # of a chart whose width is its number of intervals
TICKS: Final = 4
MOST_GROUPS: Final = 5  # that have a colour of their own
OTHERS: Final = "other groups"
_STATES: Final = state_figures(GroupStats)


@dataclass(frozen=True, slots=True)
class BarPart:
    """A state in a bar of 100 units."""

    name: str
    count: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class StateBar:
    """The messages of a group by state."""

    parts: list[BarPart]
    total: int
    width: float


def state_bar(stats: GroupStats) -> StateBar:
    """Return the messages of a group by state. Few among many stay visible."""
    counts = {name: getattr(stats, name) for name in _STATES}
    total, at, parts = sum(counts.values()), 0.0, list[BarPart]()
    for name in _STATES:
        width = round(max(100 * counts[name] / total, 0.6), 2) if counts[name] else 0.0
        parts.append(BarPart(name, counts[name], round(at, 2), width))
        at += width
    return StateBar(parts, total, round(max(at, 100), 2))


@dataclass(frozen=True, slots=True)
class Series:
    """What a colour of a chart stands for."""

    name: str
    kind: str  # the class of its colour
    total: int
    path: str  # of its bars in SVG


@dataclass(frozen=True, slots=True)
class Interval:
    """A place of a chart with its text for a mouse."""

    x: int
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Counts by time, as bars. Intervals of which nothing is known have none.

    A bar of the interval that has not ended grows.
    """

    title: str
    range: str  # such as 6h
    every: str  # the length of an interval
    series: list[Series]
    total: int
    most: int  # in an interval
    width: int  # the number of intervals
    unknown: int  # the first intervals, of which nothing is known
    known_from: datetime  # where they end
    intervals: list[Interval]
    ticks: list[datetime]


def settled_chart(past: Past) -> Chart:
    """Return what all groups of a queue settled."""
    sums = _settled(past.rows).group_by("at").aggregate([("settled", "sum")])
    pairs = zip(sums["at"].to_pylist(), sums["settled_sum"].to_pylist(), strict=True)
    return _chart(past, "Settled", _counts(past, {"settled": pairs}), ("acked",), past.events_since)


def queue_charts(past: Past) -> list[Chart]:
    """Return what was published, and what was settled by the groups that settled most."""
    publishes = past.rows.filter(pc.is_null(past.rows["consumer_group"]))
    by_group: dict[str, list[tuple[datetime, int]]] = {}
    for row in _settled(past.rows).filter(pc.field("settled") > 0).to_pylist():
        by_group.setdefault(row["consumer_group"], []).append((row["at"], row["settled"]))
    groups = sorted(by_group, key=lambda name: (-sum(n for _, n in by_group[name]), name))
    shown = {name: by_group[name] for name in groups[:MOST_GROUPS]}
    if others := groups[MOST_GROUPS:]:
        shown[OTHERS] = [pair for name in others for pair in by_group[name]]
    colours = [f"series-{number}" for number in range(MOST_GROUPS + 1)]
    published = _counts(past, {"published": _pairs(publishes, "published")})
    return [
        _chart(past, "Published", published, ("published",), past.publishes_since),
        _chart(past, "Settled", _counts(past, shown), colours, past.events_since),
    ]


def group_charts(past: Past, group: str) -> list[Chart]:
    """Return how a group's messages ended, and how often one failed."""
    rows = past.rows.filter(pc.field("consumer_group") == group)
    names = [name for name in ENDS if name == "acked" or pc.sum(rows[name]).as_py()]
    ends = {name.replace("_", "-"): _pairs(rows, name) for name in names}
    failed = {"failed": _pairs(rows, "failed")}
    return [
        _chart(past, "Settled", _counts(past, ends), list(ends), past.events_since),
        _chart(past, "Failed", _counts(past, failed), ("failed",), past.events_since),
    ]


def _settled(rows: pa.Table) -> pa.Table:
    """Return how many messages each group settled in each interval."""
    settled = reduce(pc.add, (rows[name] for name in ENDS))
    return rows.select(["at", "consumer_group"]).append_column("settled", settled)


def _pairs(rows: pa.Table, name: str) -> Iterable[tuple[datetime, int]]:
    return zip(rows["at"].to_pylist(), rows[name].to_pylist(), strict=True)


def _counts(
    past: Past, series: Mapping[str, Iterable[tuple[datetime, int]]]
) -> dict[str, list[int]]:
    """Return the counts of each interval by series."""
    found = {name: [0] * past.intervals for name in series}
    for name, pairs in series.items():
        for at, count in pairs:
            place = past.place(at)
            if 0 <= place < past.intervals:
                found[name][place] += count
    return found


def _chart(
    past: Past,
    title: str,
    counts: Mapping[str, list[int]],
    kinds: Sequence[str],
    known_since: datetime,
) -> Chart:
    width = past.intervals
    sums = [sum(own[place] for own in counts.values()) for place in range(width)]
    most, below = max(sums), [0] * width
    series = []
    for (name, own), kind in zip(counts.items(), kinds, strict=False):
        path = "".join(
            _bar(place, below[place], count, most) for place, count in enumerate(own) if count
        )
        below = [low + count for low, count in zip(below, own, strict=True)]
        series.append(Series(name, kind, sum(own), path))
    unknown = next(
        (place for place in range(width) if sums[place] or past.starts(place + 1) > known_since),
        width,
    )
    texts = [
        _text(past, place, {name: own[place] for name, own in counts.items() if own[place]})
        for place in range(unknown, width)
    ]
    return Chart(
        title,
        past.range,
        past.every,
        series,
        sum(sums),
        most,
        width,
        unknown,
        past.starts(unknown),
        [Interval(place, text) for place, text in enumerate(texts, unknown)],
        [past.starts(width * number // (TICKS - 1)) for number in range(TICKS)],
    )


def _bar(place: int, below: int, count: int, most: int) -> str:
    """Return a bar of SVG. The least one is visible."""
    low, high = HEIGHT * (1 - below / most), HEIGHT * (1 - (below + count) / most)
    return f"M{place + 0.1:g} {low:.4g}V{min(high, low - 0.5):.4g}h.8V{low:.4g}z"


def _text(past: Past, place: int, counts: Mapping[str, int]) -> str:
    """Return an interval and its counts for people."""
    start, end = past.starts(place), past.starts(place + 1)
    form = "%Y-%m-%d %H:%M"
    until = "so far" if end > past.until else f"to {end:%H:%M}"
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"
    return f"{start.astimezone(UTC):{form}} {until}: {shown}"
