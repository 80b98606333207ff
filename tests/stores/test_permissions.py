"""What each role asks of the store, beside the table and the policy of the page on permissions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from support.blocks import ROOT, blocks_of
from support.relays import Requests, counting
from support.stores import RemoteStore

from spark_mq import Message, Queue

pytestmark = pytest.mark.only_on("versitygw")

PAGE = ROOT / "docs" / "howto" / "permissions.md"
RIVAL = """
from spark_mq import Message, Queue
queue = Queue.open({path!r}, storage_options={options!r})
for number in range(8):
    {call}
"""
PUBLISH = "queue.publish([Message('a', dedup_id=str(number))])"
WORK = "lease = queue.group().lease('w', wait='10s'); lease and lease.ack()"


class Store:
    """A queue on an S3 endpoint, and the requests that were made."""

    def __init__(self, remote: RemoteStore, proxy: str, seen: Requests) -> None:
        self.seen, self.path = seen, remote.new_path()
        self.name = self.path.removeprefix(f"{remote.root}/")
        self.unseen = remote.options
        # The keys of several deletes in one request are in its body.
        self.options = {**remote.options_at(proxy), "AWS_DISABLE_BULK_DELETE": "true"}
        self.more: list[str] = []  # what a publisher reads because of the queue's settings

    def open(self) -> Queue:
        return Queue.open(self.path, storage_options=self.options)

    def requests(self, work: Callable[[], object]) -> tuple[set[str], set[str]]:
        """The keys below the queue that some work read or listed, and wrote or deleted."""
        before = len(self.seen)
        work()
        read, written = set[str](), set[str]()
        for method, path, _ in self.seen[before:]:
            parts = urlsplit(path)
            (prefix,) = parse_qs(parts.query).get("prefix", [""])
            key = prefix or unquote(parts.path).removeprefix("/queues/")
            assert key.startswith(f"{self.name}/"), f"{key} is not in the queue"
            place = read if method in ("GET", "HEAD") else written
            place.add(key.removeprefix(f"{self.name}/"))
        return read, written

    def rivals(self, call: str, count: int = 4) -> None:
        """Run processes that compete."""
        program = RIVAL.format(path=self.path, options=self.options, call=call)
        running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
        assert [one.wait() for one in running] == [0] * count


SETTINGS: dict[str, dict[str, Any]] = {
    "window": {"dedup_window": "1h"},
    "settled": {"dedup_until": "settled"},
    "leased": {"dedup_until": "leased"},
    "replaces": {"dedup_window": "1h", "dedup_replaces": True},
}
"""Those of a queue that could change what a role reads."""


@pytest.fixture(params=SETTINGS)
def store(request: pytest.FixtureRequest, remote: RemoteStore) -> Iterator[Store]:
    """A queue with commits of every kind: swept, trimmed, with a dead letter."""
    settings = SETTINGS[request.param]
    with counting(remote.url) as (url, seen):
        store = Store(remote, url, seen)
        store.more = ["leases/"] if "dedup_until" in settings else []
        queue = Queue.create(store.path, storage_options=store.unseen, retention=0, **settings)
        for number in range(3):
            queue.publish([Message(str(number), dedup_id=f"first {number}"), "bad"])
            lease = queue.group().lease("w", max_messages=2)
            lease.reject([lease.messages[1].sequence])
            lease.ack()
        queue.sweep()
        queue.sweep()
        queue.publish([str(number) for number in range(500)])
        yield store


def publish(store: Store) -> None:
    queue = store.open()
    queue.publish(["a", Message("b", dedup_id="b")])
    queue.publish([uuid.uuid4().bytes * 2_000_000])  # a file in several parts
    for _ in range(2):  # the second one looks up where the first one went
        queue.publish("c", producer_id="p", producer_sequence=1, on_duplicate="skip")
    with queue.publisher() as publisher:
        publisher.publish("d")
    for number in range(100):  # a checkpoint
        queue.publish(str(number))
    store.rivals(PUBLISH)


def work(store: Store) -> None:
    group = store.open().group()
    lease = group.lease("w", max_messages=4)
    lease.extend("1m")
    first, second, third, _ = (message.sequence for message in lease.messages)
    lease.reject([first])
    lease.nack([second])
    lease.release([third])
    lease.ack()
    group.ack(lease.lease_id)
    group.stats()
    group.configure(retry_delay="1s")
    group.work(lambda _: None, mode="batch", until="empty", max_messages=5)
    publisher = Queue.open(store.path, storage_options=store.unseen)
    publisher.publish([str(number) for number in range(100)])
    store.rivals(WORK)


def look(store: Store) -> None:
    queue = store.open()
    group = queue.group()
    for one in (queue.describe, queue.health, queue.changes, queue.blockers, group.leases):
        one()
    queue.trace(queue.stats()["latest_sequence"])
    queue.finished("default")
    queue.peek(3)
    group.peek(3)
    queue.redrive(dry_run=True)


ROLES: dict[str, Callable[[Store], object]] = {
    "publisher": publish,
    "worker": work,
    "redriver": lambda store: store.open().redrive(),
    "reader": look,
    "sweeper": lambda store: store.open().sweep(),
}


def table() -> dict[str, tuple[list[str], list[str]]]:
    """The folders that each role reads, and those that it writes, of the page."""
    rows = re.findall(r"^\| (\w+) \| (.*?) \| (.*?) \| .* \|$", PAGE.read_text(), re.M)
    return {role: (folders(reads), folders(writes)) for role, reads, writes in rows[1:]}


def folders(cell: str) -> list[str]:
    return {"everything": [""], "nothing": []}.get(cell, re.findall(r"`(.*?)`", cell))


def missing(keys: set[str], places: list[str]) -> set[str]:
    """Those keys that are in no place, and those places that have no key."""
    outside = {key for key in keys if not key.startswith(tuple(places))}
    return outside | {place for place in places if not any(k.startswith(place) for k in keys)}


def test_the_page_names_each_role() -> None:
    assert table().keys() == ROLES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_a_role_needs_the_folders_that_the_page_gives_it(store: Store, role: str) -> None:
    reads, writes = table()[role]
    if role == "publisher":
        reads += store.more
    read, written = store.requests(lambda: ROLES[role](store))
    assert missing(read, reads) == set()
    assert missing(written, writes) == set()


def test_the_page_names_what_a_publisher_reads_because_of_a_setting() -> None:
    text = " ".join(PAGE.read_text().split())
    assert "has [`dedup_until`](workers.md#publish), a publisher also reads `leases/`" in text


def test_the_policy_of_the_page_is_that_of_its_table() -> None:
    (block,) = (one for one in blocks_of(PAGE) if one.language == "json")
    listing, reading, writing = json.loads(block.text)["Statement"]
    reads, writes = table()["worker"]
    assert listing["Condition"] == {"StringLikeIfExists": {"s3:prefix": "orders/*"}}
    assert _resources(reading) == [f"arn:aws:s3:::shop/orders/{folder}*" for folder in reads]
    assert _resources(writing) == [f"arn:aws:s3:::shop/orders/{folder}*" for folder in writes]


def _resources(statement: dict[str, Any]) -> list[str]:
    found = statement["Resource"]
    return [found] if isinstance(found, str) else list(found)
