"""Make charts of a queue. Templates draw them as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.inspect.activity import ENDS
from spark_mq.interfaces.monitor import Past
from spark_mq.ledger.stats import GroupStats, state_figures
from spark_mq.util.show import show_number

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
    """Counts by time, as bars. Where nothing is known there are none, and the last still grows."""

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
    counts = {"settled": _counts(past, _settled(past.rows), "settled")}
    return _chart(past, "Settled", counts, ("acked",), past.events_since)


def queue_charts(past: Past) -> list[Chart]:
    """Return what was published, and what was settled by the groups that settled most."""
    settled = _settled(past.rows)
    sums = settled.group_by("consumer_group").aggregate([("settled", "sum")]).to_pylist()
    totals = {row["consumer_group"]: row["settled_sum"] for row in sums if row["settled_sum"]}
    busy = sorted(totals, key=lambda name: (-totals[name], name))[:MOST_GROUPS]
    shown = {
        name: _counts(past, settled.filter(pc.field("consumer_group") == name), "settled")
        for name in busy
    }
    if len(totals) > len(busy):
        others = ~pc.field("consumer_group").isin(busy)
        shown[OTHERS] = _counts(past, settled.filter(others), "settled")
    colours = [f"series-{number}" for number in range(MOST_GROUPS + 1)]
    published = {"published": _counts(past, past.rows, "published")}
    return [
        _chart(past, "Published", published, ("published",), past.publishes_since),
        _chart(past, "Settled", shown, colours, past.events_since),
    ]


def group_charts(past: Past, group: str) -> list[Chart]:
    """Return how a group's messages ended, and how often one failed."""
    rows = past.rows.filter(pc.field("consumer_group") == group)
    names = [name for name in ENDS if name == "acked" or pc.sum(rows[name]).as_py()]
    ends = {name.replace("_", "-"): _counts(past, rows, name) for name in names}
    failed = {"failed": _counts(past, rows, "failed")}
    return [
        _chart(past, "Settled", ends, list(ends), past.events_since),
        _chart(past, "Failed", failed, ("failed",), past.events_since),
    ]


def _settled(rows: pa.Table) -> pa.Table:
    settled = reduce(pc.add, (rows[name] for name in ENDS))
    return rows.select(["at", "consumer_group"]).append_column("settled", settled)


def _counts(past: Past, rows: pa.Table, name: str) -> list[int]:
    counts = [0] * past.intervals
    sums = rows.group_by("at").aggregate([(name, "sum")])
    for at, count in zip(sums["at"].to_pylist(), sums[f"{name}_sum"].to_pylist(), strict=True):
        place = past.place(at)
        if 0 <= place < past.intervals:
            counts[place] += count
    return counts


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
    start, end = past.starts(place), past.starts(place + 1)
    form = "%Y-%m-%d %H:%M"
    until = "so far" if end > past.until else f"to {end:%H:%M}"
    shown = ", ".join(f"{name} {show_number(count)}" for name, count in counts.items()) or "none"
    return f"{start.astimezone(UTC):{form}} {until}: {shown}"
