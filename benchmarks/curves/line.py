"""A simulation: so many workers over one line of commits.

Each leases a batch, works on it, acks it, and begins again.

    python benchmarks/curves/line.py --workers 500 --batch 100000

Commits of a group are made one after the other: by one worker alone in ``alone`` seconds, and in
``contended`` where others wait (both measured, see ``s3.py``). A commit where others wait runs the
operations of all of them, up to ``shared``. Commits of several groups go on side by side, up to the
rate that the one log of the ledgers takes (also measured).
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
    workers: int,
    groups: int,
    work: float,
    *,
    alone: float,
    contended: float,
    log: float,
    shared: int = 65,
) -> Expected:
    """Simulate twenty rounds of all workers. The first quarter does not count.

    Parameters
    ----------
    workers, groups
        Their numbers.
    work
        Seconds that a worker is busy with a batch, give or take a fifth.
    alone, contended
        Seconds of a commit, alone and where others wait.
    log
        Seconds for which a commit keeps other groups waiting.
    shared
        Operations in one commit where others wait, at most. 1: nobody runs those of others.
    """
    rounds = -(-workers // (groups * shared))
    seconds = 20 * (work + 2 * max(alone, rounds * max(contended, groups * log)))
    log = log if groups > 1 else 0.0
    run = _Line(groups, work, alone=alone, contended=contended, log=log, shared=shared)
    for number in range(workers):
        run.come(run.chance.random() * (work + alone), number, False)
    return run.until(seconds)


class _Line:
    """The lines of commits of some groups, and who waits."""

    def __init__(
        self,
        groups: int,
        work: float,
        *,
        alone: float,
        contended: float,
        log: float,
        shared: int,
    ) -> None:
        self._groups, self._work, self._log, self._shared = groups, work, log, shared
        self._alone, self._contended = alone, contended
        self.chance = random.Random(1)
        self._free = [0.0] * groups  # when the line of a group is free again
        self._log_free = 0.0  # when the log of all is: one conditional put after the other
        self._waiting: list[list[tuple[float, int, bool]]] = [[] for _ in range(groups)]
        # At a time: a worker comes, or (with -1 - line as its number) a line becomes free.
        self._events: list[tuple[float, int, bool]] = []

    def come(self, at: float, worker: int, holds: bool) -> None:
        """Let a worker come with an operation."""
        heapq.heappush(self._events, (at, worker, holds))

    def until(self, seconds: float) -> Expected:
        """Run for some seconds. Return what came of it."""
        waits: list[float] = []
        batches, busy = 0, 0.0
        while self._events and self._events[0][0] <= seconds:
            at, worker, holds = heapq.heappop(self._events)
            line = -1 - worker if worker < 0 else worker % self._groups
            if worker >= 0:
                if at < self._free[line]:
                    if not self._waiting[line]:
                        heapq.heappush(self._events, (self._free[line], -1 - line, False))
                    self._waiting[line].append((at, worker, holds))
                    continue
                served, took = [(at, worker, holds)], self._alone
            else:
                served, took = self._waiting[line][: self._shared], self._contended
                self._waiting[line] = self._waiting[line][self._shared :]
            end = max(at + took, self._log_free + self._log)
            self._free[line] = end
            self._log_free = max(self._log_free, end - self._log) + self._log
            if self._waiting[line]:
                heapq.heappush(self._events, (end, -1 - line, False))
            if at > seconds / 4:
                waits += [end - came for came, _, _ in served]
                busy += (end - at) / self._groups
                batches += sum(held for _, _, held in served)
            for _, one, held in served:
                pause = 0.0 if held else self._work * self.chance.uniform(0.8, 1.2)
                self.come(end + pause, one, not held)
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
    parser.add_argument("--shared", type=int, default=65, help="operations in one commit, at most")
    given = parser.parse_args()
    reported = simulate(
        given.workers,
        given.groups,
        given.batch / given.rate,
        alone=given.alone,
        contended=given.contended,
        log=given.log,
        shared=given.shared,
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
