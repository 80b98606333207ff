"""Ids that count until their message is settled or leased, not only for a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.byte_store import ByteStore
from support.handles import again, lease, on_commit
from support.limits import Limits
from support.queues import Make
from support.tables import messages_of

from spark_mq import Message, PublishReceipt, Queue
from spark_mq.errors import CorruptLog
from spark_mq.testing import ManualClock


@pytest.fixture
def queue(make: Make) -> Queue:
    """A queue with a group whose ids count until their message is settled."""
    queue = make(dedup_until="settled", retention="0s")
    queue.group().ensure()
    return queue


def publish(queue: Queue, *ids: str, **options: Any) -> PublishReceipt:
    return queue.publish([Message(f"value of {one}", dedup_id=one, **options) for one in ids])


def holds(queue: Queue, one: str = "a") -> bool:
    """Publish the id, and return whether the receipt names another message."""
    receipt = publish(again(queue), one)
    assert len(receipt.duplicate_of) == receipt.duplicate
    return receipt.duplicate


def ids_kept(queue: Queue) -> int:
    messages = messages_of(queue)
    blocks = messages.load_ids(messages.log.refresh()).blocks
    return sum(block.ref.count for block in blocks)


# -- until it is settled


def test_an_id_is_free_once_its_message_has_expired(queue: Queue, clock: ManualClock) -> None:
    publish(queue, "a", expires_at="1h")
    clock.advance("2h")
    assert not holds(queue)


def test_without_a_group_an_id_counts_until_its_message_is_dropped(queue: Queue) -> None:
    queue.drop_group("default")
    publish(queue, "a")
    assert holds(queue)
    queue.purge(queue.name)
    assert not holds(queue)


def test_a_window_counts_beside_it(make: Make, clock: ManualClock) -> None:
    """So a publish that is repeated after its message was settled finds it."""
    queue = make(dedup_until="settled", dedup_window="1h")
    queue.group().ensure()
    publish(queue, "a")
    lease(queue).ack()
    assert holds(queue)
    publish(queue, "b")
    clock.advance("2h")
    assert not holds(queue)
    assert holds(queue, "b")


# -- races and crashes


def test_a_rival_between_the_look_and_the_commit_is_met(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(queue, "a")
    lease(queue).ack()
    rival, receipts = again(queue), list[PublishReceipt]()
    on_commit(monkeypatch, "messages", before=lambda: receipts.append(publish(rival, "a")))
    assert publish(queue, "a").duplicate_of == {0: receipts[0].sequences[0]}
    assert len(lease(queue).messages) == 1


# -- what it costs


def test_a_publish_that_meets_no_id_reads_no_ledger(queue: Queue, byte_store: ByteStore) -> None:
    publish(queue, "a")
    calls = byte_store.paths("read", "open", "exists", "list", "stat", of="leases")
    queue.publish("no id")
    publish(queue, "b")
    assert calls == []
    publish(queue, "a")
    assert len(calls) == len(set(calls)) > 0, "it looks once"


def test_ids_are_kept_as_long_as_they_are_held_and_no_longer(queue: Queue, limits: Limits) -> None:
    limits(ask_ids=8)
    publish(queue, "stays", deliver_at="7d")
    publish(queue, "first")
    for n in range(60):
        publish(queue, f"{n}")
        if n >= 30:
            lease(queue, 1).ack()  # so 32 messages are left
    assert 32 <= ids_kept(queue) <= 2 * 32 + 8
    lease(queue, 100).ack()
    for n in range(16):
        publish(queue, f"new {n}")
    assert ids_kept(queue) <= 17
    assert not holds(queue, "first")
    assert all(holds(queue, name) for name in ("stays", *(f"new {n}" for n in range(16))))


# -- what is refused


def test_a_broken_ledger_stops_only_what_meets_an_id(delta_queue: Make, limits: Limits) -> None:
    """Nobody knows whether its message is settled."""
    limits(ask_ids=1, tag_bytes=0)  # as of a large ledger, which only its file has
    queue = delta_queue(dedup_until="settled")
    queue.group().ensure()
    publish(queue, "a")
    for path in Path(queue.path, "leases").rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            path.write_bytes(b"broken")
    with pytest.raises(CorruptLog, match="default"):
        publish(again(queue), "a")
    assert not publish(again(queue), "b", "c").duplicate


def test_it_can_be_set_later_and_holds_for_known_ids(queue: Queue, clock: ManualClock) -> None:
    queue.configure(dedup_until="window", dedup_window="1h")
    publish(queue, "a")
    queue.configure(dedup_until="settled", dedup_window=None)
    clock.advance("2h")
    assert holds(queue)
    queue.configure(dedup_until="window", dedup_window="1h")
    assert not holds(queue)
