"""Figures of several sides of one run as rows of the table, each with its ratio to ours."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from figures import Result

from peers.all import OURS
from peers.base import Missing

Sides = Mapping[str, Sequence[float] | Missing]
"""Each side's measurements, or why there are none."""


def table(what: str, sides: Sides, unit: str, survives: Mapping[str, str]) -> Iterator[Result]:
    """The medians. More is better of what is counted per second, less of times."""
    ours = sides[OURS]
    assert not isinstance(ours, Missing)
    for name, given in sides.items():
        if isinstance(given, Missing):
            yield Result(f"{what}: {name}", None, unit, f"missing: {given}")
            continue
        value, own = statistics.median(given), statistics.median(ours)
        ratio = own / value if unit == "/s" else value / own
        against = f"spark_mq {ratio:.2f}x as fast" if name != OURS else ""
        yield Result(f"{what}: {name}", value, unit, against, survives.get(name, ""))
