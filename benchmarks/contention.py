"""What several processes that lease and settle at once do to each other: commits a second, and how
long each of them waits.

    .venv/bin/python benchmarks/contention.py --workers 8 --groups 1 --seconds 10
    # one of them thinks 100 ms before each commit
    .venv/bin/python benchmarks/contention.py --workers 8 --groups 1 --slow 0.1

Each worker leases 100 messages, extends, acks, and starts again, as fast as it can: the worst
neighbour there is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_mq import Queue
from spark_mq.errors import ContentionTimeout
from spark_mq.storage import local_turn


@dataclass(frozen=True)
class Worker:
    """One of them. ``apart``: as if on a machine of its own, where no lock on files keeps order."""

    name: str
    path: str
    group: str
    pause: float
    apart: bool
    options: Mapping[str, str] = field(default_factory=dict)


def contend(me: Worker, begin: Any, stop: Any, results: Any) -> None:
    """Leases, extends and acks until asked to stop.

    Puts its milliseconds by verb into `results`.
    """
    if me.apart:
        local_turn.fcntl = None
    ours = Queue.open(me.path, storage_options=me.options).group(me.group)
    times: dict[str, list[float]] = {"lease": [], "extend": [], "ack": []}
    failed: Counter[str] = Counter()

    def timed(verb: str, action: Any) -> Any:
        time.sleep(me.pause)
        start = time.perf_counter()
        try:
            return action()
        except ContentionTimeout:
            failed[verb] += 1
            return None
        finally:
            times[verb].append((time.perf_counter() - start) * 1000)

    begin.wait()
    used = resource.getrusage(resource.RUSAGE_SELF)
    before = used.ru_utime + used.ru_stime
    while not stop.is_set():
        lease = timed("lease", lambda: ours.lease(me.name, max_messages=100, wait=1))
        if lease is not None:
            timed("extend", lease.extend)
            timed("ack", lease.ack)
    used = resource.getrusage(resource.RUSAGE_SELF)
    results.put(
        (me.name, me.group, me.pause, times, dict(failed), used.ru_utime + used.ru_stime - before)
    )


def run(
    workers: int,
    groups: int,
    slow: float,
    seconds: float,
    *,
    apart: bool = False,
    root: str | None = None,
    options: Mapping[str, str] | None = None,
    messages: int = 1_000_000,
    asked: Callable[[], int] = int,
) -> dict[str, Any]:
    """One contest.

    The first worker is the slow one, if there is one. ``root``: where, if not on this disk;
    ``messages``: enough of them;
    ``asked``: returns how many requests a store has had.

    ``cpu``: seconds of it that the workers used in all.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = Queue.create(
            f"{root or folder}/q", visibility_timeout="5m", storage_options=options
        )
        for number in range(groups):
            queue.group(f"g{number}").ensure()
        for _ in range(10):
            queue.publish([b"x"] * (messages // 10))
        begin, stop, results = context.Barrier(workers + 1), context.Event(), context.Queue()
        before = queue._context.ledgers.version()
        running = [
            context.Process(
                target=contend,
                args=(
                    Worker(
                        f"w{n}", queue.path, f"g{n % groups}", slow * (n == 0), apart, options or {}
                    ),
                    begin,
                    stop,
                    results,
                ),
            )
            for n in range(workers)
        ]
        for process in running:
            process.start()
        begin.wait(300)
        start, requests = time.perf_counter(), asked()
        time.sleep(seconds)
        stop.set()
        reported = [results.get(timeout=120) for _ in running]
        took, requests = time.perf_counter() - start, asked() - requests
        for process in running:
            process.join()
        commits = queue._context.ledgers.version() - before
    done = sum(len(ms) for _, _, _, times, _, _ in reported for ms in times.values())
    return {
        "done_per_second": done / took,
        "commits_per_second": commits / took,
        "seconds": took,
        "requests": requests,
        "cpu": sum(one[-1] for one in reported),
        "workers": sorted(reported),
    }


def show(found: dict[str, Any]) -> None:
    done, commits, busy = (
        found["done_per_second"],
        found["commits_per_second"],
        found["cpu"] / found["seconds"],
    )
    print(
        f"{done:.0f} leases and settles a second, {commits:.0f} ledger commits, {busy:.1f} cores "
        "busy"
    )
    for name, group, pause, times, failed, _ in found["workers"]:
        cells = [
            f"{verb} {len(ms):4d} p50 {statistics.median(ms):6.0f} p95 "
            f"{sorted(ms)[int(len(ms) * 0.95)]:6.0f} max {max(ms):6.0f} ms"
            for verb, ms in times.items()
            if ms
        ]
        print(
            f"{name} {group}{f' +{pause:g} s' if pause else '':7}",
            " | ".join(cells),
            json.dumps(failed) if failed else "",
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument(
        "--slow",
        type=float,
        default=0.0,
        help="seconds that the first worker waits before each commit",
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--apart", action="store_true", help="as if on a machine each")
    args = parser.parse_args()
    show(run(args.workers, args.groups, args.slow, args.seconds, apart=args.apart))
    return 0


if __name__ == "__main__":
    sys.exit(main())
