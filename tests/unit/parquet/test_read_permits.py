"""Few threads decode at the same time, in the order in which they asked."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.handles import until

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet import read_permits as module
from spark_mq.parquet import reader
from spark_mq.parquet.read_permits import ReadPermits, read_permits
from spark_mq.parquet.reader import MessageReader
from spark_mq.parquet.writer import write_file


class Reader(threading.Thread):
    """Holds a turn until it may end."""

    def __init__(self, permits: ReadPermits, order: list[int], number: int = 0) -> None:
        super().__init__(daemon=True)
        self.permits, self.order, self.number = permits, order, number
        self.may_end = threading.Event()

    def run(self) -> None:
        with self.permits.turn():
            self.order.append(self.number)
            self.may_end.wait(30)


def start(permits: ReadPermits, order: list[int], number: int) -> Reader:
    """Start a reader, and wait until it has a permit or waits for one."""
    found = Reader(permits, order, number)
    before = len(order), len(permits.waiting)
    found.start()
    until(lambda: (len(order), len(permits.waiting)) != before)
    return found


def test_no_more_threads_than_slots_read_and_the_first_that_waits_is_next() -> None:
    permits, order = ReadPermits(2, patience=30), list[int]()
    readers = [start(permits, order, number) for number in range(5)]
    assert order == [0, 1]
    readers[1].may_end.set()
    until(lambda: len(order) == 3)
    assert order == [0, 1, 2]
    for one in readers:
        one.may_end.set()
        one.join(30)
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert order[:3] == [0, 1, 2]
    assert (len(permits.held), len(permits.waiting)) == (0, 0)


def test_a_long_turn_is_offered_to_those_that_wait() -> None:
    now = [0.0]
    permits, order = ReadPermits(1, patience=30, clock=lambda: now[0]), list[int]()
    with permits.turn() as offer:
        now[0] = 1
        offer()  # nobody waits
        other = start(permits, order, 7)
        now[0] = 0.01
        offer()  # it has just begun
        assert order == []
        other.may_end.set()
        now[0] = 2
        offer()
        assert order == [7]
    other.join(30)
    assert not permits.held


def test_after_its_patience_a_thread_reads_without_a_slot() -> None:
    permits = ReadPermits(1, patience=0.01)
    with permits.turn():
        with permits.turn() as offer:
            offer()
        assert (len(permits.held), len(permits.waiting)) == (1, 0)
    assert not permits.held


def test_an_interrupt_while_waiting_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    permits = ReadPermits(1, patience=30)

    class Interrupted:
        def acquire(self, timeout: float = -1) -> bool:
            if timeout > 0:
                raise KeyboardInterrupt
            return True

    with permits.turn():
        with monkeypatch.context() as patched:
            patched.setattr(module.threading, "Lock", Interrupted)
            with pytest.raises(KeyboardInterrupt), permits.turn():
                pass
        assert not permits.waiting
    assert not permits.held


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_between_two_steps_of_a_turn_keeps_no_slot(at: int) -> None:
    """The clock is read when a turn begins, when it is offered, and when the next one begins."""
    reads, order = itertools.count(1), list[int]()

    def clock() -> float:
        if threading.current_thread() is not threading.main_thread():
            return 0.0
        if (read := next(reads)) == at:
            raise KeyboardInterrupt
        return float(read)

    def read() -> None:
        with permits.turn() as offer:
            other = start(permits, order, 7)
            other.may_end.set()
            offer()

    permits = ReadPermits(1, patience=30, clock=clock)
    with pytest.raises(KeyboardInterrupt):
        read()
    until(lambda: not permits.held and not permits.waiting)


def _held_by_this_turn() -> tuple[int, int]:
    with read_permits.turn():
        return len(read_permits.held), read_permits.number


def test_a_forked_process_begins_with_free_slots() -> None:
    with contextlib.ExitStack() as turns:
        for _ in range(read_permits.number):
            turns.enter_context(read_permits.turn())
        assert len(read_permits.held) == read_permits.number
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(_held_by_this_turn) == (1, read_permits.number)
    until(lambda: not read_permits.held)  # nothing that ran before keeps one


def test_a_turn_that_a_fork_has_cut_frees_no_second_slot() -> None:
    permits, order = ReadPermits(1, patience=30), list[int]()
    with permits.turn():
        permits.reset()  # as in the forked process, which leaves the turn later
    with permits.turn():
        other = start(permits, order, 7)
        assert order == []
    other.may_end.set()
    other.join(30)


def test_only_reads_of_local_files_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of a read from an object store is waiting."""
    turns = []

    class Counted(ReadPermits):
        @contextmanager
        def turn(self) -> Iterator[Any]:
            turns.append(threading.get_ident())
            with super().turn() as offer:
                yield offer

    class Remote:
        root = "memory://queue/messages"

        def __getattr__(self, name: str) -> Any:
            return getattr(files, name)

    monkeypatch.setattr(reader, "read_permits", Counted(1))
    files: Any = ObjectStore(str(tmp_path))
    written = write_file(files, pa.table({"value": pa.array([b"a", b"b"])}))
    piece = FileSlice(written.path, 0, 2, 0, 0, written.size)
    for store, expected in ((files, 1), (Remote(), 1), (files, 2)):
        rows = MessageReader(store).read(piece)
        assert rows["value"].to_pylist() == [b"a", b"b"]
        assert len(turns) == expected
