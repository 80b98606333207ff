"""How many requests each operation takes over S3, with nobody else committing.

The page on sizing computes prices with the second test's figures.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from support.blocks import ROOT
from support.handles import until
from support.relays import Requests, counting
from support.stores import RemoteStore
from support.tables import context_of, group_ledger_of

from spark_mq import Queue
from spark_mq.streaming.source import StreamOptions, StreamSource

T = TypeVar("T")

pytestmark = pytest.mark.only_on("versitygw")


@pytest.fixture
def counted(remote: RemoteStore) -> Iterator[tuple[Queue, Requests]]:
    with counting(remote.url) as (url, seen):
        path = remote.new_path()
        queue = Queue.create(path, storage_options=remote.options_at(url))
        for _ in range(3):
            queue.publish([b"a", b"b"])
            queue.group().lease("w", max_messages=1).ack()
        yield queue, seen


def charged(seen: Requests, operation: Callable[[], object], times: int = 1) -> list[float]:
    """What a store charges for: writes and listings, and reads. Deletes are free."""
    before = len(seen)
    for _ in range(times):
        operation()
    made = [(method, path) for method, path, _ in seen[before:] if "delete" not in path]
    reads = sum(method in ("GET", "HEAD") and "list-type" not in path for method, path in made)
    return [(len(made) - reads) / times, reads / times]


@pytest.mark.slow
def test_the_page_on_prices_has_the_requests_of_the_code(counted: tuple[Queue, Requests]) -> None:
    queue, seen = counted
    group = queue.group()

    def open_again() -> Queue:
        return Queue.open(queue.path, storage_options=context_of(queue).storage_options)

    other = open_again()
    other.group().stats()

    def deliver() -> None:
        lease = group.lease("w", max_messages=100)
        assert lease.messages
        lease.ack()

    found = [charged(seen, lambda: queue.publish(["a"] * 100), 40), charged(seen, deliver, 40)]
    followed = charged(seen, lambda: other.group().stats())
    found.append([followed[0], followed[1] / 120])
    queue.sweep()
    queue.sweep()
    found.append(charged(seen, queue.sweep, 3))
    found.append(charged(seen, lambda: open_again().sweep(), 3))
    page = (ROOT / "docs" / "howto" / "sizing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (\d+) \| (\d+) \|$", page, re.M)
    for row, measured in zip(rows, found, strict=False):  # the last rows are of idle minutes
        assert [round(number) for number in measured] == pytest.approx(
            [int(number) for number in row], rel=0.1, abs=1
        )


def test_a_batch_of_a_stream_makes_five_reads_and_four_writes(
    counted: tuple[Queue, Requests],
) -> None:
    queue, seen = counted
    # The driver of Spark settles what the process with the hooks of the source leases.
    driver = Queue.open(queue.path, storage_options=context_of(queue).storage_options)
    source = StreamSource(
        group_ledger_of(queue.group("stream")), StreamOptions(max_messages=1, ack_on_commit=False)
    )
    start, steps = source.initial(), list[list[str]]()

    def step(call: Callable[..., T], *given: object) -> T:
        before = len(seen)
        result = call(*given)
        made = [(method, path) for method, path, _ in seen[before:] if "list-type" not in path]
        steps.append(sorted(method for method, _ in made if method != "HEAD"))  # each 5 seconds
        return result

    for _ in range(6):
        end = step(source.latest, start)
        plan = step(source.plan, start, end)
        step(context_of(driver).ledgers.version)  # while the function of the batch runs
        assert step(driver.group("stream").ack, plan.lease_id).settled == 1
        start = end
    source.stop()
    # The looks at both tables are made at once, as are the file of a ledger and its commit.
    look_at_leases, commit = ["GET", "GET"], ["PUT", "PUT"]
    assert steps[-4:] == [[*look_at_leases, "GET"], commit, look_at_leases, commit]


@pytest.mark.slow
def test_waiting_workers_of_a_process_make_60_requests_a_minute_together(
    counted: tuple[Queue, Requests],
) -> None:
    queue, seen = counted
    other = Queue.open(queue.path, storage_options=context_of(queue).storage_options)
    stop = threading.Event()
    groups = [queue.group(), queue.group("second").ensure(), other.group("third").ensure()]
    workers = [
        threading.Thread(target=group.work, args=(print,), kwargs={"stop": stop, "mode": "batch"})
        for group in groups
    ]

    def made(requests: int) -> float:
        """Return the seconds until so many more requests were made."""
        began, before = time.monotonic(), len(seen)
        until(lambda: len(seen) >= before + requests, "somebody looks")
        return time.monotonic() - began

    for worker in workers:
        worker.start()
    try:
        while made(4) < 3.9:  # the first pauses are shorter
            pass
        assert made(30) > 28, [f"{method} {path}" for method, path, _ in seen[-30:]]
    finally:
        stop.set()
        for worker in workers:
            worker.join(60)
