"""Fragmentation: every second message of a million nacked, so that the ledger holds half a million
waiting ranges of one message each.

What a lease, its reading and its ack take before, while the ledger is in pieces, and after they
have settled.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import Point, Result, p95

from curves.made_up import fill
from spark_mq import Queue

BATCH = 1_000


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    """How long it took, and what came of it."""
    start = time.perf_counter()
    found = action()
    return time.perf_counter() - start, found


def cycles(queue: Queue, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of so many leases of BATCH, their reads and acks."""
    group = queue.group("bench")
    times: dict[str, list[float]] = {"lease": [], "read": [], "ack": []}
    for _ in range(rounds):
        took, lease = seconds(lambda: group.lease("bench", max_messages=BATCH))
        times["lease"].append(took * 1000)
        times["read"].append(seconds(lease.table)[0] * 1000)
        times["ack"].append(seconds(lease.ack)[0] * 1000)
    return times


def ledger_bytes(queue: Queue) -> int:
    """The size of the files that hold the ledgers now."""
    return sum(file.size for file in queue._context.ledgers.log.refresh().files())  # type: ignore[attr-defined]


def fragments(folder: Path, rounds: int, short: bool = False) -> Iterator[Result | Point]:
    """Lease all, nack every second by its sequence, ack the rest: then lease, and settle until all
    is done.
    """
    total = 50_000 if short else 1_000_000
    rounds = max(3, rounds // 3)
    queue = Queue.create(folder / "fragments", visibility_timeout="30m", max_delivery_attempts=None)
    fill(queue, rounds * BATCH)
    group = queue.group("bench")
    before = cycles(queue, rounds)
    fill(queue, total)
    held = group.lease("bench", max_messages=total)
    assert held is not None
    sequences = [seq for piece in queue._context.messages.index().slices(held._ranges[0].first,
        held._ranges[-1].last)
                 for seq in range(piece.first, piece.first + piece.rows)]  # fmt: skip
    holes = sequences[::2]
    nacked, _ = seconds(lambda: held.nack(holes, delay=0))
    acked, _ = seconds(held.ack)
    what = f"every second of {len(sequences):,} nacked"
    ledger = group._ledger.current()
    yield Result(f"{what}: ranges in the ledger", len(ledger), "")
    yield Result(f"{what}: size of the ledger's file", ledger_bytes(queue) / 1e6, "MB")
    yield Result(f"{what}: the nack", nacked, "s")
    yield Result(f"{what}: the ack of the rest", acked, "s")
    fill(queue, total // 10)  # and what is published meanwhile
    during = cycles(queue, rounds)
    opened, found = seconds(
        lambda: Queue.open(queue.path).group("bench").lease("other", max_messages=BATCH)
    )
    found.release()
    yield Result(f"{what}: open and first lease of a new worker", opened, "s")
    yield Result(
        f"{what}: stats()",
        statistics.median(seconds(group.stats)[0] * 1000 for _ in range(rounds)),
        "ms",
    )
    drained, _ = seconds(lambda: drain(queue, len(holes) // 10))
    yield Result(f"{what}: until all {len(holes):,} are settled, a tenth at a time", drained, "s")
    fill(queue, rounds * BATCH)
    after = cycles(queue, rounds)
    for verb in ("lease", "read", "ack"):
        base = statistics.median(before[verb])
        yield Result(f"{verb} of {BATCH:,} before, p50", base, "ms")
        value = statistics.median(during[verb])
        yield Result(
            f"{what}: {verb} of {BATCH:,}, p50", value, "ms", f"{value / base:.1f}x of before"
        )
        value = statistics.median(after[verb])
        yield Result(
            f"{verb} of {BATCH:,} after they settled, p50",
            value,
            "ms",
            f"{value / base:.2f}x of before",
            "as before",
        )
    for place, times in enumerate((before, during, after)):
        lines = {f"{verb} p50": statistics.median(ms) for verb, ms in times.items()}
        yield Point("fragmentation", place, {**lines, "lease p95": p95(times["lease"])})


def drain(queue: Queue, batch: int) -> None:
    """Leases and acks until nothing is left."""
    group = queue.group("bench")
    while (lease := group.lease("bench", max_messages=batch)) is not None:
        lease.ack()
