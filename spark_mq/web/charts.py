"""Make charts of a queue. Templates draw them as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spark_mq.ledger.stats import GroupStats, state_figures

__all__ = ["StateBar", "state_bar"]

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
