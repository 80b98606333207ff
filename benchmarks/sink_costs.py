"""Measure what a sink costs: ``lease.append`` beside ``write_deltalake``, and a fence.

Both groups lease the same messages in turn, append them to tables of their own, and ack them.

    python benchmarks/sink_costs.py --batches 100 --messages 1000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from spark_mq import ConsumerGroup, Lease, Queue

SCHEMA = pa.schema([("value", pa.binary())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--messages", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sink, plain = (str(Path(folder) / name) for name in ("sink", "plain"))
        for table in (sink, plain):
            write_deltalake(table, SCHEMA.empty_table())
        queue = Queue.create(Path(folder) / "queue", max_delivery_attempts=None)
        with_sink, without = queue.group("billing"), queue.group("mail")
        with_sink.configure(sink=sink, retry="constant", retry_delay=0)
        without.ensure()
        for _ in range(given.batches):
            queue.publish([b"x" * 100] * given.messages)

        def write(lease: Lease) -> None:
            write_deltalake(plain, rows_of(lease), mode="append")

        def append(lease: Lease) -> None:
            lease.append(rows_of(lease))

        times: dict[str, list[float]] = {"plain": [], "sink": [], "resolved": []}
        for _ in range(given.batches):
            times["plain"].append(seconds(without, given.messages, write))
            times["sink"].append(seconds(with_sink, given.messages, append))
        for _ in range(given.batches):
            queue.publish([b"x" * 100] * given.messages)
            lease = with_sink.lease("w", max_messages=given.messages)
            assert lease is not None
            lease.nack(delay=0)
            times["resolved"].append(seconds(with_sink, given.messages, append))
    middle = {name: statistics.median(found) for name, found in times.items()}
    print(f"lease, write and ack: {middle['plain'] * 1e3:.1f} ms by write_deltalake, "
          f"{middle['sink'] * 1e3:.1f} ms by lease.append: "
          f"{middle['sink'] / middle['plain']:.2f}x")  # fmt: skip
    print(f"after a failed lease, which is fenced: {middle['resolved'] * 1e3:.1f} ms, so "
          f"a fence takes {(middle['resolved'] - middle['sink']) * 1e3:.1f} ms")  # fmt: skip


def seconds(group: ConsumerGroup, messages: int, write: Callable[[Lease], None]) -> float:
    begin = time.perf_counter()
    lease = group.lease("w", max_messages=messages)
    assert lease is not None
    write(lease)
    lease.ack()
    return time.perf_counter() - begin


def rows_of(lease: Lease) -> pa.Table:
    return lease.table().select(["value"]).cast(SCHEMA)


if __name__ == "__main__":
    main()
