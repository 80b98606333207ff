"""What a lease and a settle cost: counts of calls, bytes and actions, which no machine changes.

A cost follows the number of leases, not of messages, and grows with neither backlog nor age.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.byte_store import ByteStore, Call
from support.handles import lease
from support.limits import Limits
from support.queues import Make
from support.rule_variants import first, rule_variant

from spark_mq import Lease, Queue

BATCHES = (10, 100_000)
BACKLOG_COMMITS, PER_COMMIT = 200, 1_000
AGE = 120
"""Leases, so that the log has more entries than lie between two checkpoints."""
TOUCH = ("read", "open", "write", "create", "stat", "list", "list_all", "folders", "delete")
VERBS: dict[str, Callable[[Lease], object]] = {
    "ack": lambda lease: lease.ack(),
    "nack": lambda lease: lease.nack(delay=0),
    "release": lambda lease: lease.release(),
    "reject": lambda lease: lease.reject(error="bad"),
    "extend": lambda lease: lease.extend("1h"),
}


@dataclass
class Cost:
    """What one operation does in the thread that called it."""

    disk: Counter[str] = field(default_factory=Counter)
    """Calls of the disk, by verb."""
    bytes: int = 0
    """Read and written, without data files that are opened."""
    actions: int = 0
    """Lines of the log entries that it wrote."""
    rows: int = 0
    """Rows of the data files that it wrote: the whole ledger."""
    calls: int = 0
    """Calls of functions by the package, to C functions as well."""

    def add(self, verb: str, path: str, data: Any) -> None:
        self.disk[verb] += 1
        self.bytes += len(data or b"")
        if verb == "create":
            self.actions += len(bytes(data).splitlines())
        elif verb == "write" and path.endswith(".parquet"):
            self.rows += pq.read_metadata(pa.BufferReader(data)).num_rows


@pytest.fixture
def measure(byte_store: ByteStore) -> Callable[[], Any]:
    """Return a context that measures what its block does."""
    running: list[tuple[Cost, int]] = []

    def watched(call: Call) -> Any:
        result = call.run()
        if running and running[0][1] == threading.get_ident():
            profile = sys.getprofile()
            sys.setprofile(None)
            read = result if call.verb == "read" else next(iter(call.args[1:]), None)
            running[0][0].add(call.verb, call.path, read)
            sys.setprofile(profile)
        return result

    byte_store.on(*TOUCH, act=watched)

    @contextmanager
    def measuring() -> Iterator[Cost]:
        cost = Cost()

        def count(frame: FrameType, event: str, _: Any) -> None:
            module = frame.f_globals.get("__name__", "")
            cost.calls += event in ("call", "c_call") and module.startswith("spark_mq.")

        running.append((cost, threading.get_ident()))
        sys.setprofile(count)
        try:
            yield cost
        finally:
            sys.setprofile(None)
            running.clear()

    return measuring


def publish(queue: Queue, messages: int) -> None:
    queue.publish(pa.table({"value": pa.repeat(pa.scalar(b"x" * 20), messages)}))


def cycle(queue: Queue, messages: int, verb: str, measure: Callable[[], Any]) -> dict[str, Cost]:
    """Lease and settle messages that a publish has just added. Return the cost of both."""
    with measure() as leasing:
        taken = lease(queue, messages)
    with measure() as settling:
        VERBS[verb](taken)
    assert len(taken) == messages
    return {"lease": leasing, verb: settling}


def assert_alike(small: dict[str, Cost], large: dict[str, Cost]) -> None:
    for name, one in small.items():
        other = large[name]
        assert one.calls > 100, "it was measured"
        assert one.disk["create"] == one.disk["write"] == 1, "it is one small commit"
        assert (one.disk, one.actions, one.rows) == (other.disk, other.actions, other.rows), name
        # A longer number is a few bytes. A step of a binary search is a few calls.
        assert other.bytes <= 1.1 * one.bytes, name
        assert other.calls <= 1.1 * one.calls, name


@pytest.mark.parametrize("verb", VERBS)
def test_a_lease_and_its_settle_cost_the_same_for_ten_messages_and_for_100_000(
    tmp_path: Path, measure: Callable[[], Any], verb: str
) -> None:
    costs = []
    for size in BATCHES:
        queue = Queue.create(tmp_path / str(size), durable=False)
        for _ in range(2):  # the first one makes the group, and learns its start
            publish(queue, size)
            costs.append(cycle(queue, size, verb, measure))
            queue.group().seek("latest")
    assert_alike(costs[1], costs[3])


def test_a_lease_and_an_ack_cost_the_same_before_a_backlog_of_200_000(
    tmp_path: Path, measure: Callable[[], Any]
) -> None:
    costs = []
    for commits in (0, BACKLOG_COMMITS):
        queue = Queue.create(tmp_path / str(commits), durable=False)
        for _ in range(2):
            publish(queue, 20)
        for _ in range(commits):
            publish(queue, PER_COMMIT)
        lease(queue, 20).ack()
        lease(queue, 10).ack()
        costs.append(cycle(queue, 10, "ack", measure))
        assert queue.group().stats().ready == commits * PER_COMMIT
    assert_alike(*costs)


def test_a_lease_and_an_ack_cost_the_same_after_120_leases_behind_a_held_one(
    tmp_path: Path, measure: Callable[[], Any]
) -> None:
    queue = Queue.create(tmp_path / "queue", durable=False)
    publish(queue, 10_000)
    lease(queue, 10)  # so that no floor rises
    lease(queue, 10).ack()
    young = cycle(queue, 10, "ack", measure)
    for _ in range(AGE):
        lease(queue, 10).ack()
    assert_alike(young, cycle(queue, 10, "ack", measure))


def test_a_file_is_checked_again_only_after_many_others(make: Make, limits: Limits) -> None:
    limits(readable_files=2)
    queue, checked = make(), list[int]()
    for value in "abc":
        queue.publish(value)
    with rule_variant("verify_slice", first(lambda a: checked.append(a.piece.first >> 32))):
        for count, new in ((1, [1]), (2, [2]), (1, []), (2, []), (3, [3]), (3, [1, 2]), (1, [1])):
            lease(queue, count).release()
            assert checked == new, count
            checked.clear()


def test_two_leases_that_check_one_file_at_once_forget_no_other(make: Make, limits: Limits) -> None:
    limits(readable_files=2)
    queue, checked = make(), list[int]()
    for value in "ab":
        queue.publish(value)

    def check(a: Any) -> None:
        checked.append(a.piece.first >> 32)
        if checked == [1, 2]:
            lease(queue, 2, group="other").release()

    with rule_variant("verify_slice", first(check)):
        for count in (1, 2, 1):
            lease(queue, count).release()
    assert checked == [1, 2, 2]
