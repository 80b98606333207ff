"""Options of a lease: the name of its worker, and its limit of bytes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import pytest
from support.handles import leased

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
    queue.publish(["a", "b", "c"])
    group, name = queue.group(), f"{named}-{os.getpid()}"
    names = [group.lease().worker_id, *(held.worker_id for held in group.leases())]
    assert group.lease(name) is not None, "the name is valid where one is given"
    group.work(lambda lease: names.append(lease.worker_id), mode="batch", until="empty")
    assert names == [name] * 3


def test_the_messages_and_the_table_of_a_lease_are_the_same(queue: Queue) -> None:
    held = leased(queue, Message("a", key="k", headers={"x": "1"}), "b", "c")
    held.reject([held.messages[1].sequence])
    table, both = held.table(), set(held.table().column_names)
    both &= {field.name for field in fields(ReceivedMessage)} - {"headers"}
    rows = [{name: getattr(message, name) for name in both} for message in held.messages]
    assert table.select(sorted(both)).to_pylist() == rows, "settled ones stay in both"
    assert [dict(pairs or ()) for pairs in table["headers"].to_pylist()] == [
        message.headers for message in held.messages
    ]
    assert set(table.column_names) - both == {"headers", "lease_id", "lease_expires_at"}


def test_a_lease_taken_for_a_message_gets_a_hint_and_the_other_way_round(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = leased(queue, "a")
    (message,) = held.messages
    public = {name for name in dir(held) if not name.startswith("_")}
    hints = [(held, name, 'Give mode="message"') for name in ("value", "json")]
    hints += [(message, name, 'Give mode="batch"') for name in public if not hasattr(message, name)]
    monkeypatch.setattr(Lease, "table", property(lambda held: held.lost))
    for given, name, text in (
        *hints,
        (held, "mesages", "'Lease' object has no attribute 'mesages'"),
        (held, "table", "no attribute 'lost'"),
        (message, "mesage_id", "no attribute 'mesage_id'"),
    ):
        with pytest.raises(AttributeError, match=text):
            getattr(given, name)


def _leased(queue: Queue, **options: Any) -> list[int]:
    held = queue.group().lease(**{"max_messages": 100, **options})
    return [] if held is None else [message.sequence for message in held.messages]


def test_a_lease_holds_no_more_bytes_than_fit(queue: Queue) -> None:
    """One file a message, of random bytes, so that the estimate is nearly exact."""
    sequences = [queue.publish(os.urandom(100_000)).sequences[0] for _ in range(5)]
    assert _leased(queue, max_bytes=250_000) == sequences[:2]
    assert _leased(queue, max_bytes="150k") == sequences[2:3]
    assert _leased(queue, max_bytes="1m", max_messages=1) == sequences[3:4]
    assert _leased(queue, max_bytes="1m") == sequences[4:]


def test_a_lease_of_named_messages_holds_these_and_no_others(make: Callable[..., Queue]) -> None:
    queue = make(visibility_timeout="1m")
    first, second, third, fourth, fifth = queue.publish([*"abcde"]).sequences
    assert _leased(queue, sequences=[fourth, second], max_messages=None) == [second, fourth]
    assert _leased(queue, sequences=[second]) == [], "another lease holds it"
    assert _leased(queue, sequences=[]) == []
    assert _leased(queue, sequences=range(first, first + 2_000, 2), max_messages=1) == [first]
    assert _leased(queue) == [third, fifth]


def test_a_wait_for_named_messages_ends_when_they_are_published(queue: Queue) -> None:
    first, _ = queue.publish(["a", "b"]).sequences
    wanted, group = range(first + (1 << 32), first + (1 << 33)), queue.group()
    group.ensure()
    with ThreadPoolExecutor() as pool:
        pool.submit(queue.publish, ["c"])
        held = group.lease(sequences=wanted, wait="1m")
    assert [message.text for message in held.messages] == ["c"]


def test_at_most_once_a_lease_that_is_acked_at_once_is_never_given_out_again(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish(["a"])
    taken = queue.group().lease("dies", auto_ack=True)
    assert [m.value for m in taken.messages] == [b"a"]
    clock.advance("1h")
    assert _leased(queue) == []
