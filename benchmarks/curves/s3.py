"""Over an S3 endpoint with the latency of a real one: what a lease and an ack ask of the store, and
what competing workers get done.

The latency is an assumption.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from contention import run
from figures import Point, Result

from curves.commits import Times, cycle
from curves.slow_s3 import SlowS3, slow_s3
from curves.workers import contest_name, reported
from spark_mq import Queue

LATENCY = 0.03
"""Seconds that each request takes: S3 itself takes some 20 to 60 ms for small objects."""
GOALS = {
    (1, 1): {"operations/s": "12 /s"},
    (8, 1): {"operations/s": "6 /s", "requests": "<= 10", "fairness": "0.3"},
}
"""By workers and groups."""
REQUESTS = {"lease": "3", "ack": "2", "publish": "2"}
"""The goal for one worker alone."""


def s3(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """``folder`` is not used: all is in the store."""
    with slow_s3(LATENCY) as store:
        yield from requests(store, max(3, rounds // 3))
        contests = ((1, 1), (2, 1)) if short else ((1, 1), (2, 1), (4, 1), (8, 1), (8, 4))
        for workers, groups in contests:
            root = f"{store.root}/{uuid.uuid4().hex}"
            found = run(
                workers,
                groups,
                0.0,
                3.0 if short else 20.0,
                root=root,
                options=store.options,
                messages=100_000,
                asked=store.total,
            )
            figures = reported(found)
            name = f"S3 at {LATENCY * 1000:.0f} ms a request, {contest_name(workers, groups)}"
            goals = GOALS.get((workers, groups), {})
            yield Result(
                f"{name}: operations/s",
                figures["operations/s"],
                "/s",
                f"{figures['commits/s']:.2f} commits/s",
                goals.get("operations/s", ""),
            )
            requests_each = found["requests"] / (figures["operations/s"] * found["seconds"])
            yield Result(
                f"{name}: requests of an operation",
                requests_each,
                "",
                goal=goals.get("requests", ""),
            )
            yield Result(f"{name}: p50", figures["p50"], "ms")
            yield Result(f"{name}: longest", figures["longest"], "ms")
            yield Result(
                f"{name}: fairness, least over most operations of a worker",
                figures["fairness"],
                "x",
                goal=goals.get("fairness", ""),
            )
            if groups == 1:
                yield Point("S3 workers", workers, figures)


def requests(store: SlowS3, rounds: int) -> Iterator[Result]:
    """What one worker alone asks for; and how long it takes, each time just after a publish."""
    queue = Queue.create(f"{store.root}/requests/q", storage_options=store.options)
    queue.publish([b"x"] * 100 * (rounds + 3))
    group = queue.group("bench").ensure()
    for _ in range(3):  # both tables know by then that nobody else commits
        queue.publish([b"x"] * 100)
        cycle(group, 100)
    asked: dict[str, list[Counter[str]]] = {verb: [] for verb in REQUESTS}
    times: Times = {verb: [] for verb in REQUESTS}
    for _ in range(rounds):
        start = store.counts()
        lease = group.lease("bench", max_messages=100)
        leased = store.counts()
        assert lease is not None
        lease.ack()
        asked["lease"].append(leased - start)
        acked = store.counts()
        asked["ack"].append(acked - leased)
        publish(queue, times["publish"])
        asked["publish"].append(store.counts() - acked)
        cycle(group, 100, times)
    for verb, each in asked.items():
        # Guards against a cleaned log ask once more every 5 s, so the mean is above the median.
        kinds = sum(each, Counter[str]())
        reported = ", ".join(
            f"{count / rounds:.1f} {kind}" for kind, count in sorted(kinds.items())
        )
        count = statistics.median(one.total() for one in each)
        yield Result(f"S3: requests of one {verb}", count, "", f"mean {reported}", REQUESTS[verb])
        yield Result(
            f"S3 at {LATENCY * 1000:.0f} ms a request: {verb} of 100, one worker, p50",
            statistics.median(times[verb]),
            "ms",
        )


def publish(queue: Queue, times: list[float]) -> None:
    """One file; its milliseconds go into `times`."""
    start = time.perf_counter()
    queue.publish([b"x"] * 100)
    times.append((time.perf_counter() - start) * 1000)
