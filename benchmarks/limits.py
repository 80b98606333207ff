"""Measure what a process needs at the limits: many groups, queues, dead letters, commits.

    # p50 of a lease and an ack, descriptors
    .venv/bin/python benchmarks/limits.py groups 1 560 10000
    .venv/bin/python benchmarks/limits.py queues 1000            # descriptors of many queues
    .venv/bin/python benchmarks/limits.py dead 300000 1024       # memory of routing and redrive
    # commits ever and retained: memory, time to open
    .venv/bin/python benchmarks/limits.py index 10000000 100000

Descriptors are limited to 1,024. Memory is in MB, that of a process of its own for each step.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq import Queue
from spark_mq.delta.tables import write_checkpoint
from spark_mq.ledger.message_index import DataFile, sequence

ROUNDS = 100
COMMIT_BYTES = 20_000_000
SWEEP_COMMITS = 1_000_000


def used(name: str) -> int:
    """Return memory of this process in MB. VmRSS: now. VmHWM: at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name + ":"))) // 1024


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def p50(queue: Queue, group: str) -> str:
    leases, acks = [], []
    for _ in range(ROUNDS):
        queue.publish(b"x")
        taken: list = []
        leases.append(timed(lambda taken=taken: taken.append(queue.group(group).lease("w"))))
        acks.append(timed(taken[0].ack))
    lease, ack = (statistics.median(times) * 1e3 for times in (leases, acks))
    return f"lease {lease:.2f} ms, ack {ack:.2f} ms"


def groups(folder: Path, *counts: int) -> None:
    queue, made = Queue.create(folder / "queue", durable=False), 0
    queue.publish([b"x"] * 10)
    for count in counts:
        started = time.perf_counter()
        first = made
        while made < count:
            queue.group(f"g{made}").lease("w")
            made += 1
        each = (time.perf_counter() - started) / max(1, made - first) * 1e3
        print(f"{count} groups: {p50(queue, 'g0')}; {each:.1f} ms to make a group and lease; "
              f"{descriptors()} descriptors, {used('VmHWM')} MB", flush=True)  # fmt: skip
    for name in ("first", "second", "third"):
        seconds = timed(queue.sweep)
        print(f"{name} sweep: {seconds:.1f} s, {seconds / made * 1e3:.2f} ms a group, "
              f"{used('VmHWM')} MB", flush=True)  # fmt: skip


def queues(folder: Path, count: int) -> None:
    all_queues = []
    for number in range(count):
        queue = Queue.create(folder / f"q{number}", durable=False)
        queue.publish([b"x"] * 3)
        all_queues.append(queue)
    for queue in all_queues:
        lease = queue.group().lease("w")
        assert lease is not None
        assert lease.messages
        lease.ack()
    seconds = timed(lambda: [queue.sweep() for queue in all_queues])
    print(f"{count} queues: {descriptors()} descriptors, {used('VmHWM')} MB; "
          f"{seconds / count * 1e3:.0f} ms a sweep")  # fmt: skip


def step(name: str, *arguments: object) -> None:
    """Run one step in a process of its own."""
    command = [sys.executable, __file__, f"step-{name}", *map(str, arguments)]
    subprocess.run(command, check=True)


