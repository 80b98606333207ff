"""FairLock: order among threads, locks between processes, and a timeout."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.handles import until

from spark_mq.util import fair_lock
from spark_mq.util.fair_lock import FairLock, FileLock, fair_lock_for


def test_threads_enter_in_the_order_in_which_they_came() -> None:
    lock, order = FairLock(), list[int]()

    def enter(number: int) -> None:
        with lock.hold(30):
            order.append(number)

    with lock.hold():
        threads = []
        for number in range(6):
            threads.append(threading.Thread(target=enter, args=(number,)))
            threads[-1].start()
            until(lambda expected=number + 1: lock.waiting == expected)
        assert order == []
    for thread in threads:
        thread.join(30)
    assert order == list(range(6))


def test_the_thread_that_has_it_enters_again() -> None:
    lock = FairLock()
    with lock.hold(), lock.hold(0):
        assert len(lock._holds) == 2
    assert not lock.owners


def test_who_has_waited_for_long_enough_goes_in_without_its_turn() -> None:
    lock, inside = FairLock(), threading.Event()

    def impatient() -> None:
        with lock.hold(0.01):
            inside.set()

    with lock.hold():
        thread = threading.Thread(target=impatient)
        thread.start()
        assert inside.wait(30)
        thread.join(30)
        assert lock.owners == {threading.get_ident()}
    assert (lock.owners, lock.waiting) == (set(), 0)


def test_one_who_is_interrupted_while_it_waits_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Ctrl-C does to the main thread."""

    class Broken(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    lock, entered, leave = FairLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.hold():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(30)
    with monkeypatch.context() as patched:
        patched.setattr(fair_lock.threading, "Event", Broken)
        with pytest.raises(KeyboardInterrupt), lock.hold(30):
            pass
    assert lock.waiting == 0
    leave.set()
    thread.join(30)
    assert not lock.owners


def test_handles_of_one_process_share_a_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "leases")
    one, two = fair_lock_for(path, "g"), fair_lock_for(path, "g")
    assert one is two
    assert fair_lock_for(path, "h") is not one


def _hold(path: str, taken: Any) -> None:
    lock = FileLock(path)
    assert lock.acquire(30)
    taken.set()
    threading.Event().wait()  # until it is killed


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """Another process that has the lock."""
    context = multiprocessing.get_context("spawn")
    taken = context.Event()
    process = context.Process(target=_hold, args=(str(tmp_path / "locks" / "g"), taken))
    process.start()
    assert taken.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_lock_is_given_back_and_taken_from_the_dead(tmp_path: Path, holder: Any) -> None:
    lock = FileLock(str(tmp_path / "locks" / "g"))
    won: list[bool] = []
    thread = threading.Thread(target=lambda: won.append(lock.acquire(30)))
    thread.start()
    os.kill(holder.pid, signal.SIGKILL)
    thread.join(30)
    assert won == [True]
    lock.release()
    other = FileLock(str(tmp_path / "locks" / "g"))
    assert other.acquire(0)
    assert not lock.acquire(0)


def test_a_frozen_holder_costs_its_patience_once(tmp_path: Path, holder: Any) -> None:
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        lock = FileLock(str(tmp_path / "locks" / "g"))
        started = time.monotonic()
        assert not lock.acquire(0.2)
        first = time.monotonic() - started
        assert not lock.acquire(30)
        assert 0.2 <= first < 10
        assert time.monotonic() - started < 10
    finally:
        os.kill(holder.pid, signal.SIGCONT)


def test_where_no_lock_can_be_had_one_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert not FileLock(str(tmp_path / "file" / "locks" / "g")).acquire(30)
    with FairLock(FileLock(str(tmp_path / "file" / "locks" / "g"))).hold():
        pass
    monkeypatch.setattr(fair_lock, "fcntl", None)
    assert not FileLock(str(tmp_path / "locks" / "g")).acquire(30)
    assert not (tmp_path / "locks").exists()


def open_files() -> set[str]:
    """The lock files that this process has open."""
    paths = (
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    )
    return {os.path.basename(path) for path in paths if path.endswith((".lock", ".next"))}


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the system lists no open files")
def test_files_are_open_only_while_the_lock_is_held(tmp_path: Path) -> None:
    lock = fair_lock_for(str(tmp_path / "leases"), "group-of-this-test")
    assert open_files() == set()
    for _ in range(2):
        with lock.hold():
            with lock.hold():
                assert open_files() == {"group-of-this-test.lock"}
            assert open_files() == {"group-of-this-test.lock"}, "the outer block still holds it"
        assert open_files() == set()
    with pytest.raises(ValueError, match="inside"), lock.hold():
        raise ValueError("inside")
    assert open_files() == set()


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the system lists no open files")
def test_a_failed_try_leaves_no_file_open(tmp_path: Path, holder: Any) -> None:
    assert not FileLock(str(tmp_path / "locks" / "g")).acquire(0)
    assert open_files() == set()


def test_the_process_that_is_next_tries_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit takes 2 ms, so a longer pause would leave the lock free for most of the time."""
    holder, waiter = (FileLock(str(tmp_path / "lock")) for _ in range(2))
    assert holder.acquire(1.0)
    pauses: list[float] = []

    def nap(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            holder.release()

    monkeypatch.setattr(fair_lock.time, "sleep", nap)
    assert waiter.acquire(5.0)
    waiter.release()
    assert max(pauses) <= 0.0005


def test_a_lock_whose_creation_was_interrupted_releases_nothing() -> None:
    FileLock.__new__(FileLock).release()
