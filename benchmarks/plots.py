"""Draws the curves that bench.py has measured, as small PNGs.

# benchmarks/results/: curves.json -> *.png
python benchmarks/plots.py
python benchmarks/plots.py --curves FILE --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter

HERE = Path(__file__).resolve().parent
SIZE = (6.4, 3.6)


@dataclass(frozen=True)
class Plot:
    """One picture.

    ``lines``: which of a curve's lines, or all; ``log``: the axes that are logarithmic; ``level``:
    a goal to draw.
    """

    file: str
    curve: str
    title: str
    x: str
    y: str
    lines: tuple[str, ...] = ()
    log: str = ""
    level: float | None = None
    names: dict[float, str] = field(default_factory=dict)


COMMIT = ("lease p50", "lease p95", "ack p50", "ack p95")
PLOTS = (
    Plot("batch.png", "batch", "Commit time by messages a lease", "messages a lease", "ms", COMMIT,
         "x", 15),
    Plot("backlog.png", "backlog", "Commit time by backlog (leases of 1,000)", "messages waiting",
         "ms", COMMIT, "x", 15),
    Plot("age.png", "age", "Commit time by age", "leases so far", "ms",
         ("lease p50, with the sweep", "lease p50, without", "lease p95, with the sweep",
          "lease p95, without"), "", 15),
    Plot("workers.png", "workers", "Competing workers on one group", "workers",
         "leases and settles a second", ("operations/s",)),
    Plot("workers-wait.png", "workers", "What an operation takes among competing workers",
         "workers", "ms", ("p50", "p95")),
    Plot("log.png", "log", "A log of single-message commits, opened by a new process", "commits",
         "ms",
         ("open and first lease, without a sweep", "open and first lease, swept", "poll, swept",
          "stats(), swept"), "xy"),
    Plot("fragments.png", "fragmentation",
         "1,000 messages, while every second of a million is nacked", "", "ms", (), "y", None,
         {0: "before", 1: "in pieces", 2: "settled"}),
    Plot("s3.png", "S3 workers", "Competing workers over S3, 30 ms a request", "workers",
         "leases and settles a second", ("operations/s",)),
)  # fmt: skip


def thousands(value: float, _: object = None) -> str:
    """A number as people write it."""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:g}"


def draw(plot: Plot, points: Sequence[dict[str, Any]], out: Path) -> None:
    """Writes one picture."""
    figure, axes = plt.subplots(figsize=SIZE, dpi=100)
    names = plot.lines or [name for name in points[0] if name != "x"]
    xs = [point["x"] for point in points]
    colours: dict[str, str] = {}  # p50 and p95 of one thing have the same
    for name in names:
        own = [point for point in points if name in point]  # a line may end early
        colour = colours.setdefault(name.replace("p95", "p50"), f"C{len(colours)}")
        style = "--" if "p95" in name else "-"
        places, ys = [point["x"] for point in own], [point[name] for point in own]
        axes.plot(
            places, ys, style, color=colour, marker="o", markersize=4, linewidth=1.5, label=name
        )
    values = [point[name] for point in points for name in names if name in point]
    if "x" in plot.log:
        axes.set_xscale("symlog", linthresh=min(x for x in xs if x > 0)) if min(
            xs
        ) <= 0 else axes.set_xscale("log")
    if "y" in plot.log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(
            FuncFormatter(thousands) if max(values) < 10 * min(values) else NullFormatter()
        )
    else:
        axes.set_ylim(0, 1.3 * max(*values, plot.level or 0))
    if plot.level is not None:
        axes.axhline(plot.level, color="grey", linewidth=1, linestyle=":")
        axes.annotate(
            f"goal: {plot.level:g}",
            (1, plot.level),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            color="grey",
        )
    formatter: Callable[..., str] = (
        (lambda x, _: plot.names.get(x, "")) if plot.names else thousands
    )
    step = -(-len(xs) // 10)
    axes.set_xticks(xs[::-1][::step])  # the last one always
    axes.xaxis.set_major_formatter(FuncFormatter(formatter))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(thousands))
    axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    axes.title.set_fontsize(10)
    axes.grid(visible=True, alpha=0.3)
    if len(names) > 1:
        axes.legend(fontsize=8, edgecolor="none")
    figure.tight_layout()
    figure.savefig(out / plot.file, metadata={"Software": None})
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curves", type=Path, default=HERE / "results" / "curves.json")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--all", action="store_true", help="fail where a curve is missing")
    given = parser.parse_args()
    curves = json.loads(given.curves.read_text())
    given.out.mkdir(parents=True, exist_ok=True)
    missing = []
    for plot in PLOTS:
        # The short form has other sizes of values.
        found = curves.get(plot.curve) or next(
            (curves[name] for name in curves if name.startswith(plot.curve.split(",")[0] + ",")),
            None,
        )
        if found is None:
            missing.append(plot.curve)
        else:
            draw(plot, found["points"], given.out)
    if missing:
        print(f"not measured yet: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing and given.all else 0


if __name__ == "__main__":
    sys.exit(main())
