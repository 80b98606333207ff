"""Workers that compete: commits a second, what each of them waits, and whether each gets its share.

See ``contention.py``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contention import run
from figures import Point, Result, p95

CONTESTS = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 4))
"""Workers, groups."""


def contest_name(workers: int, groups: int) -> str:
    """As people say it."""
    return f"{workers} worker{'s' * (workers > 1)} on {groups} group{'s' * (groups > 1)}"


def reported(found: dict[str, Any]) -> dict[str, float]:
    """A contest in figures: milliseconds over all workers.

    Where tickets are taken, there are more commits than operations.
    """
    each = [[ms for times in worker[3].values() for ms in times] for worker in found["workers"]]
    every = [ms for times in each for ms in times]
    counts = [len(times) for times in each]
    return {
        "operations/s": found["done_per_second"],
        "commits/s": found["commits_per_second"],
        "p50": statistics.median(every),
        "p95": p95(every),
        "longest": max(every),
        "slowest worker p50": max(statistics.median(times) for times in each if times),
        "fairness": min(counts) / max(counts),
        "CPU ms a commit": 1000 * found["cpu"] / (found["seconds"] * found["commits_per_second"]),
        "cores": found["cpu"] / found["seconds"],
    }


def workers(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """Each contest several times, in turn; of each the median run.

    ``folder``: contests make their own.
    """
    contests = ((1, 1), (2, 1), (4, 2)) if short else CONTESTS
    seen: dict[tuple[int, int], list[dict[str, float]]] = {contest: [] for contest in contests}
    for _ in range(1 if short else 3):
        for number, groups in contests:
            seen[number, groups].append(reported(run(number, groups, 0.0, 1.0 if short else 10.0)))
    medians = {
        contest: {name: statistics.median(r[name] for r in runs) for name in runs[0]}
        for contest, runs in seen.items()
    }
    names = {contest: contest_name(*contest) for contest in contests}
    alone = medians[contests[0]]["operations/s"]
    for contest, figures in medians.items():
        for name, unit in (
            ("operations/s", "/s"),
            ("commits/s", "/s"),
            ("p50", "ms"),
            ("p95", "ms"),
            ("longest", "ms"),
            ("CPU ms a commit", "ms"),
        ):
            against = (
                f"{figures[name] / alone:.2f}x of one worker" if name == "operations/s" else ""
            )
            yield Result(f"{names[contest]}: {name}", figures[name], unit, against)
        yield Result(f"{names[contest]}: cores busy", figures["cores"], "")
        yield Result(
            f"{names[contest]}: fairness, least over most operations of a worker",
            figures["fairness"],
            "x",
        )
        if contest[1] == 1:
            yield Point("workers", contest[0], figures)
    if (8, 1) in medians:
        few, many = medians[4, 1]["operations/s"], medians[8, 1]["operations/s"]
        against = f"{few / many:.2f}x of 4 workers"
        yield Result("8 workers on one group, an operation", 1000 / many, "ms", against)
