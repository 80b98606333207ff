"""How much is measured: all of it, or just so much that every figure is there."""

from __future__ import annotations

from dataclasses import dataclass

from peers.values import KINDS


@dataclass(frozen=True)
class Sizes:
    """Numbers of messages, unless it says otherwise.

    Rounds are those of what takes seconds; quick figures take ``--rounds``.
    """

    kinds: tuple[str, ...] = KINDS
    drain: int = 2_400_000
    drain_batch: int = 200_000
    drain_rounds: int = 3
    brokers: int = 400_000
    brokers_batch: int = 10_000
    python: int = 100_000
    python_batches: tuple[int, ...] = (1_000, 100)
    processes: int = 8
    process_messages: tuple[int, ...] = (200_000, 60_000)
    """For each of `python_batches`."""
    process_rounds: int = 3
    publish_rounds: int = 7
    buffered: int = 100_000
    buffered_batch: int = 1_000


SHORT = Sizes(
    kinds=KINDS[:1], drain=80_000, drain_batch=20_000, drain_rounds=1, brokers=40_000,
    python=15_000, process_messages=(20_000, 4_000), process_rounds=1, publish_rounds=2,
    buffered=10_000,
)  # fmt: skip
