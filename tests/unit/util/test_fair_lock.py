"""FairLock: order among threads, places, offers, and a timeout."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest
from support.handles import until
from support.limits import Limits

from spark_mq.util import fair_lock
from spark_mq.util.fair_lock import FairLock, fair_lock_for


class Holder(threading.Thread):
    """Holds a lock until it may end."""

    def __init__(self, lock: FairLock, order: list[int], number: int = 0) -> None:
        super().__init__(daemon=True)
        self.lock, self.order, self.number = lock, order, number
        self.may_end = threading.Event()

    def run(self) -> None:
        with self.lock.hold(30):
            self.order.append(self.number)
            self.may_end.wait(30)


def start(lock: FairLock, order: list[int], number: int) -> Holder:
    """Start a thread, and wait until it has a place or waits for one."""
    holder, before = Holder(lock, order, number), (len(order), lock.waiting)
    holder.start()
    until(lambda: (len(order), lock.waiting) != before)
    return holder


@pytest.mark.parametrize("places", [1, 2])
def test_threads_enter_in_the_order_in_which_they_came(places: int) -> None:
    lock, order = FairLock(places=places), list[int]()
    holders = [start(lock, order, number) for number in range(6)]
    for number, holder in enumerate(holders):
        inside = min(6, number + places)
        until(lambda inside=inside: len(order) == inside)
        assert order == list(range(inside))
        holder.may_end.set()
        holder.join(30)
    assert (len(lock.owners), lock.waiting) == (0, 0)


def test_the_thread_that_has_it_enters_again() -> None:
    lock = FairLock()
    with lock.hold(), lock.hold(0):
        assert len(lock._holds) == 2
    assert not lock.owners


def test_a_long_turn_is_offered_to_those_that_wait(limits: Limits) -> None:
    lock, order = FairLock(), list[int]()
    limits(offer_seconds=0)
    with lock.hold(30) as hold:
        hold.offer()  # nobody waits
        other = start(lock, order, 7)
        limits(offer_seconds=60)
        hold.offer()  # it has just begun
        assert order == []
        other.may_end.set()
        limits(offer_seconds=0)
        hold.offer()
        assert order == [7]
    other.join(30)
    assert not lock.owners


def test_who_has_waited_for_long_enough_goes_in_without_its_turn() -> None:
    lock, inside = FairLock(), threading.Event()

    def impatient() -> None:
        with lock.hold(0.01) as hold:
            hold.offer()
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

    lock, order = FairLock(), list[int]()
    other = start(lock, order, 7)
    with monkeypatch.context() as patched:
        patched.setattr(fair_lock.threading, "Event", Broken)
        with pytest.raises(KeyboardInterrupt), lock.hold(30):
            pass
    assert lock.waiting == 0
    other.may_end.set()
    other.join(30)
    assert not lock.owners


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_between_two_steps_of_a_turn_keeps_no_place(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is read when a turn begins, when it is offered, and when the next one begins."""
    reads, order = itertools.count(1), list[int]()
    lock = FairLock()

    def clock() -> float:
        if threading.current_thread() is not threading.main_thread():
            return 0.0
        if (read := next(reads)) == at:
            raise KeyboardInterrupt
        return float(read)

    class Time:
        monotonic = staticmethod(clock)

    def take_a_turn() -> None:
        with lock.hold(30) as hold:
            other = start(lock, order, 7)
            other.may_end.set()
            hold.offer()

    monkeypatch.setattr(fair_lock, "time", Time)
    with pytest.raises(KeyboardInterrupt):
        take_a_turn()
    until(lambda: not lock.owners and not lock.waiting)


def test_a_turn_that_a_fork_has_cut_frees_no_second_place() -> None:
    lock, order = FairLock(), list[int]()
    with lock.hold(30):
        lock.reset()  # as in the forked process, which leaves the turn later
    with lock.hold(30):
        other = start(lock, order, 7)
        assert order == []
    other.may_end.set()
    other.join(30)


def test_handles_of_one_process_share_a_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "leases")
    one, two = fair_lock_for(path), fair_lock_for(path)
    assert one is two
    assert fair_lock_for(f"{path}/other") is not one
