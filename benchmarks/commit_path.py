"""Compare a lease and an ack with the same change of the same ledger made by delta-rs, in one run.

Blocks of leases and acks of 100 messages take turns with blocks that replace the same rows of a
copy of the ledger's table by ``write_deltalake``. The queues are synced, and not synced. Before
each block everything is written out, because a sync also pays for what others have left unsynced.
The ratio is delta-rs's time divided by ours.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from figures import Result

from spark_mq import Queue
from spark_mq.storage.ledger_files import LEASES_SCHEMA, to_rows

WARM_UP, BLOCK = 2, 10
BARE = b"x" * 4096
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def filled(path: Path, durable: bool) -> Queue:
    queue = Queue.create(path, durable=durable)
    queue.publish(pa.table({"value": pa.array([b"x" * 100] * 100_000, pa.binary())}))
    return queue


class Copy:
    """A table as ``leases/`` is, changed by delta-rs."""

    def __init__(self, path: Path) -> None:
        self.table = DeltaTable.create(str(path), LEASES_SCHEMA, partition_by=["consumer_group"])

    def replace(self, rows: pa.Table) -> None:
        write_deltalake(
            self.table,
            rows,
            mode="overwrite",
            predicate="consumer_group = 'default'",
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=NO_HOOKS,
        )


def rounds(folder: Path, blocks: int) -> dict[str, list[float]]:
    queues = {name: filled(folder / name, name == "synced") for name in ("synced", "unsynced")}
    copy = Copy(folder / "copy")
    times: dict[str, list[float]] = {}
    rows: list[pa.Table] = []  # of the ledger of a queue after each turn of a block

    def queue_turn(name: str) -> Callable[[], dict[str, float]]:
        group = queues[name].group()

        def turn() -> dict[str, float]:
            leases: list[Any] = []
            lease = timed(lambda: leases.append(group.lease("w", max_messages=100)))
            ack = timed(leases[0].ack)
            rows.append(to_rows("default", queues[name]._context.ledgers.read("default").ledger))
            return {f"lease {name}": lease, f"ack {name}": ack}

        return turn

    def copy_turn() -> dict[str, float]:
        table, used = rows.pop(), time.process_time()
        took = timed(lambda: copy.replace(table))
        return {"delta-rs": took, "delta-rs, CPU": (time.process_time() - used) * 1e3}

    sides = [*map(queue_turn, queues), copy_turn]
    for _ in range(blocks):
        rows.clear()
        for side in sides:
            os.sync()
            for number in range(WARM_UP + BLOCK):
                for name, took in side().items():
                    if number >= WARM_UP:
                        times.setdefault(name, []).append(took)
    return times


def synced_file(folder: Path, number: int) -> None:
    """Write a new file and sync what a commit syncs, which is the file and its folder."""
    path = folder / str(number)
    file = os.open(path.with_suffix(".tmp"), os.O_CREAT | os.O_WRONLY | os.O_EXCL)
    os.write(file, BARE)
    os.fsync(file)
    os.close(file)
    os.link(path.with_suffix(".tmp"), path)
    os.unlink(path.with_suffix(".tmp"))
    place = os.open(folder, os.O_RDONLY)
    os.fsync(place)
    os.close(place)


def synced_append(file: int, number: int) -> None:
    """Write into a file that has its length, and sync it, as a database does with its log."""
    os.pwrite(file, BARE, number * len(BARE))
    os.fdatasync(file)


def bare_syncs(folder: Path, count: int) -> Iterator[Result]:
    """What the disk alone takes for a commit of ours, and for one of a database."""
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(log, 0, count * len(BARE))
    os.fsync(log)
    for name, call in (
        ("a new file and the syncs of a commit, without spark_mq", partial(synced_file, folder)),
        ("an append to a synced log, as of a database", partial(synced_append, log)),
    ):
        os.sync()
        times = [timed(partial(call, number)) for number in range(count)]
        yield Result(f"{name}, p50", statistics.median(times), "ms")
    os.close(log)


def commit_path(folder: Path, count: int) -> Iterator[Result]:
    """The part of bench.py. Its quick rounds need more than the others."""
    measured = rounds(folder, max(1, 5 * count // BLOCK))
    times = {name: statistics.median(took) for name, took in measured.items()}
    other, _ = times.pop("delta-rs"), times.pop("delta-rs, CPU")
    yield Result("the change of a lease by delta-rs, p50", other, "ms")
    for name, took in times.items():
        beside = f"{other / took:.2f}x as fast as delta-rs"
        yield Result(f"{name}, 100 messages, p50", took, "ms", beside)
    yield from bare_syncs(folder, 10 * count)
