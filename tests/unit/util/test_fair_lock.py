"""FairLock: order among threads, and a timeout."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.handles import until

from spark_mq.util import fair_lock
from spark_mq.util.fair_lock import FairLock, fair_lock_for


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
    one, two = fair_lock_for(path), fair_lock_for(path)
    assert one is two
    assert fair_lock_for(f"{path}/other") is not one
