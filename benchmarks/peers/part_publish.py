"""Publishing: a DataFrame through Spark, single messages from Python, and buffered ones."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Result
from session import session

from peers.all import OURS, POSTGRES, PYTHON, ROWS, VALKEY
from peers.base import Missing, Peer
from peers.mq import SYNCED
from peers.sides import table
from peers.sizes import Sizes
from peers.streams import Stores
from peers.values import values

APPEND = "delta-spark append"
SIDES = [OURS, POSTGRES, VALKEY, ROWS]
WARM_UP = 2


def frame(kind: str) -> str:
    return f"publish a DataFrame, {kind}"


def single(kind: str) -> str:
    return f"publish one message, {kind}, p50"


def buffered(kind: str, batch: int) -> str:
    return f"publish by {batch:,}, {kind}"


def figures(sizes: Sizes) -> set[str]:
    return {
        f"{what}: {name}"
        for kind in sizes.kinds
        for what, sides in (
            (frame(kind), (OURS, APPEND)),
            (single(kind), SIDES),
            (buffered(kind, sizes.buffered_batch), SIDES),
        )
        for name in sides
    }


def run(folder: Path, rounds: int, sizes: Sizes) -> Iterator[Result]:
    for kind in sizes.kinds:
        yield from frames(folder, kind, sizes)
        yield from messages(folder, kind, rounds, sizes)


def frames(folder: Path, kind: str, sizes: Sizes) -> Iterator[Result]:
    """The same DataFrame by the sink and by a Delta append, in turn."""
    sides: dict[str, list[float]] = {OURS: [], APPEND: []}
    with tempfile.TemporaryDirectory(dir=folder) as place, session(Path(place)) as spark:
        stores = Stores(spark, Path(place) / "stores", kind, sizes.drain_batch)
        for number in range(sizes.publish_rounds + WARM_UP):
            ours, theirs = stores.publish(), stores.append()
            if number >= WARM_UP:
                sides[OURS].append(sizes.drain_batch / ours)
                sides[APPEND].append(sizes.drain_batch / theirs)
    survives = {
        OURS: SYNCED,
        APPEND: "what the system had written out: Hadoop does not sync local files",
    }
    yield from table(frame(kind), sides, "/s", survives, {APPEND: ">= 1.0x"})


def messages(folder: Path, kind: str, rounds: int, sizes: Sizes) -> Iterator[Result]:
    """Single and buffered messages, all sides in turn."""
    each: dict[str, list[float] | Missing] = {name: [] for name in SIDES}
    many: dict[str, list[float] | Missing] = {name: [] for name in SIDES}
    peers: dict[str, Peer] = {}
    all_values = values(kind, sizes.buffered)
    with contextlib.ExitStack() as stack:
        for name in SIDES:
            try:
                peers[name] = stack.enter_context(
                    PYTHON[name](Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder))))
                )
            except Missing as why:
                each[name] = many[name] = why
        for number in range(rounds + WARM_UP):
            for name, peer in peers.items():
                start = time.perf_counter()
                peer.publish(all_values[number % len(all_values)])
                seconds, side = time.perf_counter() - start, each[name]
                if number >= WARM_UP and not isinstance(side, Missing):
                    side.append(seconds * 1000)
        for _ in range(min(3, sizes.publish_rounds)):
            for name, peer in peers.items():
                start = time.perf_counter()
                peer.publish_all(all_values, sizes.buffered_batch)
                seconds, side = time.perf_counter() - start, many[name]
                if not isinstance(side, Missing):
                    side.append(len(all_values) / seconds)
    survives = {name: peer.survives for name, peer in peers.items()}
    yield from table(single(kind), each, "ms", survives, {OURS: "< 10 ms"})
    yield from table(
        buffered(kind, sizes.buffered_batch), many, "/s", survives, {OURS: "> 50,000 /s"}
    )
