"""A stream over a real S3 server (versitygw) with the latency of S3, beside a plain Delta stream
over the same store, and what a micro-batch costs there beyond what Spark itself takes.

It has a process of its own, because a JVM that runs already takes no S3A.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from figures import Point, Result
from peers.all import OURS
from peers.base import Missing
from peers.part_drain import DELTA, STEADY
from peers.streams import Drained, Stores
from session import SETTINGS
from store_proxy import delayed

from curves.latency import Memory, beyond_spark
from curves.s3 import AT, LATENCY
from spark_mq import Queue, spark

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from support.processes import SPAWN
from support.spark_session import s3_settings
from support.stores import STORES, versitygw

KIND = "1 KB"
BATCH, BATCHES, ROUNDS = 20_000, 7, 2


def s3_stream(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """``folder`` is not used, because the process has one of its own."""
    if not (STORES / "versitygw").exists():
        raise Missing("no S3 server: run scripts/install-store versitygw")
    with ProcessPoolExecutor(1, SPAWN) as pool:
        yield from pool.submit(_measured, max(4, rounds // 3), short).result()


def _measured(rounds: int, short: bool) -> list[Result | Point]:
    with (
        tempfile.TemporaryDirectory() as folder,
        versitygw() as store,
        delayed(store.url, LATENCY) as url,
    ):
        options = store.options_at(url)
        started = spark.session(
            "spark_mq benchmarks", {**SETTINGS, **s3_settings(options)}, delta=True, quiet=True
        )
        try:
            started.sparkContext.setLogLevel("ERROR")
            started.dataSource.register(Memory)
            batch = BATCH // 10 if short else BATCH
            stores = Stores(
                started, Path(folder), KIND, batch, root=store.new_path(), storage_options=options
            )
            stores.fill(batch * (4 if short else BATCHES))
            results: list[Result | Point] = list(_drains(stores, 1 if short else ROUNDS))
            queue = Queue.create(store.new_path(), storage_options=options)
            results += beyond_spark(started, Path(folder), [queue], rounds, f"{AT}, ")
            return results
        finally:
            started.stop()


def _drains(stores: Stores, rounds: int) -> Iterator[Result]:
    sides = {OURS: stores.from_queue, DELTA: stores.from_delta}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            drained: Drained = sides[name]()
            rates[name].append(stores.batch / statistics.median(drained.steady()))
    for name, each in rates.items():
        yield Result(f"{AT}, drain, {KIND}, {STEADY}: {name}", statistics.median(each), "/s")
