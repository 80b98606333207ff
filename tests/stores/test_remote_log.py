"""The log in an object store, followed by two handles: what one commits, the other sees at once,
without a LIST.

One handle goes through a proxy that counts requests and makes faults, another one goes to the store
itself.
"""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from faulty_store import FaultyStore
from support.byte_store import ByteStore, Call
from support.clocks import MachineClocks
from support.handles import again, lease
from support.machines import end_requests
from support.stores import RemoteStore
from support.story import story
from support.tables import ledgers_of

from spark_mq import Queue
from spark_mq.storage.delegated_commands import FOLDER, LOOK_EVERY
from spark_mq.testing import ManualClock


@pytest.fixture
def queue(remote: RemoteStore) -> Queue:
    """The queue as it is."""
    options = {"storage_options": remote.options, "clock_skew": "0s", "retry_delay": "0s"}
    return Queue.create(remote.new_path(), **options)


@pytest.fixture
def late(queue: Queue, proxy: FaultyStore) -> Queue:
    """The same queue, through the proxy."""
    return through(queue, proxy)


def through(queue: Queue, proxy: FaultyStore) -> Queue:
    return Queue.open(queue.path, storage_options=proxy.options)


def listings(proxy: FaultyStore) -> list[str]:
    return [path for method, path in proxy.asked() if method == "LIST"]


@pytest.mark.only_on("versitygw")
def test_no_listing_asks_for_what_s3_express_lacks(remote: RemoteStore, proxy: FaultyStore) -> None:
    """It lists nothing after a given name, and only prefixes that end with a slash."""
    story({"path": remote.new_path(), "storage_options": proxy.options})
    asked = [parse_qs(urlsplit(path).query) for path in listings(proxy)]
    assert len(asked) > 10
    assert not [one for one in asked if "start-after" in one]
    assert {one["prefix"][0][-1] for one in asked} == {"/"}


def test_operations_of_a_lone_worker_cost_few_requests(late: Queue, proxy: FaultyStore) -> None:
    """One in eight commits is beside a listing, which looks for what others have delegated."""
    group, listed = late.group(), list[str]()

    def requests() -> int:
        end_requests()
        asked = proxy.asked()
        listed.extend(path for method, path in asked if method == "LIST")
        return len([method for method, _ in asked if method != "LIST"])

    for _ in range(3):
        late.publish([str(n) for n in range(LOOK_EVERY)])
    group.lease("w", max_messages=1).ack()
    requests()
    listed.clear()
    for _ in range(LOOK_EVERY):
        found = group.lease("w", max_messages=1)
        assert requests() <= 3
        found.ack()
        assert requests() <= 2
    assert [FOLDER in unquote(path) for path in listed] == [True, True]
    late.publish(["more"])
    assert requests() <= 2


def test_a_lease_does_not_take_what_another_has_just_taken(
    queue: Queue, late: Queue, proxy: FaultyStore
) -> None:
    queue.publish([str(n) for n in range(6)])
    queue.group().ensure()
    assert late.group().stats().ready == 6
    proxy.asked()
    theirs = queue.group().lease("a", max_messages=2)
    mine = late.group().lease("b", max_messages=10)
    assert [m.value for m in mine.messages] == [b"2", b"3", b"4", b"5"]
    assert {m.delivery_count for m in mine.messages} == {1}
    assert (theirs.ack().settled, mine.ack().settled) == (2, 4)
    assert listings(proxy) == []


def test_who_takes_turns_with_another_asks_for_two_commits_at_once(
    queue: Queue, late: Queue, byte_store: ByteStore
) -> None:
    """As the two processes of a stream do: one leases, the other settles."""
    queue.publish(["a", "b", "c"])
    log, both = ledgers_of(late).log, threading.Barrier(2)

    def meet(call: Call) -> Any:
        both.wait(30)
        return call.run()

    for _ in range(2):
        queue.group().lease("w", max_messages=1)
        seen = log.refresh().version
    byte_store.on("read", act=meet, of=ledgers_of(late).files)
    queue.group().lease("w", max_messages=1)
    assert log.refresh().version == seen + 1


def test_a_lease_without_a_look_takes_nothing_that_a_trim_has_dropped(remote: RemoteStore) -> None:
    """A handle that is alone skips the look. The trim of another one must not be missed."""
    clock = ManualClock()
    path = remote.new_path()
    queue = Queue.create(path, storage_options=remote.options, clock=clock)
    log = ledgers_of(queue).log  # type: ignore[attr-defined]
    log.clock = MachineClocks().elapsed  # which stand still, so it looks only if it has to
    for value in "abcd":
        queue.publish(value)
    for _ in range(2):
        lease(queue, 4).release()  # so it knows the files as readable
    assert log.is_own_turn
    clock.advance("2h")
    other = again(queue)
    other.configure(hard_retention="1h")
    assert other.sweep().trimmed_files == 4
    other.publish("new")
    assert log.is_own_turn, "it has not looked since"
    found = queue.group().lease("w", max_messages=2, fail_on_data_loss=False)
    assert [m.value for m in found.messages] == [b"new"]
    stats = other.group().stats()
    assert (stats.lost, stats.dead, stats.leased) == (4, 0, 1)
