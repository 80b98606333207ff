"""Measure a shadow replay beside the same handler over a plain read of the same files.

Each way runs in a process of its own, in turn, so that its peak of memory is its own.

    python benchmarks/shadow_replay.py --messages 1000000
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from spark_mq import Lease, Queue, ReceivedMessage

_FILE: Final = 10_000  # messages of a publish, and of a lease that settles them
_BAD: Final = 100  # each so many-th message is rejected, and fails again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=200, help="of a payload, about")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "queue")
        in_a_process(fill, path, given.messages, given.bytes)
        found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in WAYS}
        for _ in range(given.rounds):
            for name in WAYS:
                found[name].append(measured(name, path, given.messages))
                print(name, *found[name][-1], file=sys.stderr, flush=True)
    base = statistics.median(cpu for _, cpu, _ in found["plain read"])
    for name, runs in found.items():
        seconds, cpu, peak = (statistics.median(column) for column in zip(*runs, strict=True))
        micros = cpu / given.messages * 1e6
        print(
            f"{name}: {seconds:.1f} s, {cpu:.1f} s of the processor, {cpu / base:.2f}x, "
            f"{micros:.0f} us a message, {peak / 2**10:.0f} MB"
        )


def fill(path: str, messages: int, size: int) -> None:
    """Publish messages, and settle each."""
    queue = Queue.create(path, durable=False)
    group = queue.group("billing")
    for start in range(0, messages, _FILE):
        count = min(_FILE, messages - start)
        queue.publish([payload(start + at, size) for at in range(count)])
        lease = group.lease("w", max_messages=count)
        assert lease is not None
        bad = [one.sequence for at, one in enumerate(lease.messages) if not at % _BAD]
        lease.reject(bad, error="no total")
        lease.ack()
    queue.sweep()


def payload(number: int, size: int) -> str:
    order = {"id": number, "customer": f"c{number % 997}", "items": ["x" * max(0, size - 60)]}
    return json.dumps(order if not number % _BAD else {**order, "total": number})


def work(value: bytes) -> None:
    if "total" not in json.loads(value):
        raise ValueError("no total")


def plain_read(path: str) -> int:
    """Read the files as anybody can, without outcomes, and count the failures."""
    done = failed = 0
    for file in sorted(Path(path, "messages").glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=5_000):
            for row in batch.to_pylist():
                done += 1
                try:
                    work(row["value"])
                except ValueError:
                    failed += 1
    return done


def by_message(path: str) -> int:
    def handler(message: ReceivedMessage) -> None:
        work(message.value)

    return replayed(path, handler, mode="message")


def by_batch(path: str) -> int:
    def handler(lease: Lease) -> list[dict[str, Any]]:
        rows = []
        for message in lease.messages:
            try:
                work(message.value)
            except ValueError as error:
                rows.append({"sequence": message.sequence, "outcome": "nack", "error": str(error)})
        return rows

    return replayed(path, handler, max_messages=1_000)


def replayed(path: str, handler: Callable[[Any], Any], **options: Any) -> int:
    report = Queue.open(path).replay(handler, "billing", **options)
    assert not report.is_worse, str(report)
    assert report.summary.same == report.summary.replayed, str(report)
    return report.summary.replayed


WAYS: Final[dict[str, Callable[[str], int]]] = {
    "plain read": plain_read,
    'replay, mode="message"': by_message,
    'replay, mode="batch" of 1,000': by_batch,
}


def measured(name: str, path: str, messages: int) -> tuple[float, float, int]:
    """Return a way's seconds, those of the processor, and its peak of memory in KiB."""
    done, *measures = in_a_process(run, name, path)
    assert done == messages, (name, done)
    seconds, cpu, peak = measures
    return seconds, cpu, peak


def run(name: str, path: str) -> tuple[int, float, float, int]:
    begin, cpu = time.perf_counter(), time.process_time()
    done = WAYS[name](path)
    return done, time.perf_counter() - begin, time.process_time() - cpu, peak_memory()


def peak_memory() -> int:
    """Return the peak of this process in KiB. That of getrusage has its parent's, too."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))


def in_a_process(call: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


if __name__ == "__main__":
    main()
