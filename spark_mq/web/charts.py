"""Make charts of a queue. Templates draw them as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spark_mq.inspect.activity import ENDS
from spark_mq.ledger.stats import GroupStats, state_figures
from spark_mq.web.view import LastHour

__all__ = ["SettledChart", "StateBar", "settled_chart", "state_bar"]

MINUTES: Final = 60
HEIGHT: Final = 16  # of a chart whose width is the minutes
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
    """The messages of some groups by state."""

    parts: list[BarPart]
    total: int
    width: float


def state_bar(stats: Iterable[GroupStats]) -> StateBar:
    """Return the messages of some groups by state. Few among many stay visible."""
    counts: Counter[str] = Counter()
    for one in stats:
        counts.update({name: getattr(one, name) for name in _STATES})
    total, at, parts = counts.total(), 0.0, list[BarPart]()
    for name in _STATES:
        width = round(max(100 * counts[name] / total, 0.6), 2) if counts[name] else 0.0
        parts.append(BarPart(name, counts[name], round(at, 2), width))
        at += width
    return StateBar(parts, total, round(max(at, 100), 2))


@dataclass(frozen=True, slots=True)
class SettledChart:
    """The messages that all groups of a queue settled in each minute of an hour."""

    points: str  # of a line
    total: int
    most: int  # in a minute


def settled_chart(hour: LastHour) -> SettledChart:
    """Return the chart of an hour.

    The minute that has not ended is left out if it would look like a fall.
    """
    last = int(hour.until.timestamp()) // 60
    counts = [0] * MINUTES
    for row in hour.rows:
        place = MINUTES - 1 - last + int(row["at"].timestamp()) // 60
        if 0 <= place < MINUTES:
            counts[place] += sum(row[name] for name in ENDS)
    total, most = sum(counts), max(counts)
    shown = counts[:-1] if counts[-1] < counts[-2] else counts
    heights = [round(HEIGHT * (1 - one / most), 1) if most else HEIGHT for one in shown]
    points = " ".join(f"{minute},{height:g}" for minute, height in enumerate(heights))
    return SettledChart(points, total, most)
