"""Over a real S3 server (versitygw) with the latency of S3: what a lease and an ack ask of the
store, and what competing workers get done.

The latency is an assumption, which a proxy adds to the server's own time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from contention import run
from figures import Point, Result
from peers.base import Missing
from store_proxy import counts, delayed

from curves.commits import Times, cycle
from curves.workers import contest_name, reported
from spark_mq import Queue

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from support.stores import STORES, RemoteStore, versitygw

LATENCY = 0.03
"""Seconds that each request takes: S3 itself takes some 20 to 60 ms for small objects."""
CONTESTS = ((1, 1), (2, 1), (4, 1), (8, 1), (32, 1), (8, 4))
"""Workers, groups."""
SECONDS = 20.0
AT = f"S3 at {LATENCY * 1000:.0f} ms a request"
VERBS = ("lease", "ack", "publish")


def s3(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """``folder`` is not used: all is in the store."""
    if not (STORES / "versitygw").exists():
        raise Missing("no S3 server: run scripts/install-store versitygw")
    with versitygw() as store, delayed(store.url, LATENCY) as url:
        yield from requests(store, url, max(3, rounds // 3))
        for workers, groups in CONTESTS[:2] if short else CONTESTS:
            yield from contest(store, url, workers, groups, 3.0 if short else SECONDS)


def contest(
    store: RemoteStore, url: str, workers: int, groups: int, seconds: float
) -> Iterator[Result | Point]:
    found = run(
        workers, groups, 0.0, seconds, root=store.new_path(), options=store.options_at(url),
        messages=400_000, asked=lambda: counts(url).total(),
    )  # fmt: skip
    figures = reported(found)
    name = f"{AT}, {contest_name(workers, groups)}"
    commits = f"{figures['commits/s']:.2f} commits/s"
    yield Result(f"{name}: operations/s", figures["operations/s"], "/s", commits)
    requests_each = found["requests"] / (figures["operations/s"] * found["seconds"])
    yield Result(f"{name}: requests of an operation", requests_each, "")
    yield Result(f"{name}: p50", figures["p50"], "ms")
    yield Result(f"{name}: longest", figures["longest"], "ms")
    fairness = f"{name}: fairness, least over most operations of a worker"
    yield Result(fairness, figures["fairness"], "x")
    if groups == 1:
        yield Point("S3 workers", workers, figures)


def requests(store: RemoteStore, url: str, rounds: int) -> Iterator[Result]:
    """What one worker alone asks for; and how long it takes, each time just after a publish."""
    queue = Queue.create(store.new_path(), storage_options=store.options_at(url))
    queue.publish([b"x"] * 100 * (rounds + 3))
    group = queue.group("bench").ensure()
    for _ in range(3):  # both tables know by then that nobody else commits
        queue.publish([b"x"] * 100)
        cycle(group, 100)
    asked: dict[str, list[Counter[str]]] = {verb: [] for verb in VERBS}
    times: Times = {verb: [] for verb in VERBS}
    for _ in range(rounds):
        start = asked_for(url)
        lease = group.lease("bench", max_messages=100)
        leased = asked_for(url)
        assert lease is not None
        lease.ack()
        asked["lease"].append(leased - start)
        acked = asked_for(url)
        asked["ack"].append(acked - leased)
        publish(queue, times["publish"])
        asked["publish"].append(asked_for(url) - acked)
        cycle(group, 100, times)
    for verb, each in asked.items():
        # Guards against a cleaned log ask once more every 5 s, so the mean is above the median.
        kinds = sum(each, Counter[str]())
        reported = ", ".join(
            f"{count / rounds:.1f} {kind}" for kind, count in sorted(kinds.items())
        )
        count = statistics.median(one.total() for one in each)
        yield Result(f"S3: requests of one {verb}", count, "", f"mean {reported}")
        yield Result(
            f"{AT}: {verb} of 100, one worker, p50",
            statistics.median(times[verb]),
            "ms",
        )


def asked_for(url: str) -> Counter[str]:
    """Return the requests so far by method."""
    found: Counter[str] = Counter()
    for kind, count in counts(url).items():
        found[kind.partition(" ")[0]] += count
    return found


def publish(queue: Queue, times: list[float]) -> None:
    """One file; its milliseconds go into `times`."""
    start = time.perf_counter()
    queue.publish([b"x"] * 100)
    times.append((time.perf_counter() - start) * 1000)
