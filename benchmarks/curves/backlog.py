"""A long log: 100,000 commits of one message each, opened by a new process, before sweeps and after
them. See ``backlog.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from backlog import fill
from figures import Point, Result

from spark_mq import Queue

GOALS = {
    "open and first lease, ms": "< 300 ms",
    "poll, ms": "< 10 ms",
    "stats(), ms": "< 1,000 ms",
    "publish of one message, ms": "4 ms, within 1.3x of the shortest log",
}
PROCESSES = 3
"""An odd number: of each figure the middle one counts."""


def probed(path: str, processes: int) -> dict[str, float]:
    """Medians over a few new processes."""
    script = Path(__file__).parents[1] / "backlog.py"
    each = []
    for _ in range(processes):
        run = subprocess.run(
            [sys.executable, str(script), "--probe", path],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        reported = json.loads(run.stdout)
        each.append(
            reported
            | {
                "open and first lease, ms": reported["open, ms"]
                + reported["first look at the log, ms"]
                + reported["first lease, ms"]
            }
        )
    return {name: sorted(one[name] for one in each)[processes // 2] for name in each[0]}


def backlog(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """Logs of several lengths; rounds do not count here."""
    shortest: dict[str, float] = {}
    for commits in (50, 500, 2_000) if short else (50, 1_000, 10_000, 100_000):
        queue = Queue.create(folder / f"log-{commits}")
        fill(queue, commits, max(100, commits // 20))
        before = probed(queue.path, 1 if short else PROCESSES)
        for _ in range(2):
            Queue.open(queue.path).sweep()
        after = probed(queue.path, 1 if short else PROCESSES)
        for kind, reported in (("without a sweep", before), ("swept", after)):
            for name, goal in GOALS.items():
                what, unit = name.split(", ")
                first = shortest.setdefault(f"{kind} {what}", reported[name])
                yield Result(
                    f"{commits:,} commits of one message, {kind}: {what}",
                    reported[name],
                    unit,
                    f"{reported[name] / first:.2f}x of the shortest log",
                    goal if kind == "swept" else "",
                )
        lines = {f"{name.removesuffix(', ms')}, {kind}": reported[name]
                 for kind, reported in (("without a sweep", before), ("swept", after))
                 for name in (*GOALS, "next lease and ack, ms")}  # fmt: skip
        yield Point("log", commits, lines)
