"""Measure groups with order by key beside unordered groups of the same run.

    .venv/bin/python benchmarks/order.py                # all parts: about 15 minutes
    .venv/bin/python benchmarks/order.py lease drain    # some parts

The parts: lease, drain, publish, dataframe, hot, pgmq. Ordered and unordered runs alternate, and
the figures are medians. It prints a table for results/order.md. `pgmq` needs PostgreSQL and psycopg
(the extra "peers"), `dataframe` needs pyspark.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from figures import Result

from spark_mq import Queue
from spark_mq.ledger.slots import SlotLayout

ROWS, LANES, KEYS = 10_000, 64, 100_000
LEASE = 100_000
ORDERS = ("none", "key")


@dataclass
class Sizes:
    """How much to measure."""

    commits: int = 1_000
    rounds: int = 5
    drained: int = 300
    """Commits of a drain."""
    durable: bool = True
    folder: Path = field(default_factory=Path)


def table(at: int, *, size: int = 100, hot: bool = False) -> pa.Table:
    """One commit's messages. ``hot``: each second message has the same key."""
    keys = [f"k{(at * ROWS + row) % KEYS}" for row in range(ROWS)]
    if hot:
        keys[::2] = ["hot"] * len(keys[::2])
    value = bytes(range(256)) * (size // 256 + 1)
    values = [value[row % 200 : row % 200 + size] or value[:size] for row in range(ROWS)]
    return pa.table({"value": pa.array(values, pa.binary()), "key": keys})


def filled(
    path: Path, sizes: Sizes, commits: int, *, hot: bool = False, lanes: int = LANES
) -> Queue:
    queue = Queue.create(path, lanes=lanes, durable=sizes.durable)
    for at in range(commits):
        queue.publish(table(at, hot=hot))
    queue.sweep()
    warm = queue.group("warm")  # all files are checked once in a process
    lease = warm.lease("w", max_messages=10**9)
    assert lease is not None
    lease.ack()
    return queue


def group_of(queue: Queue, name: str, order: str) -> Any:
    group = queue.group(name)
    group.configure(order=order, breaker_threshold=None)
    return group


# -- the commit of a lease


def commit_bytes(path: Path) -> int:
    """The bytes of the newest commit of leases/, with its data file."""
    newest = max((path / "leases" / "_delta_log").glob("*.json"))
    adds = [json.loads(line).get("add") for line in newest.read_text().splitlines()]
    files = sum((path / "leases" / add["path"]).stat().st_size for add in adds if add)
    return newest.stat().st_size + files


@dataclass
class Leases:
    """What the leases of some workers took."""

    seconds: list[float] = field(default_factory=list)
    acks: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    """The ranges of the ledger for each file that it spans, and worker."""


def files_spanned(group: Any) -> int:
    ledger = group._ledger.snapshot().ledger
    index = group._ledger.messages.known()
    pieces = index.slices(ledger.first_sequences[0], ledger.last_sequences[-1])
    return len({piece.path for piece in pieces})


def leases(queue: Queue, path: Path, order: str, workers: int, number: int) -> Leases:
    """Take leases in turn, as many held as there are workers.

    The first are not counted, because workers come one by one.
    """
    group, found, held = group_of(queue, f"lease-{order}-{workers}-{number}", order), Leases(), []
    for at in range(10 * workers + 8):
        if len(held) >= workers:
            started = time.perf_counter()
            held.pop(0).ack()
            found.acks.append(time.perf_counter() - started)
        started = time.perf_counter()
        lease = group.lease("w", max_messages=LEASE)
        took = time.perf_counter() - started
        if lease is None:
            held.pop(0).ack()
            continue
        held.append(lease)
        if at > 3 * workers and len(lease) == LEASE:
            found.seconds.append(took)
            found.bytes.append(commit_bytes(path))
            ranges = group.stats().ledger_ranges
            found.share.append(ranges / files_spanned(group) / workers)
    for lease in held:
        lease.ack()
    return found


def lease(sizes: Sizes) -> Iterator[Result]:
    """A lease of 100,000 from a backlog, with one worker and with 8."""
    path = sizes.folder / "lease"
    queue = filled(path, sizes, sizes.commits)
    for workers in (1, 8):
        runs: dict[str, list[Leases]] = {order: [] for order in ORDERS}
        for number in range(sizes.rounds):
            for order in ORDERS:
                runs[order].append(leases(queue, path, order, workers, number))
        ms = {o: 1000 * statistics.median(s for r in runs[o] for s in r.seconds) for o in ORDERS}
        acks = {o: 1000 * statistics.median(s for r in runs[o] for s in r.acks) for o in ORDERS}
        size = {o: statistics.median(s for r in runs[o] for s in r.bytes) for o in ORDERS}
        what = f"lease of {LEASE:,}, {workers} worker{'s' * (workers > 1)}"
        beside = f"{ms['none']:.2f} ms unordered: {ms['key'] / ms['none']:.2f}x"
        yield Result(f"{what}: commit", ms["key"], "ms", beside, "<= 1.5x")
        beside = f"{acks['none']:.2f} ms unordered: {acks['key'] / acks['none']:.2f}x"
        yield Result(f"{what}: ack", acks["key"], "ms", beside)
        yield Result(
            f"{what}: bytes of the commit", size["key"], "B", f"{size['none']:,.0f} B unordered"
        )
        most = max(s for r in runs["key"] for s in r.share)
        yield Result(f"{what}: ledger ranges a file and worker, at most", most, "", goal="<= 10")


# -- drains


def drained(group: Any, total: int, size: int, workers: int = 8, pause: float = 0.0) -> float:
    """Return the seconds in which `workers` threads read and ack so many messages.

    A handler waits `pause` seconds for each lease.
    """
    left, lock = [total], threading.Lock()

    def work() -> None:
        while left[0] > 0:
            lease = group.lease("w", max_messages=size, wait="200ms")
            if lease is None:
                continue
            rows = lease.table().num_rows
            time.sleep(pause)
            lease.ack()
            with lock:
                left[0] -= rows

    threads = [threading.Thread(target=work) for _ in range(workers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def drain(sizes: Sizes) -> Iterator[Result]:
    """Drain messages of 100 bytes with 100,000 keys by 8 threads.

    The handler does nothing, or waits 200 ms for each lease.
    """
    queue = filled(sizes.folder / "drain", sizes, sizes.drained)
    total = sizes.drained * ROWS
    for size, pause in ((LEASE, 0.0), (LEASE, 0.2), (10_000, 0.0)):
        seconds: dict[str, list[float]] = {order: [] for order in ORDERS}
        for number in range(max(3, sizes.rounds // 2)):
            for order in ORDERS:
                group = group_of(queue, f"drain-{order}-{size}-{pause}-{number}", order)
                seconds[order].append(drained(group, total, size, pause=pause))
        rate = {order: total / statistics.median(seconds[order]) for order in ORDERS}
        what = f"drain, 8 threads, {KEYS:,} keys, leases of {size:,}"
        what += f", a handler of {1000 * pause:.0f} ms" if pause else ""
        beside = f"{rate['none']:,.0f}/s unordered: {rate['key'] / rate['none']:.2f}x"
        yield Result(what, rate["key"], "/s", beside, ">= 0.8x")


def hot(sizes: Sizes) -> Iterator[Result]:
    """One key has half of all messages. The speed of the other lanes, beside a queue without it.

    Other keys in the lane of the hot key are not counted: order holds for a lane.
    """
    commits = max(20, sizes.drained // 3)
    queues = {
        name: filled(sizes.folder / name, sizes, commits, hot=name == "hot")
        for name in ("hot", "even")
    }
    wanted = sum(counted(table(at, hot=True)) for at in range(commits))
    rates: dict[tuple[str, float], list[float]] = {}
    for number in range(max(2, sizes.rounds // 2)):
        for name, queue in queues.items():
            group = group_of(queue, f"{name}-{number}", "key")
            for share, rate in other_rates(group, wanted).items():
                rates.setdefault((name, share), []).append(rate)
    for share, what in ((0.8, "the first 80 %"), (1.0, "all")):
        ours, even = (statistics.median(rates[name, share]) for name in ("hot", "even"))
        beside = f"{even:,.0f}/s of as many in a queue without such a key: {ours / even:.2f}x"
        yield Result(f"one key has half: {what} of the other lanes", ours, "/s", beside, ">= 0.9x")


@cache
def in_other_lane(key: str) -> bool:
    layout = SlotLayout(LANES)
    return layout.lane(key) != layout.lane("hot")


def counted(messages: pa.Table) -> int:
    """How many messages are in other lanes than the hot key."""
    return sum(map(in_other_lane, messages["key"].to_pylist()))


def other_rates(group: Any, wanted: int) -> dict[float, float]:
    """Messages of other lanes than the hot one a second, until shares of `wanted` were acked.

    8 threads, leases of 10,000, a handler of 20 ms for each 1,000.
    """
    done, lock, rates = [0], threading.Lock(), dict[float, float]()
    started = time.perf_counter()

    def work() -> None:
        while done[0] < wanted:
            lease = group.lease("w", max_messages=10_000, wait="200ms")
            if lease is None:
                continue
            found = counted(lease.table())
            time.sleep(0.02 * len(lease) / 1000)
            lease.ack()
            with lock:
                done[0] += found
                for share in (0.8, 1.0):
                    if done[0] >= share * wanted:
                        rates.setdefault(share, done[0] / (time.perf_counter() - started))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rates


# -- publishes


def publish(sizes: Sizes) -> Iterator[Result]:
    """An Arrow table of 10,000 messages of 100 bytes."""
    queues = {
        n: Queue.create(sizes.folder / f"arrow{n}", lanes=n, durable=sizes.durable)
        for n in (0, LANES)
    }
    seconds: dict[int, list[float]] = {lanes: [] for lanes in queues}
    for number in range(20 * sizes.rounds):
        rows = table(number)
        for lanes, queue in queues.items():
            started = time.perf_counter()
            queue.publish(rows)
            seconds[lanes].append(time.perf_counter() - started)
    yield _speed("publish an Arrow table of 10,000 with 64 lanes", seconds, ROWS)


def dataframe(sizes: Sizes) -> Iterator[Result]:
    """A DataFrame of 200,000 messages in two partitions."""
    from pyspark.sql import SparkSession

    from spark_mq.spark import register

    rows, seconds = 200_000, dict[int, list[float]]()
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    try:
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        frame = spark.range(0, rows, 1, 2).selectExpr(
            "encode(repeat('x', 100), 'utf-8') as value", f"concat('k', id * 7919 % {KEYS}) as key"
        )
        frame = frame.cache()
        frame.count()
        paths = {n: str(sizes.folder / f"frame{n}") for n in (0, LANES)}
        for lanes, path in paths.items():
            Queue.create(path, lanes=lanes, durable=sizes.durable)
        for number in range(2 * sizes.rounds + 2):
            for lanes, path in paths.items():
                started = time.perf_counter()
                frame.write.format("spark_mq").mode("append").save(path)
                if number >= 2:
                    seconds.setdefault(lanes, []).append(time.perf_counter() - started)
    finally:
        spark.stop()
    yield _speed("publish a DataFrame of 200,000 with 64 lanes", seconds, rows)


def _speed(what: str, seconds: dict[int, list[float]], rows: int) -> Result:
    rate = {lanes: rows / statistics.median(found) for lanes, found in seconds.items()}
    beside = f"{rate[0]:,.0f}/s without lanes: {rate[LANES] / rate[0]:.2f}x"
    return Result(what, rate[LANES], "/s", beside, ">= 0.85x")


# -- beside PostgreSQL


def pgmq(sizes: Sizes) -> Iterator[Result]:
    """One worker leases and acks in order. spark_mq beside pgmq's FIFO read."""
    from peers.base import Missing
    from peers.postgres import server
    from peers.postgres_fifo import PgmqFifo

    messages = 100_000
    for keys, size in ((1_000, 1_000), (10_000, 10_000)):
        what = f"ordered drain of {messages:,}, {keys:,} keys, leases of {size:,}, one worker"
        try:
            with (
                server() as (socket, version),
                contextlib.closing(PgmqFifo(socket, True, keys)) as peer,
            ):
                peer.fill([bytes(100)] * messages)
                theirs = messages / _peer_seconds(peer, size)
        except Missing as error:
            yield Result(what, None, "/s", str(error))
            continue
        queue = Queue.create(sizes.folder / f"pgmq{keys}", lanes=LANES)
        numbers = range(messages)
        for first in range(0, messages, ROWS):
            names = [f"k{at % keys}" for at in numbers[first : first + ROWS]]
            queue.publish(pa.table({"value": [bytes(100)] * len(names), "key": names}))
        ours = messages / drained(group_of(queue, "ordered", "key"), messages, size, workers=1)
        beside = (
            f"{theirs:,.0f}/s with pgmq's FIFO read in PostgreSQL {version}: {ours / theirs:.1f}x"
        )
        yield Result(what, ours, "/s", beside, ">= 3x")


def _peer_seconds(peer: Any, size: int, most: float = 60.0) -> float:
    """Seconds of a drain. After `most`, the rest is taken to go on at the same speed."""
    started, done = time.perf_counter(), 0
    while (leased := peer.lease(size)) is not None:
        done += len(leased.read())
        peer.ack(leased)
        if time.perf_counter() - started > most:
            break
    took = time.perf_counter() - started
    return took * 100_000 / done


PARTS: dict[str, Callable[[Sizes], Iterator[Result]]] = {
    "lease": lease,
    "drain": drain,
    "publish": publish,
    "dataframe": dataframe,
    "hot": hot,
    "pgmq": pgmq,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART")
    parser.add_argument(
        "--commits", type=int, default=1_000, help="of 10,000, in the backlog of leases"
    )
    parser.add_argument("--drained", type=int, default=300, help="commits of a drain")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--not-durable", action="store_true", help="no syncs")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    print("| figure | ordered | beside | goal |\n| --- | --- | --- | --- |", flush=True)
    for name in given.parts:
        with tempfile.TemporaryDirectory() as folder:
            sizes = Sizes(
                given.commits, given.rounds, given.drained, not given.not_durable, Path(folder)
            )
            for one in PARTS[name](sizes):
                shown = "missing" if one.value is None else f"{one.value:,.2f} {one.unit}"
                if one.value is not None and one.value >= 100:
                    shown = f"{one.value:,.0f} {one.unit}"
                print(f"| {one.name} | {shown.strip()} | {one.against} | {one.goal} |", flush=True)


if __name__ == "__main__":
    main()
