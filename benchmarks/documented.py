"""The texts and tables that documents have of results.json, by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from targets import KINDS, Values, ledger, rows

__all__ = ["FIGURES", "Results"]

OWN = "spark_mq"
POSTGRES, PGMQ = "PostgreSQL", "PostgreSQL, pgmq's way"
VALKEY, UPDATE = "Valkey, appendfsync everysec", "row a message, delta-rs UPDATE"
DRAIN = "drain, {}"
PLAIN_DELTA, KAFKA = "plain Delta stream, no leases", "Kafka, one node, by Spark's own source"


@dataclass(frozen=True)
class Results:
    """The figures of a run by name. ``notes`` is what each was compared with."""

    values: Values
    notes: Mapping[str, str]
    run: str

    @classmethod
    def read(cls, file: Path) -> Results:
        found = json.loads(file.read_text())["results"]
        machines = sorted({f"{r['machine']}; {r['rounds']} rounds" for r in found})
        return cls(
            {r["name"]: r["value"] for r in found if r["value"] is not None},
            {r["name"]: r["against"] for r in found},
            " and ".join(machines),
        )


Figure = Callable[[Results], str]


# -- how figures are written


def ms(value: float) -> str:
    if value >= 1_000:
        return f"{value / 1_000:.2g} s"
    return f"{value:.2g} ms" if value < 10 else f"{value:.0f} ms"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def rough(value: float) -> str:
    """Two digits, as people say it."""
    return f"{float(f'{value:.2g}'):,.0f}"


def times(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def table(*lines: Iterable[str]) -> str:
    head, *others = (f"| {' | '.join(line)} |" for line in lines)
    columns = head.count("|") - 1
    return "\n".join(["", head, f"|{' --- |' * columns}", *others, ""])


def plain(text: str, name: str, form: Callable[[float], str]) -> Figure:
    """One figure, in a text."""
    return lambda found: text.format(form(found.values[name]))


def several(form: Callable[[float], str], *names: str) -> Figure:
    """The figures with these names, as "1 ms and 2 ms"."""
    return lambda found: " and ".join(form(found.values[name]) for name in names)


def values_table(lines: Iterable[tuple[str, Figure]]) -> Figure:
    given = list(lines)
    return lambda found: table(
        ("figure", "value"), *((name, figure(found)) for name, figure in given)
    )


# -- commits


def commits() -> Iterator[tuple[str, Figure]]:
    yield (
        "lease and ack of 1,000, synced, p50 (`commits`)",
        several(ms, "lease, 1,000 messages, p50", "ack, 1,000 messages, p50"),
    )
    yield (
        "lease and ack of 100, synced, p50 (`commit-path`)",
        several(ms, "lease synced, 100 messages, p50", "ack synced, 100 messages, p50"),
    )
    yield (
        "the disk alone: a new file with the syncs of a commit, and an append to a database's log",
        several(
            ms,
            "a new file and the syncs of a commit, without spark_mq, p50",
            "an append to a synced log, as of a database, p50",
        ),
    )
    log = "100,000 commits of one message, {}: {}"
    yield (
        "100,000 commits of one message: open and first lease, unswept and swept",
        several(
            ms,
            log.format("without a sweep", "open and first lease"),
            log.format("swept", "open and first lease"),
        ),
    )
    yield (
        "the same, swept: poll, and `stats()`",
        several(ms, log.format("swept", "poll"), log.format("swept", "stats()")),
    )
    nacked = "every second of 1,000,000 nacked: "
    yield (
        "lease of 1,000 before and while every second of a million is nacked, and after",
        several(
            ms,
            "lease of 1,000 before, p50",
            f"{nacked}lease of 1,000, p50",
            "lease of 1,000 after they settled, p50",
        ),
    )
    yield "the nack of 500,000 of a million by sequence", plain("{} s", f"{nacked}the nack", whole)


def workers(found: Results) -> str:
    """Return the table of workers on a local disk."""
    lines = [("workers", "operations/s", "beside one", "p50", "least/most", "longest")]
    for many, groups in ((1, 1), (2, 1), (4, 1), (8, 1), (8, 4)):
        name = f"{many} worker{'s' * (many > 1)} on {groups} group{'s' * (groups > 1)}: {{}}"
        of = lambda what, name=name: found.values[name.format(what)]  # noqa: E731
        alone = found.values["1 worker on 1 group: operations/s"]
        fair = of("fairness, least over most operations of a worker")
        where = "one group" if groups == 1 else f"{groups} groups"
        lines.append(
            (
                f"{many} on {where}",
                whole(of("operations/s")),
                times(of("operations/s") / alone),
                ms(of("p50")),
                f"{fair:.2f}" if many > 1 else "",
                ms(of("longest")),
            )
        )
    return table(*lines)


def spread(found: Results) -> str:
    """Return by how much a lease or an ack varies, at most."""
    return times(max(target.value(found.values) for target in ledger() if target.most))


# -- beside peers


def with_ratio(found: Results, what: str, peer: str) -> str:
    if f"{what}: {peer}" not in found.values:
        return "-"  # this machine cannot run that server
    own, other = found.values[f"{what}: {OWN}"], found.values[f"{what}: {peer}"]
    return f"{whole(other)} ({times(own / other)})"


def python(found: Results) -> str:
    peers = (POSTGRES, PGMQ, f"{PGMQ}, synchronous_commit off", VALKEY, UPDATE)
    head = ("lease, read, ack", "spark_mq, `table()`", "`messages`", "PostgreSQL, row locks",
            "pgmq's way", "pgmq's way, commit off", "Valkey, everysec",
            "delta-rs UPDATE")  # fmt: skip
    lines = [head]
    for kind in KINDS:
        for batch in ("1,000", "100"):
            what = f"Python, lease + read + ack of {batch}, {kind}"
            own = [found.values[f"{what}: {name}"] for name in (OWN, f"{OWN}, lease.messages")]
            others = [with_ratio(found, what, peer) for peer in peers]
            lines.append((f"{batch} of {kind}", *map(whole, own), *others))
    return table(*lines)


def processes(found: Results) -> str:
    lines = [("lease, read, ack by 8 processes", "spark_mq", "pgmq's way")]
    for kind in KINDS:
        for batch in ("1,000", "100"):
            what = f"Python, 8 processes, lease + read + ack of {batch}, {kind}"
            own = found.values.get(f"{what}: {OWN}")
            both = ("-", "-") if own is None else (whole(own), with_ratio(found, what, PGMQ))
            lines.append((f"{batch} of {kind}", *both))
    return table(*lines)


def publishing(found: Results) -> str:
    lines = [("figure", "spark_mq", "PostgreSQL", "Valkey, everysec", "delta-rs or delta-spark")]
    for name, form in (("publish one message, {}, p50", ms), ("publish by 1,000, {}", whole)):
        for kind in KINDS:
            what = name.format(kind)
            cells = (found.values.get(f"{what}: {p}") for p in (OWN, POSTGRES, VALKEY, UPDATE))
            unit = "" if form is ms else "/s"
            lines.append((what, *("-" if c is None else form(c) + unit for c in cells)))
    for kind in KINDS:
        what = f"publish a DataFrame, {kind}"
        other = with_ratio(found, what, "delta-spark append")
        lines.append((f"{what}, messages/s", whole(found.values[f"{what}: {OWN}"]), "", "", other))
    for kind in ("bytes", "Message with a key"):
        name = f"buffered publisher, {kind}"
        lines.append((f"{name}, messages/s", whole(found.values[name]), "", "", ""))
    return table(*lines)


def drains(found: Results) -> str:
    sides = (f"{OWN}, through Python", PLAIN_DELTA, KAFKA, POSTGRES, PGMQ, VALKEY)
    columns = [f"{kind}, {how}" for kind in KINDS for how in ("steady state", "with start-up")]
    own = (whole(found.values[f"drain, {column}: {OWN}"]) for column in columns)
    lines: list[Iterable[str]] = [("side", *columns), (OWN, *own)]
    for side in sides:
        lines.append((side, *(with_ratio(found, f"drain, {one}", side) for one in columns)))
    return table(*lines)


def through_spark() -> Iterator[tuple[str, Figure]]:
    idle = "publish to acked, default trigger, idle queue, "
    yield (
        "publish to acked through Spark, default trigger, idle queue, p50 and p95",
        several(ms, f"{idle}p50", f"{idle}p95"),
    )
    news = "publish in one process to handler in another, "
    yield (
        "the same from one process to `group.work` in another",
        several(ms, f"{news}p50", f"{news}p95"),
    )
    batch = "micro-batch of 10,000: "
    yield (
        "foreachBatch of 10,000: the handler alone",
        plain("{}", f"{batch}the handler alone, p50", ms),
    )
    yield (
        "settling adds, to each batch and to the first one of a run",
        several(
            ms, f"{batch}settling adds, p50", f"{batch}settling adds to the first batch of a run"
        ),
    )


# -- S3


def at_s3(many: int, groups: int) -> str:
    where = f"{many} worker{'s' * (many > 1)} on {groups} group{'s' * (groups > 1)}"
    return f"S3 at 30 ms a request, {where}: "


def s3(found: Results) -> str:
    lines = [("workers", "operations/s", "commits/s", "requests each", "least/most", "longest")]
    for many, groups in ((1, 1), (2, 1), (4, 1), (8, 1), (32, 1), (8, 4)):
        name = at_s3(many, groups)
        if f"{name}operations/s" not in found.values:
            continue
        fair = found.values[f"{name}fairness, least over most operations of a worker"]
        where = "one group" if groups == 1 else f"{groups} groups"
        lines.append(
            (
                f"{many} on {where}",
                f"{found.values[f'{name}operations/s']:.1f}",
                f"{commits_a_second(found, many, groups):.1f}",
                f"{found.values[f'{name}requests of an operation']:.1f}",
                f"{fair:.2f}" if many > 1 else "",
                ms(found.values[f"{name}longest"]),
            )
        )
    return table(*lines)


def commits_a_second(found: Results, many: int, groups: int) -> float:
    return float(found.notes[f"{at_s3(many, groups)}operations/s"].removesuffix(" commits/s"))


def beside_peer(what: str, peer: str) -> Figure:
    """Return how many times as fast as a peer spark_mq is, for messages of each kind."""

    def figure(found: Results) -> str:
        names = [what.format(kind) for kind in KINDS]
        return " and ".join(
            times(found.values[f"{name}: {OWN}"] / found.values[f"{name}: {peer}"])
            for name in names
        )

    return figure


FIGURES: dict[str, Figure] = {
    "run": lambda found: found.run,
    "targets": lambda found: "\n".join(["", *rows(found.values), ""]),
    "commits": values_table(commits()),
    "workers": workers,
    "spread": spread,
    "python": python,
    "processes": processes,
    "publishing": publishing,
    "drains": drains,
    "through-spark": values_table(through_spark()),
    "s3": s3,
    "local-rate-1": plain("{}", "1 worker on 1 group: operations/s", rough),
    "local-rate-8": plain("{}", "8 workers on 1 group: operations/s", rough),
    "s3-rate-1": plain("{}", f"{at_s3(1, 1)}operations/s", rough),
    "s3-rate-8": plain("{}", f"{at_s3(8, 1)}operations/s", rough),
    "s3-rate-32": plain("{}", f"{at_s3(32, 1)}operations/s", rough),
    "s3-requests-8": plain("{}", f"{at_s3(8, 1)}requests of an operation", rough),
    "beside-kafka": beside_peer(f"{DRAIN}, steady state", KAFKA),
    "beside-kafka-start": beside_peer(f"{DRAIN}, with start-up", KAFKA),
    "beside-delta": beside_peer(f"{DRAIN}, steady state", PLAIN_DELTA),
    "beside-delta-start": beside_peer(f"{DRAIN}, with start-up", PLAIN_DELTA),
    "beside-pgmq": beside_peer("Python, lease + read + ack of 1,000, {}", PGMQ),
    "beside-pgmq-100": beside_peer("Python, lease + read + ack of 100, {}", PGMQ),
    "latency-worker": plain("{} ms", "publish in one process to handler in another, p95", rough),
    "latency": plain("{} ms", "publish to acked, default trigger, idle queue, p95", rough),
}
