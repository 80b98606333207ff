"""Compare a lease and an ack with the same change of the same ledger made by delta-rs, in one run.

Each round leases and acks 100 messages of a queue, synced and not synced, and then replaces the
same rows of a copy of the ledger's table by ``write_deltalake`` twice. The ratio is delta-rs's time
divided by ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from figures import Result

from spark_mq import Queue
from spark_mq.storage.ledger_files import LEASES_SCHEMA, to_rows

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


def rounds(folder: Path, count: int) -> dict[str, list[float]]:
    queues = {name: filled(folder / name, name == "synced") for name in ("synced", "unsynced")}
    copy = Copy(folder / "copy")
    times: dict[str, list[float]] = {}

    def note(name: str, took: float) -> None:
        times.setdefault(name, []).append(took)

    for number in range(count + 5):
        for name, queue in queues.items():
            group = queue.group()
            taken: list = []
            lease = timed(
                lambda group=group, taken=taken: taken.append(group.lease("w", max_messages=100))
            )
            ack = timed(taken[0].ack)
            if number >= 5:
                note(f"lease {name}", lease)
                note(f"ack {name}", ack)
        rows = to_rows("default", queues["synced"]._context.ledgers.read("default").ledger)
        used = time.process_time()
        change = timed(lambda rows=rows: copy.replace(rows))
        used = (time.process_time() - used) * 1e3
        if number >= 5:
            note("delta-rs", change)
            note("delta-rs, CPU", used)
    return times


def commit_path(folder: Path, count: int) -> Iterator[Result]:
    """The part of bench.py. Its quick rounds need more than the others."""
    times = {name: statistics.median(took) for name, took in rounds(folder, 5 * count).items()}
    other, _ = times.pop("delta-rs"), times.pop("delta-rs, CPU")
    yield Result("the change of a lease by delta-rs, p50", other, "ms")
    for name, took in times.items():
        goal = {"lease synced": "8x", "ack synced": "10x"}.get(name, "5x")
        beside = f"{other / took:.2f}x as fast as delta-rs"
        yield Result(f"{name}, 100 messages, p50", took, "ms", beside, goal)
