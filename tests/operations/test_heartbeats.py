"""The small files by which workers are visible while they are idle."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import astuple
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.byte_store import ByteStore, Call
from support.handles import again, until
from support.having import having
from support.limits import Limits
from support.queues import Make
from support.tables import as_in_a_store, ledgers_of
from support.working import leave_heartbeat, working

from spark_mq import ConsumerGroup, Queue
from spark_mq.errors import NotAQueue
from spark_mq.testing import ManualClock


class LookClock(ManualClock):
    """A clock that counts how often workers look whether a write is due."""

    looks = 0

    def __call__(self) -> datetime:
        self.looks += threading.current_thread().name == "spark_mq heartbeat"
        return super().__call__()

    def wait_for_looks(self, count: int = 4) -> None:
        """Return after some more looks. The last one may still be under way."""
        before = self.looks
        until(lambda: self.looks >= before + count)


@pytest.fixture
def clock() -> LookClock:
    return LookClock()


@pytest.fixture(autouse=True)
def look_often(limits: Limits) -> None:
    limits(heartbeat_look=0.005)


class HeldHandler:
    """A handler that waits until it may leave."""

    def __init__(self) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()

    def __call__(self, _: Any) -> None:
        self.inside.set()
        self.leave.wait(30)


def files_of(queue: Queue) -> list[str]:
    return [file.path for file in ledgers_of(queue).files.list_all("_workers")]


def states(group: ConsumerGroup) -> dict[str, str]:
    return {worker.worker_id: worker.state for worker in group.workers()}


def test_an_idle_worker_is_listed_until_it_ends(queue: Queue, clock: ManualClock) -> None:
    group, began = queue.group("billing").ensure(), clock()
    assert group.workers() == []
    with working(group, worker_id="w-1"):
        until(group.workers)
        (worker,) = group.workers()
        assert astuple(worker) == (
            "w-1", "idle", 0, 0, None, None, 1, began, began,
            worker.host, os.getpid(), "0.2.0", 0,
        )  # fmt: skip
        assert worker.host
        assert again(queue).group("billing").workers() == [worker], "another process sees it"
        queue.publish(["a", "b"])
        until(lambda: group.stats().acked == 2)
        clock.advance("30s")
        until(lambda: group.workers()[0].settled == 2)
        assert group.workers()[0].started_at == began
    assert (group.workers(), files_of(queue)) == ([], [])


def test_a_worker_writes_once_in_30_seconds(
    queue: Queue, clock: LookClock, byte_store: ByteStore
) -> None:
    group, written = queue.group().ensure(), byte_store.paths("write", of="leases")

    def count() -> int:
        return sum(path.startswith("_workers/") for path in written)

    with working(group):
        for number in range(1, 4):
            clock.wait_for_looks()
            assert count() == number
            clock.advance("29s")
            queue.publish(["x"])  # also while it is busy
            clock.wait_for_looks()
            assert count() == number
            clock.advance("1s")
            until(lambda number=number: count() == number + 1)
        assert group.workers()[0].seen_at == clock()
        clock.set(clock() - timedelta(days=1))
        until(lambda: group.workers()[0].seen_at == clock())
    assert len({path for path in written if path.startswith("_workers/")}) == 1


def test_within_a_longer_interval_a_worker_is_not_gone(queue: Queue, clock: LookClock) -> None:
    group = queue.group().ensure()
    with working(group, heartbeat="10m"):
        until(group.workers)
        (first,) = group.workers()
        clock.advance("9m")
        clock.wait_for_looks()
        assert group.workers() == [first]
        assert first.state == "idle"


def test_a_killed_worker_is_gone_after_a_minute_and_its_file_after_a_day(
    queue: Queue, clock: ManualClock, byte_store: ByteStore
) -> None:
    group, seen = queue.group().ensure(), clock()
    leave_heartbeat(queue, "default", "w-1")
    clock.advance("1m")
    assert group.workers() == [having(state="idle", processes=1)]
    clock.advance("1s")
    assert group.workers() == [having(state="gone", processes=0, seen_at=seen)]
    clock.advance("23h")
    byte_store.advance(24 * 3600 - 60)  # the files of a disk have the machine's time
    again(queue).sweep()
    assert states(group) == {"w-1": "gone"}
    clock.advance("1h")
    byte_store.advance(24 * 3600 + 60)
    assert again(queue).sweep().cleaned_files == 1
    assert (group.workers(), files_of(queue)) == ([], [])


def test_a_worker_in_a_handler_is_busy_without_a_lease(queue: Queue, clock: ManualClock) -> None:
    group, handler = queue.group().ensure(), HeldHandler()
    queue.publish(["a"])
    with working(group, handler, worker_id="w-1", ack="on_receive"):
        assert handler.inside.wait(30)
        until(group.workers)
        clock.advance("30s")
        until(lambda: group.workers()[0].seen_at == clock())
        assert group.workers() == [having(state="busy", leases=0)]
        handler.leave.set()


def test_workers_of_one_name_are_one_row_and_counted(queue: Queue, clock: ManualClock) -> None:
    group = queue.group().ensure()
    leave_heartbeat(queue, "default", "same")
    clock.advance("5m")
    with (
        working(group, worker_id="same"),
        working(group, worker_id="same"),
        working(group, worker_id="other"),
    ):
        until(lambda: len(files_of(queue)) == 4)
        found = {worker.worker_id: (worker.state, worker.processes) for worker in group.workers()}
        assert found == {"same": ("idle", 2), "other": ("idle", 1)}
        assert {worker.seen_at for worker in group.workers()} == {clock()}
    assert states(group) == {"same": "gone"}


def test_a_worker_of_several_groups_is_listed_in_each(queue: Queue) -> None:
    groups = [queue.group(name).ensure() for name in ("a", "b.c", "_d-e")]
    with working(groups[0], mode="message", more_groups=groups[1:], worker_id="w"):
        until(lambda: all(map(states, groups)))
        assert [states(group) for group in groups] == [{"w": "idle"}] * 3
    assert files_of(queue) == []


def test_a_store_that_refuses_heartbeats_does_not_disturb_the_work(
    queue: Queue, clock: LookClock, byte_store: ByteStore, caplog: pytest.LogCaptureFixture
) -> None:
    refused = []

    def refuse(call: Call) -> Any:
        if call.path.startswith("_workers/"):
            refused.append(call.path)
            raise PermissionError(13, "Permission denied", call.path)
        return call.run()

    byte_store.on("write", "delete", act=refuse, of="leases")
    group = queue.group().ensure()
    with caplog.at_level(logging.DEBUG, "spark_mq.worker"), working(group):
        for number in range(1, 4):
            queue.publish(["a", "b"])
            until(lambda number=number: group.stats().acked == 2 * number)
            clock.wait_for_looks()
            assert len(refused) == number, "one try in an interval"
            clock.advance("30s")
            until(lambda number=number: len(refused) == number + 1)
    first, *others = [r for r in caplog.records if "heartbeat" in r.getMessage()]
    assert "Permission denied" in first.getMessage()
    assert first.levelname == "INFO"
    assert [record.levelname for record in others] == ["DEBUG"] * (len(refused) - 1)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_a_store_that_hangs_delays_the_end_by_a_second(queue: Queue, byte_store: ByteStore) -> None:
    hangs, go_on = threading.Event(), threading.Event()

    def hang(call: Call) -> Any:
        if call.path.startswith("_workers/"):
            hangs.set()
            assert go_on.wait(60)
        return call.run()

    byte_store.on("write", act=hang, of="leases")
    queue.publish(["a"])
    group = queue.group().ensure()
    with working(group):
        assert hangs.wait(30)
        until(lambda: group.stats().acked == 1)
        began = time.monotonic()
    ended = time.monotonic()  # while the store still hangs, which it would for a minute
    go_on.set()
    until(lambda: not files_of(queue))
    assert ended - began < 20


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_in_an_object_store_only_a_given_interval_writes(delta_queue: Make) -> None:
    queue = as_in_a_store(delta_queue())
    group = queue.group().ensure()
    with working(group):
        queue.publish(["a"])
        until(lambda: group.stats().acked == 1)
        assert "spark_mq heartbeat" not in names_of_threads()
    leave_heartbeat(queue, "default", "killed")
    (file,) = files_of(queue)
    os.utime(f"{queue.path}/leases/{file}", (0, 0))
    queue.sweep()
    assert states(group) == {"killed": "idle"}, "no sweep pays for a listing"
    with working(group, heartbeat="30s", worker_id="next"):
        until(lambda: states(group) == {"next": "idle"})


@pytest.mark.parametrize("option", [{"heartbeat": "off"}, {"until": "empty"}])
def test_no_file_without_a_heartbeat_or_in_a_short_run(
    queue: Queue, byte_store: ByteStore, limits: Limits, option: dict[str, Any]
) -> None:
    limits(heartbeat_look=1.0)
    written = byte_store.paths("write", "delete", of="leases")
    queue.publish(["a"])
    with working(queue.group().ensure(), **option):
        until(lambda: queue.group().stats().acked == 1)
        alive = "spark_mq heartbeat" in names_of_threads()
        assert not (alive and option == {"heartbeat": "off"})
    assert not [path for path in written if path.startswith("_workers/")]


def test_a_dropped_group_has_no_workers_left(queue: Queue) -> None:
    for name in ("a", "b"):
        queue.group(name).ensure()
        leave_heartbeat(queue, name, "w")
    queue.drop_group("a")
    assert files_of(queue) == ["_workers/b/w.json"]
    assert queue.group("a").ensure().workers() == []


def test_a_worker_does_not_make_a_deleted_queue_again(tmp_path: Path, clock: LookClock) -> None:
    queue = Queue.create(tmp_path / "queue", clock=clock, durable=False)
    handler = HeldHandler()  # meanwhile the worker does not look at the queue
    made_again = list[bool]()
    queue.publish(["a"])

    def drop_below_a_worker() -> None:
        with working(queue.group(), handler):
            assert handler.inside.wait(30)
            until(lambda: files_of(queue))
            Queue.drop_at(tmp_path / "queue", "queue")
            clock.advance("1m")
            clock.wait_for_looks()
            made_again.append((tmp_path / "queue").exists())
            handler.leave.set()

    with pytest.raises(NotAQueue):
        drop_below_a_worker()
    assert made_again == [False]


WRONG_FILES = [b"", b"\xff", b"null", b"[" * 4_000, b"{}"]
WRONG_FACTS = [{"seen_at": 2**62}, {"seen_at": True}, {"host": "x" * 5_000}]


def test_a_file_that_cannot_be_read_is_left_out(queue: Queue) -> None:
    group = queue.group().ensure()
    for number, content in enumerate(WRONG_FILES):
        ledgers_of(queue).files.write(f"_workers/default/{number}.json", content)
    for number, facts in enumerate(WRONG_FACTS):
        leave_heartbeat(queue, "default", f"wrong fact {number}", **facts)
    assert group.workers() == []
    leave_heartbeat(queue, "default", "w", of_a_later_version=1)
    assert states(group) == {"w": "idle"}
