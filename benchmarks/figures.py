"""What the parts of the benchmark yield: figures for the table, and points of curves for the
plots.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Part", "Point", "Result", "median_ms", "p95", "summary"]


@dataclass(frozen=True)
class Result:
    """One figure. ``against``: what it was compared with in the same run, and the ratio to that.

    ``value`` is None where this machine cannot have what was to be measured; ``against`` then says
    why. ``survives``: the reported work that a power cut leaves.
    """

    name: str
    value: float | None
    unit: str
    against: str = ""
    survives: str = ""


@dataclass(frozen=True)
class Point:
    """What was measured at one place of a curve: ``lines`` by name."""

    curve: str
    x: float
    lines: dict[str, float]


Part = Callable[[Path, int], Iterator[Result | Point]]
"""Measures in a folder of its own, in so many rounds."""


def p95(times: Sequence[float]) -> float:
    """The time that 95 of 100 stay within."""
    return sorted(times)[math.ceil(len(times) * 0.95) - 1]


def summary(name: str, times: Sequence[float]) -> dict[str, float]:
    """p50 and p95 as lines of a curve."""
    return {f"{name} p50": statistics.median(times), f"{name} p95": p95(times)}


def median_ms(action: Callable[[], object], rounds: int, warmup: int = 2) -> float:
    """Median milliseconds of one call."""
    times = []
    for number in range(rounds + warmup):
        start = time.perf_counter()
        action()
        if number >= warmup:
            times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)
