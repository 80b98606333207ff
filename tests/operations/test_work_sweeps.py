"""Workers that sweep their queue, one of them at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.byte_store import Injected
from support.handles import again, side_by_side, until
from support.tables import context_of, ledgers_of
from support.working import leave_heartbeat

from spark_mq import Queue, ReceivedMessage, Reject
from spark_mq.errors import StorageError
from spark_mq.testing import ManualClock
from spark_mq.worker import upkeep

MINUTE = 60_000_000


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues that were swept, each by its path. Nothing waits for the first sweep."""
    paths = list[str]()
    real = upkeep.run_sweep

    def run(queue: Any) -> Any:
        paths.append(queue.path)
        return real(queue)

    monkeypatch.setattr(upkeep, "run_sweep", run)
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.01)
    return paths


def sweeps_of(queue: Queue) -> upkeep.Sweeps:
    return upkeep.Sweeps([context_of(queue)], MINUTE)


def sweepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "spark_mq sweep"]


def refuse(message: ReceivedMessage) -> None:
    raise Reject("bad")


@pytest.mark.parametrize("sweep", [None, "1m"])
def test_a_worker_that_ends_by_itself_has_routed_its_dead_letters(
    queue: Queue, sweep: str | None
) -> None:
    """Although another process has just swept."""
    sweeps_of(again(queue)).run()
    queue.publish(["a"])
    queue.group().work(refuse, until="empty", sweep=sweep)
    assert queue.describe().dead_letters == (0 if sweep is None else 1)


def together(call: Callable[..., Any], threads: int = 2) -> Callable[..., Any]:
    """A function whose first calls of some threads end at the same time."""
    all_done = threading.Barrier(threads, timeout=60)
    seen = set[int]()

    def wait(*given: Any) -> Any:
        result = call(*given)
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            all_done.wait()
        return result

    return wait


def test_two_that_begin_at_once_give_way_and_one_sweeps_soon(
    queue: Queue,
    clock: ManualClock,
    swept: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither sees the other at first, and each has written its file before they look again."""
    both = [sweeps_of(queue), sweeps_of(again(queue))]
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "read_heartbeats", together(upkeep.read_heartbeats))
        patch.setattr(upkeep, "write_heartbeat", together(upkeep.write_heartbeat))
        waiting = both.copy()
        side_by_side(lambda: waiting.pop().run(), 2)
    assert len(swept) <= 1, "the later one to look sees the other"
    clock.advance("10s")
    for sweeps in both:
        sweeps.run()
    assert swept == [queue.path]


def test_a_sweep_that_was_killed_holds_up_the_others_for_an_interval(
    queue: Queue, clock: ManualClock, swept: list[str]
) -> None:
    leave_heartbeat(queue, "~sweep", "killed", interval=MINUTE, state="busy")
    own = sweeps_of(queue)
    own.run()
    own.run_last()
    assert swept == []
    clock.advance("61s")
    own.run()
    assert swept == [queue.path]
    clock.advance("61s")
    own.run()
    files = ledgers_of(queue).files.list_all("_workers/~sweep")
    assert len(files) == 1, "only its own file is left"


def test_neither_handlers_nor_the_end_wait_for_a_sweep(
    queue: Queue, swept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def hang(_: Any) -> None:
        began.set()
        assert go_on.wait(60)

    monkeypatch.setattr(upkeep, "run_sweep", hang)
    monkeypatch.setattr(upkeep, "_STOP_SECONDS", 0.01)

    def handle(message: ReceivedMessage) -> None:
        assert began.wait(60)

    queue.publish([str(number) for number in range(50)])
    try:
        assert queue.group().work(handle, until="settled", sweep="1s").acked == 50
    finally:
        go_on.set()


def test_a_sweep_that_fails_disturbs_nobody_and_is_tried_again(
    queue: Queue,
    clock: ManualClock,
    swept: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    own, fails = sweeps_of(queue), StorageError("the disk is gone")
    monkeypatch.setattr(upkeep, "run_sweep", Injected(upkeep.run_sweep, fail=fails))
    own.run()
    assert f"the sweep of queue {queue.path} failed, and is tried again: the disk" in caplog.text
    for _ in range(2):
        own.run()
        assert swept == [queue.path]
    clock.advance("61s")
    own.run()
    assert swept == [queue.path] * 2
    look = Injected(upkeep.read_heartbeats, fail=fails)
    monkeypatch.setattr(upkeep, "read_heartbeats", look)
    clock.advance("61s")
    own.run()
    own.run()
    assert look.calls == 1, "the store is not asked again at once"


def test_a_stream_sweeps_after_a_batch_in_a_thread_of_its_own(
    queue: Queue, swept: list[str]
) -> None:
    own = sweeps_of(queue)
    own.follow()
    own.follow()
    until(lambda: swept and not sweepers())
    own.follow()
    (timer,) = sweepers()
    assert timer.daemon
    timer.cancel()
    assert timer.interval == timedelta(minutes=1).total_seconds()
    assert swept == [queue.path]
