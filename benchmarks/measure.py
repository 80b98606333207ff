"""What the parts of the benchmark share: a figure, and medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One figure. ``against``: what it was compared with in the same run, and the ratio to that.

    ``value`` is None where this machine cannot have what was to be measured; ``against`` then says why. ``survives``: what a power cut
    leaves of what was reported as done.
    """

    name: str
    value: float | None
    unit: str
    against: str = ""
    goal: str = ""
    survives: str = ""


def median_ms(action: Callable[[], object], rounds: int, warmup: int = 2) -> float:
    """Median milliseconds of one call."""
    times = []
    for number in range(rounds + warmup):
        start = time.perf_counter()
        action()
        if number >= warmup:
            times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)
