"""Compare ways to publish each message once with a plain publish, in one run.

    .venv/bin/python benchmarks/publish_once.py --rounds 5

Each round publishes the same messages in every way, one way after the other. The ratio is the time
of a message divided by that of the plain way with as many messages to a commit.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from spark_mq import Message, Queue
from spark_mq.storage.id_files import block_path, head_of

MESSAGES = 20_000
SINGLES = 300
BATCHES = 20
BATCH = 1_000
VALUE = b"x" * 100
Way = Callable[[Queue, int], None]


def one_by_one(queue: Queue, round_: int) -> None:
    for _ in range(SINGLES):
        queue.publish(VALUE)


def numbered_calls(queue: Queue, round_: int) -> None:
    for n in range(SINGLES):
        queue.publish(VALUE, producer_id="calls", producer_sequence=round_ * SINGLES + n)


def buffered(queue: Queue, round_: int) -> None:
    with queue.publisher() as publisher:
        for _ in range(MESSAGES):
            publisher.publish(VALUE)


def named(queue: Queue, round_: int) -> None:
    with queue.publisher(producer_id="named") as publisher:
        for _ in range(MESSAGES):
            publisher.publish(VALUE)


def one_by_one_with_ids(queue: Queue, round_: int) -> None:
    for n in range(SINGLES):
        queue.publish(Message(VALUE, dedup_id=f"single {round_} {n}"))


def buffered_with_ids(queue: Queue, round_: int) -> None:
    with queue.publisher() as publisher:
        for n in range(MESSAGES):
            publisher.publish(Message(VALUE, dedup_id=f"buffered {round_} {n}"))


def buffered_messages(queue: Queue, round_: int) -> None:
    with queue.publisher() as publisher:
        for n in range(MESSAGES):
            publisher.publish(Message(VALUE, message_id=f"buffered {round_} {n}"))


def tables(queue: Queue, round_: int, name: str = "message_id") -> None:
    for batch in range(BATCHES):
        ids = [f"{round_} {batch} {n}" for n in range(BATCH)]
        queue.publish(pa.table({"value": [VALUE] * BATCH, name: ids}))


def tables_with_ids(queue: Queue, round_: int) -> None:
    tables(queue, round_, "dedup_id")


WAYS: dict[str, tuple[Way, int, str]] = {
    "publish, one message": (one_by_one, SINGLES, "publish, one message"),
    "publish, one message, producer_sequence": (numbered_calls, SINGLES, "publish, one message"),
    "publisher()": (buffered, MESSAGES, "publisher()"),
    "publisher(producer_id=...)": (named, MESSAGES, "publisher()"),
    "publish, one message, dedup_id": (one_by_one_with_ids, SINGLES, "publish, one message"),
    "publisher(), message_id": (buffered_messages, MESSAGES, "publisher(), message_id"),
    "publisher(), dedup_id": (buffered_with_ids, MESSAGES, "publisher(), message_id"),
    "publish, table of 1,000, message_id": (
        tables,
        BATCHES * BATCH,
        "publish, table of 1,000, message_id",
    ),
    "publish, table of 1,000, dedup_id": (
        tables_with_ids,
        BATCHES * BATCH,
        "publish, table of 1,000, message_id",
    ),
}
"""The function, its messages, and the plain way, of each way."""


def measured(folder: Path, rounds: int) -> Iterator[tuple[str, float]]:
    """Yield the microseconds that a message takes in each way."""
    queues = {
        name: Queue.create(folder / str(at), dedup_window="1h" if "dedup" in name else None)
        for at, name in enumerate(WAYS)
    }
    for round_ in range(rounds + 1):
        for name, (publish, count, _) in WAYS.items():
            started = time.perf_counter()
            publish(queues[name], round_)
            took = time.perf_counter() - started
            if round_:  # The first one warms up.
                yield name, took / count * 1e6


def window(folder: Path, ids: int) -> None:
    """Print what a window of many ids costs."""
    queue = Queue.create(folder / "window", dedup_window="1h")
    plain = Queue.create(folder / "plain")
    for start in range(0, ids, 10_000):
        some = [str(n) for n in range(start, start + 10_000)]
        queue.publish(pa.table({"value": some, "dedup_id": some}))
    times: dict[str, list[float]] = {"plain": [], "ids": []}
    for n in range(SINGLES):
        for name, one, message in (
            ("plain", plain, "x"),
            ("ids", queue, Message("x", dedup_id=f"new {n}")),
        ):
            started = time.perf_counter()
            one.publish(message)
            times[name].append(time.perf_counter() - started)
    started = time.perf_counter()
    fresh = Queue.open(queue.path)
    fresh.publish(Message("x", dedup_id="first of a process"))
    opened = time.perf_counter() - started
    store = fresh._context.messages
    blocks = store.ids.load(head_of(store.log.state.txns)).blocks
    stored = sum(len(store.files.read(block_path(block.ref.name))) for block in blocks)
    medians = {name: statistics.median(took) * 1e3 for name, took in times.items()}
    print(
        f"window of {ids} ids: publish {medians['ids']:.2f} ms, "
        f"{medians['ids'] / medians['plain']:.2f}x; "
        f"open and publish {opened * 1e3:.0f} ms; {len(blocks)} blocks, {stored / ids:.1f} bytes "
        "an id"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, took in measured(Path(folder), parser.parse_args().rounds):
            times.setdefault(name, []).append(took)
        for ids in (10_000, 100_000, 1_000_000):
            window(Path(folder) / str(ids), ids)
    medians = {name: statistics.median(took) for name, took in times.items()}
    for name, (_, _, plain) in WAYS.items():
        ratio = medians[name] / medians[plain]
        print(f"{name:42} {medians[name]:9.2f} us a message   {ratio:5.2f}x")


if __name__ == "__main__":
    main()
