"""A simulation: so many workers over one line of commits.

Each leases a batch, works on it, acks it, and begins again.

    python benchmarks/curves/line.py --workers 500 --batch 100000

Commits of a group are made one after the other: by one worker alone in ``alone`` seconds, and in
``contended`` where others wait (both measured, see ``s3.py``). Those of several groups go on side
by side, up to the rate that the one log of the ledgers takes (also measured).
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from dataclasses import dataclass

__all__ = ["Expected", "simulate"]


@dataclass(frozen=True)
class Expected:
    """What came of it: batches a second, seconds that a commit took with its wait (p50, p95), the
    share of time that lines were busy.
    """

    batches_per_second: float
    commit_p50: float
    commit_p95: float
    busy: float


def simulate(
    workers: int, groups: int, work: float, *, alone: float, contended: float, log: float
) -> Expected:
    """``work``: seconds that a worker is busy with a batch, give or take a fifth.

    ``log``: for which a commit keeps other groups waiting.

    Twenty rounds of all workers, the first quarter of which does not count.
    """
    seconds = 20 * (work + 2 * max(alone, workers * max(contended / groups, log)))
    chance = random.Random(1)
    log = log if groups > 1 else 0.0
    free = [0.0] * groups  # when the line of a group is free again
    log_free = 0.0  # when the log of all of them is: one conditional put after the other
    ready = [(chance.random() * (work + alone), number, False) for number in range(workers)]
    heapq.heapify(ready)
    waits: list[float] = []
    batches, busy = 0, 0.0
    while ready:
        at, worker, holds = heapq.heappop(ready)
        if at > seconds:
            break
        line = worker % groups
        start = max(at, free[line])
        took = contended if start > at else alone
        end = max(start + took, log_free + log)
        free[line], log_free = end, max(log_free, end - log) + log
        if at > seconds / 4:
            waits.append(end - at)
            busy += (end - start) / groups
            batches += holds
        pause = 0.0 if holds else work * chance.uniform(0.8, 1.2)
        heapq.heappush(ready, (end + pause, worker, not holds))
    return Expected(
        batches / (seconds * 0.75),
        statistics.median(waits),
        statistics.quantiles(waits, n=20)[-1],
        min(1.0, busy / (seconds * 0.75)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--batch", type=int, default=100_000, help="messages a lease")
    parser.add_argument(
        "--rate", type=float, default=20_000, help="messages a second that one worker gets through"
    )
    parser.add_argument(
        "--alone", type=float, default=0.25, help="seconds of a commit of one worker alone"
    )
    parser.add_argument("--contended", type=float, default=0.35, help="the same where others wait")
    parser.add_argument(
        "--log",
        type=float,
        default=0.1,
        help="seconds that the log takes for each commit of any group",
    )
    given = parser.parse_args()
    reported = simulate(
        given.workers,
        given.groups,
        given.batch / given.rate,
        alone=given.alone,
        contended=given.contended,
        log=given.log,
    )
    each = reported.batches_per_second * given.batch
    print(
        f"{each:,.0f} messages/s ({each / (given.workers * given.rate):.0%} of what the workers "
        f"could do), {1e9 / each / 3600:.1f} h for a"
    )
    print(
        f"billion; a commit takes {reported.commit_p50:.2f} s, p95 {reported.commit_p95:.2f} s; "
        f"the line is busy for {reported.busy:.0%} of the time"
    )


if __name__ == "__main__":
    main()
