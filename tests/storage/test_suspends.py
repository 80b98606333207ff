"""Machines that sleep while others work and a sweep cleans the logs.

The queue lies on a local disk here, and the handle that sleeps takes it for an object store.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.clocks import PAUSES, MachineClocks
from support.handles import again, housekeep, index_commits, lease
from support.limits import Limits
from support.queues import Make
from support.tables import as_in_a_store, checkpoint, ledgers_of, messages_of

from spark_mq import Message, Queue


@pytest.fixture
def queue(delta_queue: Make) -> Queue:
    return delta_queue(dedup_window="1h", visibility_timeout="12h")


def over_a_store(queue: Queue, clocks: MachineClocks | None = None) -> Queue:
    """Another handle, for which the queue is in an object store."""
    handle = as_in_a_store(again(queue))
    if clocks is not None:
        messages_of(handle).log.clock = ledgers_of(handle).log.clock = clocks.elapsed
    return handle


def others_work_and_a_sweep_cleans(queue: Queue) -> None:
    for number in range(6):
        queue.publish(Message(f"theirs {number}", dedup_id=f"theirs {number}"))
    for _ in range(6):
        lease(queue, 1, "other").ack()
    index_commits(queue)
    for table in (messages_of(queue), ledgers_of(queue)):
        checkpoint(table)
    housekeep(queue, keep_versions=0, keep_seconds=0.0)


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("dedup_id", [None, "mine"], ids=["plain", "with an id"])
def test_a_publish_after_a_suspend_across_a_cleaning_is_delivered(
    queue: Queue, pause: str, dedup_id: str | None
) -> None:
    clocks = MachineClocks()
    mine = over_a_store(queue, clocks)
    for value in "abc":
        mine.publish(Message(value, dedup_id=dedup_id and value))
    assert messages_of(mine).log.is_own_turn, "so it does not look before each commit"
    others_work_and_a_sweep_cleans(queue)
    clocks.move(*PAUSES[pause])
    receipt = mine.publish(Message("mine", dedup_id=dedup_id))
    assert receipt.version == 10
    assert lease(again(queue), 100, "fresh").messages[-1].value == b"mine"


@pytest.mark.parametrize("pause", PAUSES)
def test_an_ack_after_a_suspend_across_a_cleaning_is_kept(queue: Queue, pause: str) -> None:
    clocks = MachineClocks()
    mine = over_a_store(queue, clocks)
    mine.publish("a")
    held = lease(mine, 1)
    for _ in range(3):
        held.extend()
    assert ledgers_of(mine).log.is_own_turn, "so it does not look before each commit"
    others_work_and_a_sweep_cleans(queue)
    clocks.move(*PAUSES[pause])
    assert held.ack().settled == 1
    stats = again(queue).group().stats()
    assert (stats.acked, stats.leased) == (1, 0)


def test_a_sweep_keeps_ledger_commits_of_a_store_for_ten_minutes(
    queue: Queue, limits: Limits
) -> None:
    """A machine may be paused for so long without any of its clocks noticing it."""
    limits(ledger_versions=0)
    queue.publish([str(n) for n in range(9)])
    for _ in range(3):
        lease(queue, 1)
    checkpoint(ledgers_of(queue))
    lease(queue, 1)
    log, sweeper = Path(queue.path, "leases", "_delta_log"), over_a_store(queue)

    def kept_after(seconds: float) -> int:
        *older, latest = sorted(log.glob("*.json"))
        for commit in older:
            os.utime(commit, 2 * (latest.stat().st_mtime - seconds,))
        housekeep(sweeper)
        return len(list(log.glob("*.json")))

    assert kept_after(500) == 6
    assert kept_after(700) == 2
