"""Measure how much looking slows a worker down.

    python benchmarks/look_overhead.py --minutes 5

A worker leases and acks without a pause. Beside it run ``spark-mq top``, which refreshes every 2
seconds, and ``spark-mq metrics``, which is scraped every 15 seconds. The worker's rate around each
look is compared with its rate shortly before and after it. So slow changes of the machine meet both
alike. Windows between two looks are compared in the same way. They show the noise.
"""

from __future__ import annotations

import argparse
import bisect
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from large import ROOT

BEFORE, AFTER = 0.35, 0.1
"""Seconds around the end of a look that count as the look."""
SCRAPE_SECONDS = 15.0
_STAMP = "import sys, time\nfor _ in sys.stdin: print(time.monotonic(), flush=True)"
_SCRAPE = """
import sys, time
from urllib.request import urlopen
while True:
    urlopen(sys.argv[1]).read()
    print(time.monotonic(), flush=True)
    time.sleep(float(sys.argv[2]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--ranges", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=5)
    args = parser.parse_args()
    from support.large_queue import build_large_queue

    with tempfile.TemporaryDirectory() as folder:
        queue = build_large_queue(
            Path(folder) / "queue",
            messages=args.messages, files=10, groups=args.groups, ranges=args.ranges,
        )  # fmt: skip
        print(json.dumps({**vars(args), **_measure(queue, args, Path(folder))}, indent=1))


def _measure(queue: Any, args: argparse.Namespace, folder: Path) -> dict[str, object]:
    group = queue.group("worker")
    with _looks(queue.path, folder) as (times, cpu):
        before, started = cpu(), time.monotonic()
        ends = _work(group, args.batch, 60 * args.minutes)
        used = (cpu() - before) / (time.monotonic() - started)
    refreshes = [at for at in times("top") if started < at < ends[-1]]
    scrapes = [at for at in times("scrapes") if started < at < ends[-1]]
    # A refresh near a scrape counts with the scrape.
    alone = [at for at in refreshes if not any(abs(at - one) < 1.5 for one in scrapes)]
    between = [at - 0.9 for at in alone]
    return {
        "ms of a lease and its ack": round(1000 * (ends[-1] - ends[0]) / (len(ends) - 1), 2),
        "refreshes, scrapes": [len(refreshes), len(scrapes)],
        "slower by top, percent": _slowdown(ends, alone, 2),
        "slower by metrics, percent": _slowdown(ends, scrapes, SCRAPE_SECONDS),
        "windows without a look, percent": _slowdown(ends, between, 2, beside=0.45),
        "CPU of the looks, percent of a core": round(100 * used, 1),
    }


def _work(group: Any, batch: int, seconds: float) -> list[float]:
    """Lease and ack for a while, or until the queue is empty. Return when each ack ended."""
    ends = [time.monotonic()]
    until = ends[0] + seconds
    while ends[-1] < until:
        lease = group.lease("bench", max_messages=batch)
        if lease is None:
            break  # the queue is empty
        lease.ack()
        ends.append(time.monotonic())
    return ends


def _slowdown(
    ends: Sequence[float], looks: Sequence[float], period: float, beside: float = 1.0
) -> dict[str, object]:
    """Return the share of its time that a worker loses, if a look comes once in a period.

    The seconds `beside` a look, on each side of it, show the worker's rate without the look.
    """
    lost = []
    for at in looks:
        start, end = at - BEFORE, at + AFTER
        if start - beside < ends[0] or end + beside > ends[-1]:
            continue
        done = _done(ends, end) - _done(ends, start)
        around = _done(ends, end + beside) - _done(ends, start - beside) - done
        lost.append(100 * (end - start - done * 2 * beside / around) / period)
    draw = random.Random(1)
    means = sorted(statistics.mean(draw.choices(lost, k=len(lost))) for _ in range(2_000))
    return {
        "mean": round(statistics.mean(lost), 2),
        "90 % interval": [round(means[100], 2), round(means[-100], 2)],
        "windows": len(lost),
    }


def _done(ends: Sequence[float], at: float) -> float:
    """Return how much work was done until a time. An unfinished piece counts in part."""
    n = bisect.bisect_right(ends, at)
    return n + (at - ends[n - 1]) / (ends[n] - ends[n - 1]) if 0 < n < len(ends) else float(n)


@contextmanager
def _looks(
    path: str, folder: Path
) -> Iterator[tuple[Callable[[str], list[float]], Callable[[], float]]]:
    """Run the looks. Yield when each ended, and the CPU seconds they have used."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, **given: Any) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([sys.executable, *command], cwd=ROOT, text=True, **given))
        return started[-1]

    def times(name: str) -> list[float]:
        lines = (folder / name).read_text().splitlines()
        return [float(line) for line in lines[:-1]]  # the last one may be cut

    spark_mq = ("-m", "spark_mq")
    with open(folder / "top", "w") as tops, open(folder / "scrapes", "w") as scrapes:
        try:
            quiet = subprocess.DEVNULL
            top = start(
                *spark_mq, "top", "-q", path, "-o", "json", stdout=subprocess.PIPE, stderr=quiet
            )
            start("-c", _STAMP, stdin=top.stdout, stdout=tops)
            metrics = start(
                *spark_mq, "metrics", "-q", path, "--port", "0",
                stdout=quiet, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert metrics.stderr
            address = metrics.stderr.readline().split()[-1]
            urlopen(address).read()  # the first look reads all ledgers
            start("-c", _SCRAPE, address, str(SCRAPE_SECONDS), stdout=scrapes)
            time.sleep(3)
            yield times, lambda: _cpu(top.pid) + _cpu(metrics.pid)
        finally:
            for process in reversed(started):  # the scraper before the server
                process.terminate()
                process.wait()


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    main()
