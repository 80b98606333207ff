"""Few threads decode at the same time, in the order in which they asked."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.handles import until
from support.limits import Limits

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet import reader
from spark_mq.parquet.reader import MessageReader, read_turns
from spark_mq.parquet.writer import write_file
from spark_mq.util import fair_lock
from spark_mq.util.fair_lock import FairLock, Hold


class Reader(threading.Thread):
    """Holds a turn until it may end."""

    def __init__(self, turns: FairLock, order: list[int], number: int = 0) -> None:
        super().__init__(daemon=True)
        self.turns, self.order, self.number = turns, order, number
        self.may_end = threading.Event()

    def run(self) -> None:
        with self.turns.hold(30):
            self.order.append(self.number)
            self.may_end.wait(30)


def start(turns: FairLock, order: list[int], number: int) -> Reader:
    """Start a reader, and wait until it has a turn or waits for one."""
    found = Reader(turns, order, number)
    before = len(order), turns.waiting
    found.start()
    until(lambda: (len(order), turns.waiting) != before)
    return found


def test_no_more_threads_than_places_read_and_the_first_that_waits_is_next() -> None:
    turns, order = FairLock(places=2), list[int]()
    readers = [start(turns, order, number) for number in range(5)]
    assert order == [0, 1]
    readers[1].may_end.set()
    until(lambda: len(order) == 3)
    assert order == [0, 1, 2]
    for one in readers:
        one.may_end.set()
        one.join(30)
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert order[:3] == [0, 1, 2]
    assert (len(turns.owners), turns.waiting) == (0, 0)


def test_a_long_turn_is_offered_to_those_that_wait(limits: Limits) -> None:
    turns, order = FairLock(), list[int]()
    limits(offer_seconds=0)
    with turns.hold(30) as hold:
        hold.offer()  # nobody waits
        other = start(turns, order, 7)
        limits(offer_seconds=60)
        hold.offer()  # it has just begun
        assert order == []
        other.may_end.set()
        limits(offer_seconds=0)
        hold.offer()
        assert order == [7]
    other.join(30)
    assert not turns.owners


def test_after_its_patience_a_thread_reads_without_a_turn() -> None:
    turns, read = FairLock(), threading.Event()

    def impatient() -> None:
        with turns.hold(0.01) as hold:
            hold.offer()
            read.set()

    with turns.hold(30):
        thread = threading.Thread(target=impatient)
        thread.start()
        assert read.wait(30)
        thread.join(30)
        assert (turns.owners, turns.waiting) == ({threading.get_ident()}, 0)
    assert not turns.owners


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_between_two_steps_of_a_turn_keeps_no_place(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is read when a turn begins, when it is offered, and when the next one begins."""
    reads, order = itertools.count(1), list[int]()
    turns = FairLock()

    def clock() -> float:
        if threading.current_thread() is not threading.main_thread():
            return 0.0
        if (read := next(reads)) == at:
            raise KeyboardInterrupt
        return float(read)

    class Time:
        monotonic = staticmethod(clock)

    def read() -> None:
        with turns.hold(30) as hold:
            other = start(turns, order, 7)
            other.may_end.set()
            hold.offer()

    monkeypatch.setattr(fair_lock, "time", Time)
    with pytest.raises(KeyboardInterrupt):
        read()
    until(lambda: not turns.owners and not turns.waiting)


def _turns_of_this_read() -> tuple[int, int]:
    with read_turns.hold(30):
        return len(read_turns.owners), read_turns.places


def test_a_forked_process_begins_with_free_places() -> None:
    with contextlib.ExitStack() as turns:
        order = list[int]()
        readers = [start(read_turns, order, number) for number in range(read_turns.places)]
        for one in readers:
            turns.callback(one.may_end.set)
        assert len(read_turns.owners) == read_turns.places
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(_turns_of_this_read) == (1, read_turns.places)
    until(lambda: not read_turns.owners)  # nothing that ran before keeps one


def test_a_turn_that_a_fork_has_cut_frees_no_second_place() -> None:
    turns, order = FairLock(), list[int]()
    with turns.hold(30):
        turns.reset()  # as in the forked process, which leaves the turn later
    with turns.hold(30):
        other = start(turns, order, 7)
        assert order == []
    other.may_end.set()
    other.join(30)


def test_only_reads_of_local_files_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of a read from an object store is waiting."""
    turns = []

    class Counted(FairLock):
        def hold(self, timeout: float = 0) -> Hold:
            turns.append(threading.get_ident())
            return super().hold(timeout)

    class Remote:
        root = "s3://bucket/queue/messages"
        is_local = False

        def __getattr__(self, name: str) -> Any:
            return getattr(files, name)

    monkeypatch.setattr(reader, "read_turns", Counted())
    files: Any = ObjectStore(str(tmp_path))
    written = write_file(files, pa.table({"value": pa.array([b"a", b"b"])}))
    piece = FileSlice(written.path, 0, 2, 0, 0, written.size)
    for store, expected in ((files, 1), (Remote(), 1), (files, 2)):
        rows = MessageReader(store).read(piece)
        assert rows["value"].to_pylist() == [b"a", b"b"]
        assert len(turns) == expected
