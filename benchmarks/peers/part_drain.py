"""Draining a backlog: through Spark from a queue, a plain Delta table and Kafka, and by a Python
consumer from each broker.

The Spark sides run ``sum(crc32(value))`` over the batch in foreachBatch. spark_mq does so by
Spark's reader and through Python. The consumer of a broker is one Python process that takes the
crc32 of every value that it leased, then acks. Steady state: the median of batches after the
second.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from figures import Result
from session import session

from peers import kafka
from peers.all import BROKERS, OURS
from peers.base import Missing, Opener, read_all
from peers.mq import SYNCED
from peers.sides import Sides, table
from peers.sizes import Sizes
from peers.streams import Drained, Stores
from peers.values import values

BATCH = "spark_mq, through Python"
DELTA = "plain Delta stream, no leases"
KAFKA = "Kafka, one node, by Spark's own source"
SIDES = (OURS, BATCH, DELTA, KAFKA, *BROKERS)
STEADY, TOTAL = "steady state", "with start-up"
SURVIVES = {
    OURS: SYNCED,
    BATCH: SYNCED,
    DELTA: "what the system had written out: Hadoop does not sync local files",
    KAFKA: kafka.SURVIVES,
}


def what(kind: str, which: str) -> str:
    return f"drain, {kind}, {which}"


def figures(sizes: Sizes) -> set[str]:
    return {
        f"{what(kind, which)}: {name}"
        for kind in sizes.kinds
        for which in (STEADY, TOTAL)
        for name in SIDES
    }


def run(folder: Path, rounds: int, sizes: Sizes) -> Iterator[Result]:
    """All sides in turn. ``rounds`` counts for nothing: see ``Sizes.drain_rounds``."""
    for kind in sizes.kinds:
        steady: dict[str, list[float] | Missing] = {}
        total: dict[str, list[float] | Missing] = {}
        survives = dict(SURVIVES)
        with (
            tempfile.TemporaryDirectory(dir=folder) as place,
            session(Path(place)) as spark,
            contextlib.ExitStack() as servers,
        ):
            broker = None
            try:
                broker = servers.enter_context(kafka.server())
            except Missing as why:
                steady[KAFKA] = total[KAFKA] = why
            stores = Stores(spark, Path(place) / "stores", kind, sizes.drain_batch, kafka=broker)
            stores.fill(sizes.drain)
            streams: dict[str, Callable[[], Drained]] = {
                OURS: stores.from_queue,
                BATCH: partial(stores.from_queue, narrow=True),
                DELTA: stores.from_delta,
            }
            if broker:
                streams[KAFKA] = stores.from_kafka
            checksums = set()
            for number in range(sizes.drain_rounds):
                for name in list(streams)[:: -1 if number % 2 else 1]:  # none is always the first
                    drained = streams[name]()
                    checksums.add(drained.checksum)
                    note(steady, name, sizes.drain_batch / statistics.median(drained.steady()))
                    note(total, name, sizes.drain / drained.seconds)
            assert len(checksums) == 1, "the sides read different messages"
        for _ in range(sizes.drain_rounds):
            for name, opener in BROKERS.items():
                try:
                    with tempfile.TemporaryDirectory(dir=folder) as place:
                        batches, seconds, survives[name] = drain(
                            opener, Path(place), kind, sizes.brokers, sizes.brokers_batch
                        )
                except Missing as why:
                    steady[name] = total[name] = why
                else:
                    note(steady, name, sizes.brokers_batch / statistics.median(batches[2:]))
                    note(total, name, sizes.brokers / seconds)
        yield from table(what(kind, STEADY), in_order(steady), "/s", survives)
        yield from table(what(kind, TOTAL), in_order(total), "/s", survives)


def note(sides: dict[str, list[float] | Missing], name: str, value: float) -> None:
    side = sides.setdefault(name, [])
    if not isinstance(side, Missing):
        side.append(value)


def in_order(sides: Sides) -> Sides:
    return {name: sides[name] for name in SIDES}


def drain(
    opener: Opener, folder: Path, kind: str, count: int, batch: int
) -> tuple[list[float], float, str]:
    """Seconds of each batch and of all, by one Python consumer; and what a power cut leaves."""
    with opener(folder) as peer:
        messages = values(kind, count)
        peer.fill(messages)
        expected = read_all(messages)
        del messages
        took, checksum, begin = [], 0, time.perf_counter()
        start = begin
        while leased := peer.lease(batch):
            checksum += read_all(leased.read())
            peer.ack(leased)
            took.append(time.perf_counter() - start)
            start = time.perf_counter()
        assert checksum == expected, "it gave other messages than it took"
        return took, start - begin, peer.survives
