"""Options of a lease: the name of its worker, and its limit of bytes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from spark_mq import Lease, Message, Queue, ReceivedMessage
from spark_mq.testing import ManualClock


@pytest.mark.parametrize(
    ("host", "named"),
    [("mill.example", "mill.example"), ("mühle 3", "m-hle-3"), ("m" * 250, "m" * 100)],
)
def test_a_lease_without_a_worker_id_names_host_and_process(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, host: str, named: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    queue.publish(["a", "b"])
    group = queue.group()
    lease = group.lease()
    name = lease.worker_id
    assert name == f"{named}-{os.getpid()}"
    assert [held.worker_id for held in group.leases()] == [name]
    again = group.lease(name)
    assert again is not None, "the name is valid where one is given"


def test_the_messages_and_the_table_of_a_lease_are_the_same(queue: Queue) -> None:
    queue.publish([Message("a", key="k", headers={"x": "1"}), Message("b"), Message("c")])
    lease = queue.group().lease("worker", max_messages=3)
    lease.reject([lease.messages[1].sequence])
    table, both = lease.table(), set(lease.table().column_names)
    both &= {field.name for field in fields(ReceivedMessage)} - {"headers"}
    rows = [{name: getattr(message, name) for name in both} for message in lease.messages]
    assert table.select(sorted(both)).to_pylist() == rows, "settled ones stay in both"
    assert [dict(pairs or ()) for pairs in table["headers"].to_pylist()] == [
        message.headers for message in lease.messages
    ]
    assert set(table.column_names) - both == {"headers", "lease_id", "lease_expires_at"}


def test_a_lease_taken_for_a_message_gets_a_hint(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.publish(["a"])
    lease = queue.group().lease("w")
    assert lease is not None
    monkeypatch.setattr(Lease, "table", property(lambda lease: lease.lost))
    for name, text in (
        ("value", 'Give mode="message"'),
        ("json", 'Give mode="message"'),
        ("mesages", "'Lease' object has no attribute 'mesages'"),
        ("table", "no attribute 'lost'"),
    ):
        with pytest.raises(AttributeError, match=text):
            getattr(lease, name)


def test_a_message_taken_for_a_lease_gets_a_hint(queue: Queue) -> None:
    queue.publish(["a"])
    lease = queue.group().lease("w")
    assert lease is not None
    (message,) = lease.messages
    shared = {name for name in dir(lease) if hasattr(message, name)}
    for name in {name for name in dir(lease) if not name.startswith("_")} - shared:
        with pytest.raises(AttributeError, match='Give mode="batch"'):
            getattr(message, name)
    with pytest.raises(AttributeError, match="no attribute 'mesage_id'"):
        message.mesage_id  # type: ignore[attr-defined]  # noqa: B018


def test_lease_and_work_choose_the_same_name(queue: Queue) -> None:
    queue.publish(["a", "b"])
    group, names = queue.group(), list[str]()
    lease = group.lease()
    group.work(lambda lease: names.append(lease.worker_id), mode="batch", until="empty")
    assert names == [lease.worker_id]


def _leased(queue: Queue, **options: Any) -> list[int]:
    lease = queue.group().lease(**{"max_messages": 100, **options})
    return [] if lease is None else [message.sequence for message in lease.messages]


def test_a_lease_holds_no_more_bytes_than_fit(queue: Queue) -> None:
    """One file a message, of random bytes, so that the estimate is nearly exact."""
    sequences = [queue.publish(os.urandom(100_000)).sequences[0] for _ in range(5)]
    assert _leased(queue, max_bytes=250_000) == sequences[:2]
    assert _leased(queue, max_bytes="150k") == sequences[2:3]
    assert _leased(queue, max_bytes="1m", max_messages=1) == sequences[3:4]
    assert _leased(queue, max_bytes="1m") == sequences[4:]
    assert _leased(queue, max_bytes="1m") == []


def test_a_limit_of_bytes_takes_the_highest_priority_first(
    delta_queue: Callable[..., Queue],
) -> None:
    """The pieces of a lease were sorted by sequence, and the limit dropped the later ones."""
    queue = delta_queue(lanes=2)
    queue.publish([Message("later", key="a", priority=0) for _ in range(3)])
    queue.publish([Message("first", key="b", priority=1)])
    taken = queue.group().lease("w", max_messages=10, max_bytes=1)
    assert [message.text for message in taken.messages] == ["first"]


def test_a_lease_of_named_messages_holds_these_and_no_others(make: Callable[..., Queue]) -> None:
    queue = make(visibility_timeout="1m")
    sequences = queue.publish([str(number) for number in range(5)]).sequences
    assert _leased(queue, sequences=[sequences[3], sequences[1]], max_messages=None) == [
        sequences[1], sequences[3],
    ]  # fmt: skip
    assert _leased(queue, sequences=[sequences[1]]) == [], "another lease holds it"
    assert _leased(queue, sequences=[]) == []
    assert _leased(queue, sequences=range(sequences[0], sequences[4]), max_messages=1) == [
        sequences[0]
    ]
    assert _leased(queue) == [sequences[2], sequences[4]]
    assert queue.group().stats().leased == 5


def test_retry_now_makes_delayed_messages_due_for_a_named_lease(queue: Queue) -> None:
    sequences = queue.publish([Message("later", deliver_at="1h"), "now"]).sequences
    group = queue.group()
    assert _leased(queue, sequences=sequences[:1]) == []
    group.ensure()
    assert group.retry_now(sequences[0]) == 1
    assert _leased(queue, sequences=sequences[:1]) == list(sequences[:1])


def test_a_wait_for_named_messages_ends_when_they_are_published(queue: Queue) -> None:
    first, _ = queue.publish(["a", "b"]).sequences
    wanted, group = range(first + (1 << 32), first + (1 << 33)), queue.group()
    group.ensure()
    publish = threading.Thread(target=queue.publish, args=(["c"],))
    publish.start()
    lease = group.lease(sequences=wanted, wait="1m")
    publish.join()
    assert [message.text for message in lease.messages] == ["c"]


def test_at_most_once_a_lease_that_is_acked_at_once_is_never_given_out_again(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish(["a"])
    taken = queue.group().lease("dies", auto_ack=True)
    assert [m.value for m in taken.messages] == [b"a"]
    clock.advance("1h")
    assert _leased(queue) == []
    assert queue.group().nack(taken.lease_id).settled == 0
    assert _leased(queue) == []
