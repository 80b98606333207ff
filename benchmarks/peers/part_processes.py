"""Several workers in Python at once, each a process: lease messages, read every byte of them, ack.

They drain a backlog. It counts from when each of them has done one lease until the last one finds
nothing more.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import Result

from peers.all import OURS, PGMQ, PYTHON
from peers.base import Missing, Opener, Peer, read_all
from peers.sides import table
from peers.sizes import Sizes
from peers.values import values

SIDES = (OURS, PGMQ)
DEADLINE = 300.0


def what(sizes: Sizes, kind: str, batch: int) -> str:
    return f"Python, {sizes.processes} processes, lease + read + ack of {batch:,}, {kind}"


def figures(sizes: Sizes) -> set[str]:
    return {
        f"{what(sizes, kind, batch)}: {name}"
        for kind in sizes.kinds
        for batch in sizes.python_batches
        for name in SIDES
    }


def run(folder: Path, rounds: int, sizes: Sizes) -> Iterator[Result]:
    """All sides in turn. ``rounds`` counts for nothing: see ``Sizes.process_rounds``."""
    for kind in sizes.kinds:
        for batch, count in zip(sizes.python_batches, sizes.process_messages, strict=True):
            rates: dict[str, list[float] | Missing] = {name: [] for name in SIDES}
            survives: dict[str, str] = {}
            messages = values(kind, count)
            for number in range(sizes.process_rounds):
                for name in SIDES[:: -1 if number % 2 else 1]:  # none is always the first
                    side = rates[name]
                    if isinstance(side, Missing):
                        continue
                    try:
                        with tempfile.TemporaryDirectory(dir=folder) as at:
                            seconds, survives[name] = drained(
                                PYTHON[name], Path(at), messages, batch, sizes.processes
                            )
                        side.append((len(messages) - sizes.processes * batch) / seconds)
                    except Missing as why:
                        rates[name] = why
            yield from table(what(sizes, kind, batch), rates, "/s", survives)


def drained(
    opener: Opener, folder: Path, messages: list[bytes], batch: int, processes: int
) -> tuple[float, str]:
    """Return the seconds that the processes took, and what a power cut would leave."""
    context = multiprocessing.get_context("spawn")
    begin, ended = context.Barrier(processes + 1), context.Queue()
    with opener(folder) as peer:
        peer.fill(messages)
        workers = [
            context.Process(target=drain, args=(peer.joined(), batch, begin, ended))
            for _ in range(processes)
        ]
        for worker in workers:
            worker.start()
        begin.wait(DEADLINE)
        started = time.monotonic()
        each = [ended.get(timeout=DEADLINE) for _ in workers]
        for worker in workers:
            worker.join(DEADLINE)
        assert sum(count for count, _, _ in each) == len(messages), (
            "some are missing, or came twice"
        )
        assert sum(checksum for _, checksum, _ in each) == read_all(messages)
        return max(at for _, _, at in each) - started, peer.survives


def drain(join: Callable[[], Peer], batch: int, begin: Any, ended: Any) -> None:
    """Work until nothing is left. Tell how many messages it was, their checksum, and when."""
    peer, count, checksum = join(), 0, 0
    while (leased := peer.lease(batch)) is not None:
        read = leased.read()
        first, count, checksum = not count, count + len(read), checksum + read_all(read)
        peer.ack(leased)
        if first:
            begin.wait(DEADLINE)
    ended.put((count, checksum, time.monotonic()))
