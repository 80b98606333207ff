"""Handles that act as if each were in a process or on a machine of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_mq import Queue
from spark_mq.storage.delegated_commands import Peers
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.util.fair_lock import FairLock
from support.handles import end_threads
from support.limits import Limits
from support.tables import ledgers_of

__all__ = ["end_requests", "machines", "pool", "processes", "sharing", "without_locks"]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each handle a lock of its own."""
    locks: dict[int, FairLock] = {}

    def commit_lock(table: LedgerTable) -> FairLock:
        return locks.setdefault(id(table), FairLock())

    monkeypatch.setattr(LedgerTable, "commit_lock", commit_lock)


@pytest.fixture
def machines(processes: None, monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    """Let each handle, with a lock of its own, delegate. Nobody waits for those before it."""
    monkeypatch.setattr(LedgerTable, "delegates", True)
    limits(turn_seconds=0.0)


def without_locks(patch: pytest.MonkeyPatch) -> None:
    """Let no file have a lock, as between machines and on some systems."""
    patch.setattr("spark_mq.storage.local_turn.fcntl", None)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that are waited for at the end."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def sharing(queue: Queue) -> Queue:
    """Let a handle think that others compete and delegate."""
    peers = Peers()
    peers.met()
    ledgers_of(queue).peers = peers
    return queue


def end_requests() -> None:
    """Wait until the threads have ended that look for requests, run and delete them."""
    end_threads("spark_mq requests")