def dead(folder: Path, count: int, size: int) -> None:
    queue = Queue.create(folder / "queue", durable=False)
    with open("/dev/urandom", "rb") as random:
        for rows in parts(count, COMMIT_BYTES // size):
            values = [random.read(size) for _ in range(rows)]
            queue.publish(pa.table({"value": pa.array(values, pa.binary())}))
    while (lease := queue.group().lease("w", max_messages=10**6)) is not None:
        lease.reject(error="no")
    for name in ("sweep", "redrive"):
        step(name, folder / "queue")


def parts(count: int, most: int) -> Iterator[int]:
    for start in range(0, count, most):
        yield min(most, count - start)


def measured(path: str, call: Callable[[Queue], object]) -> None:
    queue, before = Queue.open(path), used("VmRSS")
    found: list = []
    seconds = timed(lambda: found.append(call(queue)))
    print(f"{found[0]}: {seconds:.1f} s, at most {used('VmHWM')} MB, {before} before", flush=True)


def index(folder: Path, ever: int, retained: int) -> None:
    step("fill", folder / "queue", ever, retained)
    for _ in range(3):
        step("open", folder / "queue")


def fill(path: str, ever: int, retained: int) -> None:
    """Make the tables of a queue with so many commits, of which the last ones are retained.

    The index is written by the product, a million commits at a time, as sweeps do. The log gets a
    checkpoint of the retained files, as the product leaves it after its cleaning.
    """
    queue = Queue.create(path, durable=False)
    messages = queue._context.messages
    queue.publish(b"x")
    one = messages.index().files[0]
    published = messages.published()
    for start in range(2, ever, SWEEP_COMMITS):
        stop = min(ever, start + SWEEP_COMMITS)
        for number in range(start, stop):
            name = f"part-{number:032x}-0000.parquet"
            file = DataFile(sequence(number, 0), 1, name, one.size, one.committed_at)
            published.index.extend([file], number)
        messages.commits.append(messages.table_id, published, 0)
        published.forget(sequence(stop - retained, 0) - 1)
        messages.commits.append(messages.table_id, published, 0)
        print(f"{stop} commits: {used('VmHWM')} MB at most", flush=True)
    write_log(Path(messages.path), [file.path for file in published.index.files], ever - 1, one)
    (Path(messages.path) / one.path).rename(Path(messages.path) / published.index.files[-1].path)


def write_log(table: Path, paths: list[str], version: int, one: DataFile) -> None:
    log = table / "_delta_log"
    write_checkpoint(Queue.open(table.parent)._context.messages.files)
    (old,) = log.glob("*.checkpoint.parquet")
    rows = pq.read_table(old)
    others = [row for row in rows.to_pylist() if row["add"] is None]
    (add,) = (row["add"] for row in rows.to_pylist() if row["add"] is not None)
    adds = [{"add": {**add, "path": path}} for path in paths]
    whole = pa.Table.from_pylist([*others, *adds], schema=rows.schema)
    pq.write_table(whole, log / f"{version:020d}.checkpoint.parquet")
    old.unlink()
    for commit in log.glob("*.json"):
        commit.unlink()
    action = {"path": paths[-1], "partitionValues": {}, "size": one.size, "modificationTime": 1,
              "dataChange": True, "stats": json.dumps({"numRecords": 1})}  # fmt: skip
    text = json.dumps({"commitInfo": {"timestamp": 1}}) + "\n" + json.dumps({"add": action})
    (log / f"{version:020d}.json").write_text(text)
    hint = {"version": version, "size": whole.num_rows}
    (log / "_last_checkpoint").write_text(json.dumps(hint))


def opened(path: str) -> None:
    before = used("VmRSS")
    found: list = []

    def look() -> None:
        queue = Queue.open(path)
        queue.publish(b"new")
        found.append(queue._context.messages.index())

    seconds = timed(look)
    files, total = len(found[0].files), found[0].total
    print(f"{total} messages ever, {files} files retained: opened in {seconds:.2f} s, "
          f"{used('VmRSS')} MB, at most {used('VmHWM')} MB, {before} before",
          flush=True)  # fmt: skip


STEPS: dict[str, Callable[..., None]] = {
    "step-sweep": lambda path: measured(path, lambda queue: queue.sweep()),
    "step-redrive": lambda path: measured(path, lambda queue: queue.redrive()),
    "step-fill": lambda path, ever, retained: fill(path, int(ever), int(retained)),
    "step-open": opened,
}
PARTS: dict[str, Callable[..., None]] = {
    "groups": groups, "queues": queues, "dead": dead, "index": index,
}  # fmt: skip


def main(name: str, *arguments: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    if name in STEPS:
        STEPS[name](*arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        PARTS[name](Path(folder), *map(int, arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
