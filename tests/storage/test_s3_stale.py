"""Over an object store whose listings are old: what others have committed shows in LIST only later. Only with --s3.

One process's handle goes through a proxy with such listings, another's goes to the store itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
from checker import check_queue
from faulty_s3 import AFTER, RESET, FaultyS3

from spark_mq import Queue

LAG = 1.0
"""Seconds for which a listing is old."""


@pytest.fixture
def proxy(s3: dict[str, str]) -> Iterator[FaultyS3]:
    with FaultyS3(s3["AWS_ENDPOINT_URL"]) as running:
        yield running


@pytest.fixture
def queue(s3: dict[str, str]) -> Queue:
    """The queue as it is."""
    return Queue.create(f"s3://queues/{uuid.uuid4().hex}/queue", storage_options=s3, clock_skew="0s", retry_delay="0s")


@pytest.fixture
def late(queue: Queue, proxy: FaultyS3) -> Queue:
    """The same queue, through the proxy."""
    return through(queue, proxy)


def through(queue: Queue, proxy: FaultyS3) -> Queue:
    return Queue.open(queue.path, storage_options={**queue._context.storage_options, "AWS_ENDPOINT_URL": proxy.url})


def freeze(proxy: FaultyS3, path: str) -> None:
    """From now on listings are as they are now."""
    proxy.stale(600, path)


def thaw_soon(proxy: FaultyS3, path: str) -> None:
    """Listings go on being old for LAG seconds, and are right then."""

    def thaw() -> None:
        with contextlib.suppress(OSError):  # the test may have ended, and the proxy with it
            proxy.stale(0, path)

    threading.Timer(LAG, thaw).start()


def test_a_lease_does_not_take_what_another_has_just_taken(queue: Queue, late: Queue, proxy: FaultyS3) -> None:
    queue.publish([str(n) for n in range(6)])
    queue.group().ensure()
    assert late.group().stats().ready == 6
    freeze(proxy, queue.path)
    theirs = queue.group().lease("a", max_messages=2)
    thaw_soon(proxy, queue.path)
    mine = late.group().lease("b", max_messages=10)
    assert theirs is not None
    assert mine is not None
    assert [m.value for m in mine.messages] == [b"2", b"3", b"4", b"5"]
    assert {m.delivery_count for m in mine.messages} == {1}
    assert (theirs.ack().settled, mine.ack().settled) == (2, 4)
    assert proxy.listed() > 0


@pytest.mark.parametrize("verb", ["ack", *(pytest.param(verb, marks=pytest.mark.slow) for verb in ("nack", "reject", "release", "extend"))])
def test_a_settle_of_a_lease_that_was_taken_elsewhere_is_no_lease_lost(queue: Queue, late: Queue, proxy: FaultyS3, verb: str) -> None:
    """As for a stream: its runner leases, the driver settles."""
    queue.publish(["a", "b"])
    queue.group().ensure()
    assert late.group().stats().ready == 2
    freeze(proxy, queue.path)
    lease = queue.group().lease("w", max_messages=2)
    assert lease is not None
    thaw_soon(proxy, queue.path)
    assert getattr(late.group(), verb)(lease.lease_id).settled == 2


def test_messages_that_were_just_published_are_leased(queue: Queue, late: Queue, proxy: FaultyS3) -> None:
    freeze(proxy, queue.path)
    queue.publish(["a"])
    thaw_soon(proxy, queue.path)
    assert late.group().lease("w") is not None


@pytest.mark.parametrize("fault", [None, AFTER, RESET])
def test_a_publish_lands_once_and_behind_what_others_have_published(queue: Queue, late: Queue, proxy: FaultyS3, fault: str | None) -> None:
    freeze(proxy, queue.path)
    first = queue.publish(["a", "b"])
    thaw_soon(proxy, queue.path)
    if fault is not None:
        proxy.once(fault, "PUT", "messages/_delta_log")
    second = late.publish(["c"], producer_id="p", producer_sequence=1)
    assert second.version == first.version + 1
    lease = queue.group().lease("w", max_messages=10)
    assert lease is not None
    assert [m.value for m in lease.messages] == [b"a", b"b", b"c"]
    assert late.last_producer_sequence("p") == 1


@pytest.mark.parametrize("fault", [AFTER, RESET])
def test_a_commit_whose_reply_is_lost_is_found(queue: Queue, late: Queue, proxy: FaultyS3, fault: str) -> None:
    queue.publish(["a", "b"])
    late.group().ensure()
    proxy.stale(LAG, queue.path)
    proxy.once(fault, "PUT", "leases/_delta_log")
    lease = late.group().lease("w", max_messages=1)
    assert lease is not None
    assert lease.messages[0].delivery_count == 1
    assert queue.group().stats().in_flight == 1
    proxy.once(fault, "PUT", "leases/_delta_log")
    assert lease.ack().settled == 1
    proxy.once(fault, "PUT", "messages/_delta_log")
    receipt = late.publish(["c"])
    assert queue._context.messages.index().total == 3
    assert receipt.version == 2


def test_a_queue_that_was_just_made_is_there(s3: dict[str, str], proxy: FaultyS3) -> None:
    path = f"s3://queues/{uuid.uuid4().hex}/queue"
    freeze(proxy, path)
    made = Queue.create(path, storage_options=s3, visibility_timeout="7s")
    options = {**s3, "AWS_ENDPOINT_URL": proxy.url}
    thaw_soon(proxy, path)
    assert Queue.create(path, storage_options=options, exist_ok=True, visibility_timeout="7s").settings == made.settings


def test_a_checkpoint_that_is_not_listed_yet_is_awaited(queue: Queue, late: Queue, proxy: FaultyS3) -> None:
    """Its hint names it already, by which delta-rs expects to find it."""
    queue.publish(["a"])
    queue.group().ensure()
    assert late.group().stats().ready == 1
    freeze(proxy, queue.path)
    queue.sweep()
    thaw_soon(proxy, queue.path)
    assert through(queue, proxy).group().stats().ready == 1
    late.sweep()
    lease = late.group().lease("w")
    assert lease is not None
    assert lease.ack().settled == 1


@pytest.mark.slow
def test_workers_that_all_see_old_listings_own_nothing_twice_and_lose_nothing(queue: Queue, proxy: FaultyS3) -> None:
    handles = [through(queue, proxy) for _ in range(3)]
    proxy.stale(0.3, queue.path)
    published: list[int] = []
    acked: Counter[int] = Counter()
    enough = threading.Event()

    def publish(mine: Queue) -> None:
        for n in range(8):
            published.extend(mine.publish([f"{n}"] * 5).sequences)

    def work(mine: Queue, name: str) -> None:
        while not enough.is_set() or mine.group().stats().ready:
            lease = mine.group().lease(name, max_messages=7, visibility_timeout="5m")
            if lease is not None:
                assert lease.ack().settled == len(lease)
                acked.update(m.sequence for m in lease.messages)

    def chores(mine: Queue) -> None:
        while not enough.wait(0.2):
            mine.sweep()

    workers = [threading.Thread(target=work, args=(handles[n], f"w{n}")) for n in range(2)]
    publishers = [threading.Thread(target=publish, args=(handle,)) for handle in handles[:2]]
    others = [threading.Thread(target=chores, args=(handles[2],))]
    for thread in [*workers, *publishers, *others]:
        thread.start()
    for thread in publishers:
        thread.join()
    enough.set()
    for thread in [*workers, *others]:
        thread.join()
    while (lease := queue.group().lease("rest", max_messages=100)) is not None:
        lease.ack()
        acked.update(m.sequence for m in lease.messages)
    assert proxy.listed() > 0
    assert acked == Counter(published)
    assert len(published) == queue._context.messages.index().total == 80
    queue.sweep()
    found = check_queue(queue.path, queue._context.storage_options, skew=timedelta(0), drained=["default"])
    assert found.wrong == []


def test_old_listings_delay_and_do_not_block(queue: Queue, late: Queue, proxy: FaultyS3) -> None:
    """An empty look costs no waiting where nothing has been committed meanwhile."""
    late.group().ensure()
    proxy.stale(30.0, queue.path)
    start = time.monotonic()
    for _ in range(5):
        assert late.group().lease("w") is None
    assert time.monotonic() - start < 10
