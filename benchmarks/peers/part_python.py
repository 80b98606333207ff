"""One worker in Python: lease messages, read every byte of them, ack. By 1,000 and by 100."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Result

from peers.all import PYTHON
from peers.base import Missing, Peer, read_all
from peers.sides import table
from peers.sizes import Sizes
from peers.values import values

WARM_UP = 2
BLOCK = 10
"""Measured turns of a side before the next side has its own."""


def what(kind: str, batch: int) -> str:
    return f"Python, lease + read + ack of {batch:,}, {kind}"


def figures(sizes: Sizes) -> set[str]:
    return {
        f"{what(kind, batch)}: {name}"
        for kind in sizes.kinds
        for batch in sizes.python_batches
        for name in PYTHON
    }


def run(folder: Path, rounds: int, sizes: Sizes) -> Iterator[Result]:
    """All sides in turn, each with the same backlog."""
    for kind in sizes.kinds:
        for batch in sizes.python_batches:
            yield from one(folder, rounds, sizes, kind, batch)


def one(folder: Path, rounds: int, sizes: Sizes, kind: str, batch: int) -> Iterator[Result]:
    """One kind of messages, and one size of leases.

    A side works for a block of turns, as a worker does, and then the next side. The order of the
    sides changes with each block, and what a side has left unsynced is written out before the next
    one begins. Otherwise the side behind a store that syncs nothing would pay for its writes.
    """
    peers: dict[str, Peer] = {}
    sides: dict[str, list[float] | Missing] = {name: [] for name in PYTHON}
    blocks = max(1, rounds // BLOCK)
    turns = WARM_UP + rounds // blocks
    messages = values(kind, max(sizes.python, blocks * turns * batch))
    expected = [
        read_all(messages[turn * batch : (turn + 1) * batch]) for turn in range(blocks * turns)
    ]
    with contextlib.ExitStack() as stack:
        for name, opener in PYTHON.items():
            try:
                at = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
                peers[name] = stack.enter_context(opener(at))
                peers[name].fill(messages)
            except Missing as why:
                sides[name] = why
        for block in range(blocks):
            for name in list(peers)[:: -1 if block % 2 else 1]:
                os.sync()
                for turn in range(turns):
                    start = time.perf_counter()
                    checksum = once(peers[name], batch)
                    seconds = time.perf_counter() - start
                    assert checksum == expected[block * turns + turn], (
                        f"{name} gave other messages than it took"
                    )
                    side = sides[name]
                    if turn >= WARM_UP and not isinstance(side, Missing):
                        side.append(batch / seconds)
    survives = {name: peer.survives for name, peer in peers.items()}
    yield from table(what(kind, batch), sides, "/s", survives)


def once(peer: Peer, batch: int) -> int:
    """One turn of a worker; the checksum of what it read."""
    leased = peer.lease(batch)
    assert leased is not None, "it ran dry"
    checksum = read_all(leased.read())
    peer.ack(leased)
    return checksum
