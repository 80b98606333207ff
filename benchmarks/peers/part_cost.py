"""What a lease and an ack cost, beside tables with one row a message, whose rows they rewrite: with
backlogs of several sizes.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Result
from session import session

from peers import mq, rows_delta_rs, rows_merge
from peers.all import OURS, ROWS, ROWS_MERGE, ROWS_VECTORS
from peers.sides import table
from peers.sizes import Sizes
from peers.values import values

KIND = "1 KB"
FILL = 50_000


def what(verb: str, batch: int, backlog: int) -> str:
    return f"{verb} of {batch:,}, backlog {backlog:,}, p50"


def sides(sizes: Sizes) -> tuple[str, ...]:
    return (OURS, ROWS, ROWS_MERGE, *([ROWS_VECTORS] if sizes.deletion_vectors else []))


def figures(sizes: Sizes) -> set[str]:
    return {
        f"{what(verb, sizes.cost_batch, backlog)}: {name}"
        for verb in ("lease", "ack")
        for backlog in sizes.backlogs
        for name in sides(sizes)
    }


def run(folder: Path, rounds: int, sizes: Sizes) -> Iterator[Result]:
    """All sides in turn. ``rounds`` counts for nothing: see ``Sizes.cost_rounds``."""
    batch = sizes.cost_batch
    for backlog in sizes.backlogs:
        leases: dict[str, list[float]] = {name: [] for name in sides(sizes)}
        acks: dict[str, list[float]] = {name: [] for name in sides(sizes)}
        with (
            tempfile.TemporaryDirectory(dir=folder) as place,
            session(Path(place)) as spark,
            contextlib.ExitStack() as stack,
        ):
            openers = {
                OURS: mq.opener(),
                ROWS: rows_delta_rs.opener(),
                ROWS_MERGE: rows_merge.opener(spark, vectors=False),
                ROWS_VECTORS: rows_merge.opener(spark, vectors=True),
            }
            peers = {
                name: stack.enter_context(openers[name](Path(place) / str(at)))
                for at, name in enumerate(sides(sizes))
            }
            for first in range(0, backlog, FILL):
                some = values(KIND, min(FILL, backlog - first))
                for peer in peers.values():
                    peer.fill(some)
            for number in range(sizes.cost_rounds + sizes.cost_warm_up):
                for name, peer in peers.items():
                    start = time.perf_counter()
                    leased = peer.lease(batch)
                    middle = time.perf_counter()
                    assert leased is not None
                    assert len(leased.read()) == batch, f"{name} leased other than {batch}"
                    again = time.perf_counter()
                    peer.ack(leased)
                    end = time.perf_counter()
                    if number >= sizes.cost_warm_up:
                        leases[name].append((middle - start) * 1000)
                        acks[name].append((end - again) * 1000)
            survives = {name: peer.survives for name, peer in peers.items()}
        yield from table(what("lease", batch, backlog), leases, "ms", survives, {OURS: "< 15 ms"})
        yield from table(what("ack", batch, backlog), acks, "ms", survives, {OURS: "< 15 ms"})
