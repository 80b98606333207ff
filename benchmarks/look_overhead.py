"""Measure how much looking slows a worker down.

    python benchmarks/look_overhead.py --pairs 45

A worker leases and acks without a pause. Beside it run ``spark-mq top``, which refreshes every 2
seconds, and ``spark-mq metrics``, which is scraped every 15 seconds of looks. Short slices with and
without looks take turns. So other work on the machine meets both alike. A look that is off is a
process that was stopped by a signal. It catches up afterwards, which counts against it.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

from large import ROOT

SLICE_SECONDS = 2.5
SCRAPE_EVERY = 6
"""Slices with looks from one scrape to the next: 15 seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--ranges", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=45)
    args = parser.parse_args()
    from support.large_queue import build_large_queue

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "queue"
        queue = build_large_queue(
            path, messages=args.messages, files=10, groups=args.groups, ranges=args.ranges
        )
        print(json.dumps({**vars(args), **_measure(queue, args)}, indent=1))


def _measure(queue: Any, args: argparse.Namespace) -> dict[str, object]:
    top = _start("top", queue.path, "-o", "json", out=subprocess.DEVNULL)
    metrics = _start("metrics", queue.path, "--port", "0", out=subprocess.PIPE)
    try:
        address = metrics.stderr.readline().split()[-1]
        urlopen(address).read()  # the first look reads all ledgers
        time.sleep(2)
        pairs = []
        for number in range(-1, args.pairs):
            scraped = address if number % SCRAPE_EVERY == 0 else None
            order = (True, False) if number % 2 else (False, True)
            found = {on: _slice(queue, args.batch, scraped, (top, metrics), on) for on in order}
            if number >= 0:  # the first pair warms up
                pairs.append(found)
    finally:
        for process in (top, metrics):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait()
    return _summary(pairs)


def _summary(pairs: list[dict[bool, dict[str, float]]]) -> dict[str, object]:
    alone = statistics.median(one[False]["seconds"] for one in pairs)
    return {
        "ms of a lease and its ack, without looks": round(1000 * alone, 2),
        "slower, percent of wall time": _slowdown(pairs, "seconds"),
        "slower, percent of the worker's CPU": _slowdown(pairs, "cpu"),
        "CPU of the looks, percent of a core": round(
            100 * statistics.mean(one[True]["looks"] for one in pairs), 1
        ),
    }


def _slowdown(pairs: list[dict[bool, dict[str, float]]], name: str) -> dict[str, object]:
    """Return the median slowdown of the pairs, and where 90 % of resampled medians lie."""
    ratios = [100 * (one[True][name] / one[False][name] - 1) for one in pairs]
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2_000))
    return {
        "median": round(statistics.median(ratios), 2),
        "90 % interval": [round(medians[100], 2), round(medians[-100], 2)],
    }


def _start(command: str, path: str, *options: str, out: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spark_mq", command, "-q", path, *options],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=out, text=True,
    )  # fmt: skip


def _slice(
    queue: Any, batch: int, address: str | None, looks: tuple[subprocess.Popen[str], ...], on: bool
) -> dict[str, float]:
    """Work for a while. Return seconds and CPU seconds of one lease and its ack."""
    for process in looks:
        process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
    scrape = Thread(target=lambda: urlopen(str(address)).read())
    scraped = on and address is not None
    if scraped:
        scrape.start()
    group, leases = queue.group("worker"), 0
    before = sum(_cpu(process.pid) for process in looks)
    started, cpu = time.perf_counter(), time.process_time()
    while (seconds := time.perf_counter() - started) < SLICE_SECONDS:
        lease = group.lease("bench", max_messages=batch)
        assert lease
        lease.ack()
        leases += 1
    if scraped:
        scrape.join()
    return {
        "seconds": seconds / leases,
        "cpu": (time.process_time() - cpu) / leases,
        "looks": (sum(_cpu(process.pid) for process in looks) - before) / seconds,
    }


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    main()
