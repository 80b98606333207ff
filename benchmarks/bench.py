"""Measures what spark_mq promises of its cost, side by side in one run.

Writes results.json and prints a table.

    make bench                                                    # all, and the plots
    # whether all figures are still produced
    make bench SHORT=1
    .venv/bin/python benchmarks/bench.py --only commits           # one part

Figures of one machine in one run mean little; the ratios between rows of one run are what to look
at.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from curves import CURVES
from figures import Part, Point, Result
from own import PARTS
from peers.base import Missing
from peers.parts import expected, parts
from peers.sizes import SHORT, Sizes
from targets import rows

HERE = Path(__file__).resolve().parent
ALL = [*PARTS, *parts(Sizes()), *CURVES]
SHORT_ROUNDS = 5


def chosen(names: list[str] | None, sizes: Sizes, short: bool) -> dict[str, Part]:
    """The parts with these names, or all."""
    every: dict[str, Part] = PARTS | parts(sizes)
    every |= {
        name: partial(load(), short=short)
        for name, load in CURVES.items()
        if name in (names or ALL)
    }
    return {name: every[name] for name in names or ALL}


def merged(file: Path, results: list[Result], reported: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of a file with those of this run in their places: what was not measured this time
    stays as it is.
    """
    known = {r["name"]: r for r in json.loads(file.read_text())["results"]} if file.exists() else {}
    return list((known | {r.name: {**asdict(r), **reported} for r in results}).values())


def keep(file: Path, points: dict[str, list[Point]], reported: dict[str, Any]) -> None:
    """Writes the points of curves, with what is reported of their run.

    Curves that were not measured this time stay as they are.
    """
    curves = json.loads(file.read_text()) if file.exists() else {}
    for name, found in points.items():
        curves[name] = {**reported, "points": [{"x": point.x, **point.lines} for point in found]}
    if points:
        file.write_text(json.dumps(curves, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", choices=ALL, action="append", help="a part (repeatable); default: all"
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="small sizes, for a check that all figures are still produced",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"measured rounds of each quick figure (30; with --short {SHORT_ROUNDS})",
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=Sizes.drain,
        help="messages to drain through Spark (2,400,000), 200,000 a batch",
    )
    parser.add_argument(
        "--out", type=Path, default=HERE / "results" / "results.json", help="where the figures go"
    )
    parser.add_argument(
        "--curves",
        type=Path,
        default=HERE / "results" / "curves.json",
        help="where the points of the curves go",
    )
    given = parser.parse_args()
    if given.messages < 4 * Sizes.drain_batch or given.messages % Sizes.drain_batch:
        parser.error(
            f"--messages: a multiple of {Sizes.drain_batch:,}, and at least 4 of them, since the "
            "first two batches do not count"
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are stopped
    sizes = SHORT if given.short else Sizes(drain=given.messages)
    rounds = given.rounds or (SHORT_ROUNDS if given.short else 30)
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
    reported = {"machine": machine, "rounds": rounds, "short": given.short}
    results: list[Result] = []
    absent: list[str] = []
    for name, part in chosen(given.only, sizes, given.short).items():
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        start, points = time.monotonic(), dict[str, list[Point]]()
        new: list[Result] = []
        try:
            with tempfile.TemporaryDirectory() as folder:
                for found in part(Path(folder), rounds):
                    if isinstance(found, Result):
                        new.append(found)
                    else:
                        points.setdefault(found.curve, []).append(found)
        except Missing as why:
            absent.append(f"{name}: {why}")
        results += new
        absent += sorted(
            expected(name, sizes) - {r.name for r in new if r.value is None or r.value > 0}
        )
        # After each part: a run of hours may be stopped.
        given.out.write_text(
            json.dumps({"results": merged(given.out, new, reported)}, indent=2) + "\n"
        )
        keep(given.curves, points, reported)
        print(f"    {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if not given.only:  # what no part measures now goes
        every = merged(given.out, results, reported)
        left = [r for r in every if r["name"] in {result.name for result in results}]
        given.out.write_text(json.dumps({"results": left}, indent=2) + "\n")
    print(f"\n{machine}; {rounds} rounds\n")
    show(results)
    print("\nthe targets, by all figures of the file:\n")
    kept = json.loads(given.out.read_text())["results"]
    print("\n".join(rows({r["name"]: r["value"] for r in kept if r["value"] is not None})))
    for name in absent:
        print(f"not measured: {name}", file=sys.stderr)
    return 1 if absent else 0


def show(results: list[Result]) -> None:
    """The table, and what a power cut leaves on each side."""
    width = max((len(r.name) for r in results), default=0)
    for r in results:
        value = "-" if r.value is None else f"{r.value:,.1f}"
        print(f"{r.name:<{width}}  {value:>13} {r.unit:<3} {r.against}".rstrip())
    survives = {r.name.rsplit(": ", 1)[-1]: r.survives for r in results if r.survives}
    if survives:
        print("\nwhat a power cut leaves of what was reported as done:")
    for name, what in survives.items():
        print(f"  {name}: {what}")


if __name__ == "__main__":
    sys.exit(main())
