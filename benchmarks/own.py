"""What spark_mq's own operations cost: commits, settling beside a handler, the
buffered publisher.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from commit_path import commit_path
from curves.commits import Times, cycle
from figures import Part, Result
from publish_to_handler import publish_to_handler
from session import session
from single_messages import single_messages

from spark_mq import Message, Queue

__all__ = ["PARTS"]


def commits(folder: Path, rounds: int) -> Iterator[Result]:
    """One lease and one ack, each one commit, for batches of 1,000 and of 300,000 messages, taken
    in turn.
    """
    sizes = (1_000, 300_000)
    queue = Queue.create(folder / "commits", visibility_timeout="10m")
    rows = 300_000
    values = pa.table({"value": pa.array([b"x" * 20] * rows, pa.binary())})
    for _ in range(-(-(rounds + 2) * sum(sizes) // rows)):
        queue.publish(values)
    group = queue.group("bench")
    times: dict[int, Times] = {size: {"lease": [], "ack": []} for size in sizes}
    version = group.ensure()._context.ledgers.version()  # type: ignore[attr-defined]
    for number in range(rounds + 2):
        for size in sizes:
            cycle(group, size, times[size] if number >= 2 else None)
    made = queue._context.ledgers.version() - version  # type: ignore[attr-defined]
    assert made == (rounds + 2) * len(sizes) * 2, f"{made} commits"
    small, large = sizes
    for name in ("lease", "ack"):
        base, value = (statistics.median(times[size][name]) for size in sizes)
        yield Result(f"{name}, {small:,} messages, p50", base, "ms")
        yield Result(
            f"{name}, {large:,} messages, p50",
            value,
            "ms",
            f"{value / base:.2f}x of {small:,}",
            "< 30 ms, the same",
        )


def micro_batch(folder: Path, rounds: int) -> Iterator[Result]:
    """What settling adds to a micro-batch of 10,000: the time of the foreachBatch function less
    that of the handler.
    """
    with session(folder) as spark:
        yield from _micro_batch(spark, folder, rounds)


def _micro_batch(spark: Any, folder: Path, rounds: int) -> Iterator[Result]:
    queue = Queue.create(folder / "stream")
    queue.publish(pa.table({"value": pa.array([b"x" * 1000] * 10_000 * (rounds + 2), pa.binary())}))
    group = queue.group("bench")
    inside: list[float] = []
    whole: list[float] = []

    def process(batch: Any, lease: Any) -> None:
        start = time.perf_counter()
        batch.selectExpr("sum(length(value))").collect()
        inside.append((time.perf_counter() - start) * 1000)

    settle = group.for_each_batch(process)

    def timed(batch: Any, batch_id: int) -> None:
        start = time.perf_counter()
        settle(batch, batch_id)
        whole.append((time.perf_counter() - start) * 1000)

    stream = (
        spark.readStream.format("spark_mq")
        .option("consumerGroup", "bench")
        .option("maxMessagesPerTrigger", 10_000)
        .load(queue.path)
    )
    query = (
        stream.writeStream.foreachBatch(timed)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.awaitTermination()
    added = [all_ - own for all_, own in zip(whole, inside, strict=True)]
    assert len(added) == rounds + 2
    assert group.stats().acked == 10_000 * (rounds + 2)
    handler, first, later = statistics.median(inside[2:]), added[0], statistics.median(added[2:])
    yield Result("micro-batch of 10,000: the handler alone, p50", handler, "ms")
    yield Result(
        "micro-batch of 10,000: settling adds, p50",
        later,
        "ms",
        f"{later / handler:.2f}x of the handler",
        "< 100 ms",
    )
    yield Result(
        "micro-batch of 10,000: settling adds to the first batch of a run",
        first,
        "ms",
        "the runner is learned from Spark's plan",
    )


def buffered(folder: Path, rounds: int) -> Iterator[Result]:
    """Single messages of 100 bytes, handed in by one thread, until all are durable."""
    queue = Queue.create(folder / "buffered")
    count = 10_000 * rounds
    for kind, message in (
        ("bytes", b"x" * 100),
        ("Message with a key", Message(b"x" * 100, key="k")),
    ):
        start = time.perf_counter()
        with queue.publisher() as publisher:
            for _ in range(count):
                publisher.publish(message)
        yield Result(
            f"buffered publisher, {kind}",
            count / (time.perf_counter() - start),
            "/s",
        )


PARTS: dict[str, Part] = {
    "commits": commits,
    "commit-path": commit_path,
    "single-messages": single_messages,
    "buffered": buffered,
    "publish-to-handler": publish_to_handler,
    "micro-batch": micro_batch,
}
