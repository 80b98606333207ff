"""Groups that share leases between keys, and groups with a limit for each key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.having import having

from spark_mq import Lease, Message, Queue


def publish(queue: Queue, messages: int, *keys: str) -> None:
    queue.publish([Message(str(n), key=key) for n in range(messages) for key in keys])


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "queue", lanes=64)


def keys_of(lease: Lease | None) -> Counter[str | None]:
    return Counter(message.key for message in lease.messages)


def test_who_is_next_is_kept_over_handles_and_workers(queue: Queue) -> None:
    queue.group("g").configure(order="fair", weights={"gold": 3})
    publish(queue, 400, "gold", "tin")
    found = Counter[str | None]()
    for at in range(40):
        group = Queue.open(queue.path).group("g")
        lease = group.lease(f"w{at}", max_messages=10)
        found += keys_of(lease)
    assert found["gold"] == pytest.approx(300, abs=10)


def test_a_limit_by_key_is_shown(queue: Queue) -> None:
    group = queue.group("g")
    group.configure(max_in_flight_per_key=2)
    publish(queue, 5, "a", "b")
    assert keys_of(group.lease("w", max_messages=100)) == {"a": 2, "b": 2}
    assert group.blocked_because.startswith("max_in_flight_per_key: 2 leased of each key in lane")
    held = [lane for lane in group.lanes() if lane.held_by]
    why = "2 messages are leased: max_in_flight_per_key=2"
    assert held == [having(held_by="limit", held_back=3, because=why)] * 2


@pytest.mark.parametrize("until", ["empty", "settled"])
@pytest.mark.parametrize("mode", ["message", "batch"])
def test_a_worker_waits_for_its_own_messages_of_a_key(queue: Queue, mode: str, until: str) -> None:
    group = queue.group("g")
    group.configure(max_in_flight_per_key=2)
    publish(queue, 20, "a")
    assert group.work(lambda given: None, mode=mode, until=until, max_messages=50).acked == 20
