"""What waiting over a store costs, and how late it notices another process, on clocks of the test.

The queue is on a disk, and acts as if in an object store. Another process reaches it by another
name of its folder, because a handle of the same name would wake who waits.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.byte_store import VERBS, ByteStore, Call
from support.drivers import Runner
from support.handles import again, housekeep, index_commits, until
from support.rule_variants import first, rule_variant
from support.tables import as_in_a_store, checkpoint, commit_file, ledgers_of, messages_of
from support.working import working

from spark_mq import Lease, Queue
from spark_mq.testing import ManualClock
from spark_mq.util.clock import ElapsedClock

REQUESTS = tuple(verb for verb in VERBS if verb != "exists")
"""A call of ``exists`` is one of ``stat``."""
POLL = 2.0
"""Seconds: the default over a store."""


class Place:
    """A queue over a store, its clocks, and the calls that its handles make."""

    def __init__(self, queue: Queue, other: Queue, clock: ManualClock, store: ByteStore) -> None:
        self.other, self.calls = other, list[tuple[str, str, float]]()
        """Table, path and second of each call."""
        self._queue, self._clock = queue, clock
        self._seconds, self._read = 1_000.0, threading.local()
        self.seen = defaultdict[int, list[float]](list)
        """What each thread read from the clock."""
        self._elapsed = ElapsedClock(self._running, self._wall)
        store.on(*REQUESTS, act=self._note)

    def _note(self, call: Call) -> Any:
        try:
            return call.run()
        finally:
            self.calls.append((call.store.root, call.path, self._seconds))

    def handle(self) -> Queue:
        handle = as_in_a_store(again(self._queue))
        messages_of(handle).log.clock = ledgers_of(handle).log.clock = self._elapsed
        return handle

    def advance(self, seconds: float) -> None:
        self._seconds += seconds
        self._clock.advance(seconds)

    def has_calls(self, count: int) -> bool:
        return len(self.calls) >= count

    def have_waited(self, workers: int, times: int) -> bool:
        """Return whether so many workers read the clock at so many seconds. A try takes few."""
        mine = threading.get_ident()
        seen = [len(set(read)) for thread, read in list(self.seen.items()) if thread != mine]
        return len(seen) >= workers and min(seen) >= times

    def _running(self) -> float:
        self._read.seconds = self._seconds
        self.seen[threading.get_ident()].append(self._seconds)
        return self._seconds

    def _wall(self) -> float:
        """Agree with the other clock, also if a test moves them between both looks."""
        found: float = self._read.seconds
        return found

    def advance_to_a_look(self) -> None:
        """Move the clocks to the next look, and return when both tables were looked at."""
        self.advance(POLL)
        until(lambda: len({table for table, _, at in self.calls if at == self._seconds}) >= 2)


@pytest.fixture
def place(tmp_path: Path, clock: ManualClock, byte_store: ByteStore) -> Place:
    queue = Queue.create(tmp_path / "queue", clock=clock, durable=False)
    (tmp_path / "name of another process").symlink_to(tmp_path / "queue")
    other = Queue.open(tmp_path / "name of another process", clock=clock)
    for name in ("default", "second", "third"):
        queue.group(name).ensure()
    return Place(queue, other, clock, byte_store)


@contextmanager
def waiting(queue: Queue, group: str = "default") -> Iterator[list[Lease | None]]:
    """Let a worker wait for messages, and collect what it gets."""
    got = list[Lease | None]()
    with working(queue.group(group), got.append):
        yield got


def settle_down(place: Place, workers: int = 1) -> None:
    """Let the first try and the first pauses, which are shorter, of each worker pass."""
    while not place.have_waited(workers, 10):
        looked = partial(place.has_calls, len(place.calls) + 2)
        place.advance(POLL)
        until(looked)


@pytest.mark.parametrize("groups", [["default"], ["default", "second", "third", "default"]])
def test_a_minute_of_waiting_is_60_requests(place: Place, groups: list[str]) -> None:
    """All handles and groups of a process share their looks."""
    handles = itertools.cycle([place.handle(), place.handle()])
    with ExitStack() as workers:
        for group in groups:
            workers.enter_context(waiting(next(handles), group))
        settle_down(place, len(groups))
        place.calls.clear()
        place.seen.clear()
        for _ in range(30):
            place.advance_to_a_look()
        assert len(place.calls) == 60
        assert sum(map(len, place.seen.values())) < 600 * len(groups), "it sleeps"
        assert {path.partition("/")[0] for _, path, _ in place.calls} == {"_delta_log"}


def test_a_message_of_another_process_is_delivered_within_two_seconds(place: Place) -> None:
    """The worker of another group made the last look. Both get the message."""
    handle = place.handle()
    with waiting(handle) as mine, waiting(handle, "second") as theirs:
        settle_down(place, 2)
        place.advance(0.5)
        place.other.publish("a")
        place.advance(1.5)
        until(lambda: bool(mine and theirs))


def test_what_another_process_releases_is_delivered_within_two_seconds(place: Place) -> None:
    place.other.publish("a")
    held = place.other.group().lease("theirs")
    with waiting(place.handle()) as got:
        settle_down(place)
        held.release()
        place.advance(2)
        until(lambda: bool(got))


def test_a_worker_whose_log_was_cleaned_meanwhile_goes_on(place: Place) -> None:
    """The next version is gone as well, so that only a listing shows that there are others."""
    with waiting(place.handle()) as got:
        settle_down(place)
        for value in "abc":
            place.other.publish(value)
        index_commits(place.other)
        checkpoint(messages_of(place.other))
        housekeep(place.other, keep_versions=0, keep_seconds=0.0)
        place.advance(60.0)
        until(lambda: len(got) == 3)


# -- a stream


@pytest.fixture
def stream(place: Place) -> Any:
    """A stream that has found nothing."""
    source = Runner(place.handle(), group="default").source
    start = source.initial()
    for _ in range(2):  # the first look learns what the table has
        assert source.latest(start) == start
    assert not source.may_have_news(POLL)
    place.calls.clear()
    return source


def test_a_minute_of_an_idle_stream_is_60_requests(place: Place, stream: Any) -> None:
    stream.latest(stream.initial())  # reads each table once
    for _ in range(120):
        place.advance(POLL / 4)
        assert not stream.may_have_news(POLL)
    assert len(place.calls) == 2 + 60


def test_a_stream_leases_by_one_commit_although_its_file_is_checked_meanwhile(place: Place) -> None:
    runner, is_awaited = Runner(place.handle(), group="default", max_messages=1), threading.Event()

    def note_wait(call: Any) -> None:
        if call.end > time.monotonic():
            is_awaited.set()

    place.other.publish(["a", "b"])
    runner.batch()
    place.other.publish("c")
    runner.batch()
    slow = rule_variant("FileCheck.run", first(lambda _: is_awaited.wait(10)))
    waits = rule_variant("FileCheck.has_ended", first(note_wait))
    before = ledgers_of(place.other).version()
    with slow, waits:
        assert runner.offer()
        runner.plan()
    assert ledgers_of(place.other).version() == before + 1


def test_a_stream_lists_the_log_once_a_minute(place: Place, stream: Any) -> None:
    """So it notices a log that was made again and has as many commits."""
    place.other.group("new").ensure()
    place.advance(60.0)
    heard = ledgers_of(place.handle()).notifier.count
    assert stream.may_have_news(POLL)
    assert ledgers_of(place.handle()).notifier.count == heard + 1, "all that wait hear it"
    for _ in range(2):
        stream.latest(stream.initial())
    place.advance(60.0)
    assert not stream.may_have_news(POLL)
    ledgers = ledgers_of(place.other)
    last = commit_file(ledgers.path, ledgers.version())
    last.write_bytes(last.read_bytes())
    place.advance(60.0)
    assert stream.may_have_news(POLL)


def test_a_stream_hears_of_what_others_publish_nack_release_or_let_expire(
    place: Place, stream: Any
) -> None:
    start, others = stream.initial(), place.other.group()
    place.other.publish("a")

    def find_nothing_due() -> None:
        place.advance(POLL)
        assert stream.may_have_news(POLL)
        assert [stream.latest(start) for _ in range(2)] == [start, start]
        assert not stream.may_have_news(POLL)

    def lease_at_another_place() -> Lease:
        held = others.lease("theirs", visibility_timeout="10s")
        find_nothing_due()
        return held

    lease_at_another_place().nack(delay="10s")
    find_nothing_due()
    place.advance(12)
    for _ in range(2):
        assert stream.may_have_news(3600), "until it has looked"
    assert stream.latest(start) != start
    lease_at_another_place()
    place.advance(12)
    assert stream.may_have_news(3600)
    assert stream.latest(start) != start
    lease_at_another_place().release()
    place.advance(POLL)
    assert stream.may_have_news(POLL)
    assert stream.latest(start) != start
    until(lambda: place.calls[-1][1].startswith("part-"))  # it checks the file meanwhile
