"""The demo's handler: a flight's delays go to a Delta table, a flight without a departure time to
the dead letters.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_mq.spark import BatchLease

SINK = os.environ.get("DEMO_SINK", "")
HOLD = os.environ.get("DEMO_HOLD", "")
"""A file: the first worker that gets to it makes it and stands still, for the demo to kill."""

FLIGHT = (
    "carrier string, flight int, origin string, dest string, dep_time int, dep_delay double, "
    "arr_delay double"
)


def process(batch: DataFrame, lease: BatchLease) -> None:
    flights = batch.select(
        "lease_id", "sequence", F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")
    )
    flights = flights.select("lease_id", "sequence", "flight.*").persist()
    try:
        lease.reject(flights.where("dep_time IS NULL"), error="no departure time")
        delays = flights.where("dep_time IS NOT NULL").select(
            "sequence", "carrier", "flight", "origin", "dest", "dep_delay", "arr_delay"
        )
        with one_at_a_time():
            # These options let Delta skip the batch if it runs again, after a crash between here
            # and its ack.
            delays.write.format("delta").mode("append").options(**lease.delta_options).save(SINK)
    finally:
        flights.unpersist()
    if HOLD:
        with suppress(FileExistsError), open(HOLD, "x") as held:
            print(lease.lease_id, end="", file=held, flush=True)
            time.sleep(600)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """On a local disk, and only there, Delta's commit is no compare-and-swap: two processes could
    overwrite each other's.
    """
    with open(f"{SINK}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
