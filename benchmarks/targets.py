"""Print each target of the project beside its figure in results.json, as a table.

    .venv/bin/python benchmarks/targets.py

A figure that was not measured shows as "-".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TARGETS", "Target", "rows"]

Values = Mapping[str, float]
KINDS = ("1 KB", "100 B JSON")
DELTA = "plain Delta stream, no leases"
FAIRNESS = "fairness, least over most operations of a worker"


@dataclass(frozen=True)
class Target:
    """A figure with its goal. ``value`` raises KeyError or ValueError if parts are not measured."""

    name: str
    goal: float
    unit: str
    value: Callable[[Values], float]
    most: bool = False
    """Whether the goal is the most that the value may be, or else the least."""

    def row(self, values: Values) -> tuple[str, str, str, str]:
        sign = "at most" if self.most else "at least"
        goal = f"{sign} {self.goal:,g} {self.unit}".strip()
        try:
            value = self.value(values)
        except (KeyError, ValueError):
            return self.name, goal, "-", "not measured"
        reached = value <= self.goal if self.most else value >= self.goal
        shown = f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"
        return self.name, goal, f"{shown} {self.unit}".strip(), "yes" if reached else "no"


def of(name: str) -> Callable[[Values], float]:
    return lambda values: values[name]


def ratio(above: str, below: str) -> Callable[[Values], float]:
    return lambda values: values[above] / values[below]


def last_over_first(prefix: str, suffix: str) -> Callable[[Values], float]:
    """Of the figures with a prefix and a suffix, the last one divided by the first one."""

    def value(values: Values) -> float:
        found = [v for n, v in values.items() if n.startswith(prefix) and n.endswith(suffix)]
        if len(found) < 2:
            raise ValueError(prefix)
        return found[-1] / found[0]

    return value


def ledger() -> Iterator[Target]:
    base = "the change of a lease by delta-rs, p50"
    for verb in ("lease", "ack"):
        for kind, goal in (("unsynced", 5.0), ("synced", 3.0 if verb == "lease" else 3.5)):
            own = f"{verb} {kind}, 100 messages, p50"
            yield Target(f"{verb}, {kind}, beside delta-rs", goal, "x", ratio(base, own))
        for curve, what in (("batch", "100 to 1,000,000 messages"), ("backlog", "a backlog")):
            grows = of(f"{curve}: {verb}, highest p50 over the lowest")
            goal = 2.5 if (verb, curve) == ("lease", "batch") else 1.25
            yield Target(f"{verb}, {what}, highest over lowest", goal, "x", grows, most=True)
        aged = last_over_first(f"age: {verb} p50", "with the sweep")
        yield Target(f"{verb}, after 20,000 leases, over the first", 1.4, "x", aged, most=True)


def python() -> Iterator[Target]:
    for kind in KINDS:
        for batch, peer, goal in (
            ("1,000", "PostgreSQL, pgmq's way", 1.5),
            ("100", "PostgreSQL, pgmq's way", 0.4),
            ("1,000", "PostgreSQL", 0.5),
        ):
            what = f"Python, lease + read + ack of {batch}, {kind}"
            yield Target(
                f"{what}, beside {peer}", goal, "x", ratio(f"{what}: spark_mq", f"{what}: {peer}")
            )


def workers() -> Iterator[Target]:
    single = of("group.work, 8 threads, 200 messages, leases of one: commits")
    yield Target("commits of 8 threads for 200 messages, leases of one", 120, "", single, most=True)
    for count, goal in ((2, 1.0), (4, 1.0), (8, 1.2)):
        many, one = f"{count} workers on 1 group", "1 worker on 1 group"
        rate = ratio(f"{many}: operations/s", f"{one}: operations/s")
        yield Target(f"{count} processes on one group, beside one alone", goal, "x", rate)
    yield Target("... least over most", 0.8, "", of(f"{many}: {FAIRNESS}"))
    yield Target("... longest wait", 300, "ms", of(f"{many}: longest"), most=True)
    for kind in KINDS:
        for batch, goal in (("100", 0.25), ("1,000", 1.2)):
            what = f"Python, 8 processes, lease + read + ack of {batch}, {kind}"
            beside = ratio(f"{what}: spark_mq", f"{what}: PostgreSQL, pgmq's way")
            yield Target(f"{what}, beside PostgreSQL, pgmq's way", goal, "x", beside)
    news = "publish in one process to handler in another"
    yield Target(f"{news}, p95", 30, "ms", of(f"{news}, p95"), most=True)
    idle = of("a worker that waits for messages: CPU of a core")
    yield Target("... CPU of a core while it waits", 1.5, "%", idle, most=True)


def store() -> Iterator[Target]:
    for verb, goal in (("lease", 3), ("ack", 2), ("publish", 2)):
        name = f"S3: requests of one {verb}"
        yield Target(name, goal, "", of(name), most=True)
    at = "S3 at 30 ms a request"
    for count, goal in ((1, 25), (8, 45), (32, 120)):
        name = f"{at}, {count} worker{'s' * (count > 1)}"
        rate = of(f"{name} on 1 group: operations/s")
        yield Target(f"{name}: operations", goal, "/s", rate)
    eight, apart = f"{at}, 8 workers on 1 group", f"{at}, 8 workers on 4 groups"
    each = of(f"{eight}: requests of an operation")
    yield Target(f"{at}, 8 workers: requests of an operation", 3, "", each, most=True)
    for name in (eight, apart):
        yield Target(f"{name}: least over most", 0.7, "", of(f"{name}: {FAIRNESS}"))
        yield Target("... longest wait", 2_000, "ms", of(f"{name}: longest"), most=True)
    rate = ratio(f"{apart}: operations/s", f"{eight}: operations/s")
    yield Target("... beside 8 workers on 1 group", 0.9, "x", rate)
    drain = f"{at}, drain, 1 KB, steady state"
    beside = ratio(f"{drain}: spark_mq", f"{drain}: {DELTA}")
    yield Target(f"{drain}, beside {DELTA}", 0.9, "x", beside)
    micro_batch = f"{at}, micro-batch of 10,000"
    beyond = of(f"{micro_batch}: beyond what Spark itself takes, p50")
    yield Target(f"{micro_batch} beyond Spark's own cost", 150, "ms", beyond, most=True)


def logs() -> Iterator[Target]:
    log, publish = "{} commits of one message, swept: {}", "publish of one message"
    empty = log.format("50", publish)
    yield Target("publish of one message, new table", 3, "ms", of(empty), most=True)
    grown = ratio(log.format("100,000", publish), empty)
    yield Target("... with 100,000 files, over a new table", 1.3, "x", grown, most=True)
    cold = of(log.format("100,000", "open and first lease"))
    yield Target("open and first lease, 100,000 commits, swept", 300, "ms", cold, most=True)
    nacked = of("every second of 1,000,000 nacked: lease of 1,000, p50")
    yield Target("lease while every second of a million is nacked", 250, "ms", nacked, most=True)
    nack = of("every second of 1,000,000 nacked: the nack")
    yield Target("the nack of 500,000 of a million by sequence", 10, "s", nack, most=True)


def spark() -> Iterator[Target]:
    beyond = of("micro-batch of 10,000: beyond what Spark itself takes, p50")
    yield Target("micro-batch of 10,000 beyond Spark's own cost", 40, "ms", beyond, most=True)
    kafka = "Kafka, one node, by Spark's own source"
    for kind in KINDS:
        for which, peer, goal in (
            ("steady state", DELTA, 1.1),
            ("with start-up", DELTA, 0.85),
            ("steady state", "PostgreSQL, pgmq's way", 6.0),
            ("steady state", kafka, 1.0),
        ):
            what = f"drain, {kind}, {which}"
            value = ratio(f"{what}: spark_mq", f"{what}: {peer}")
            yield Target(f"{what}, beside {peer}", goal, "x", value)


TARGETS = (*ledger(), *python(), *workers(), *store(), *logs(), *spark())


def rows(values: Values) -> Iterator[str]:
    """The table, in Markdown."""
    yield "| figure | goal | result | reached |"
    yield "| --- | --- | --- | --- |"
    for target in TARGETS:
        yield f"| {' | '.join(target.row(values))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    here = Path(__file__).resolve().parent
    parser.add_argument("--results", type=Path, default=here / "results" / "results.json")
    results = json.loads(parser.parse_args().results.read_text())["results"]
    values = {r["name"]: r["value"] for r in results if r["value"] is not None}
    print("\n".join(rows(values)))


if __name__ == "__main__":
    main()
