"""Waiting for messages: what wakes a waiter, and when."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.byte_store import ByteStore
from support.handles import again, lease, leased, until
from support.limits import Limits
from support.queues import Make
from support.rule_variants import first, rule_variant, then
from support.tables import as_in_a_store, context_of, messages_of

from spark_mq import Lease, Message, Queue
from spark_mq.errors import NotAQueue
from spark_mq.testing import ManualClock, next_due

LONG = "1h"  # of a poll that no test waits for
Wait = Future[Lease]
Starts = Callable[..., Wait]


def values(wait: Wait) -> list[bytes]:
    """The messages that ended a wait."""
    return [message.value for message in wait.result(30).messages]


@pytest.fixture
def waiter_on(limits: Limits) -> Iterator[Starts]:
    """Starts a wait for a lease, and returns once that has looked and found nothing.

    It polls never, unless a test says how often, so only what wakes it can end the wait.
    """
    sits = threading.Event()

    def start(queue: Queue, poll_interval: str = LONG) -> Wait:
        sits.clear()
        options: Any = {"wait": "60s", "poll_interval": poll_interval, "max_messages": 10}
        waiter: Future[Any] = pool.submit(queue.group().lease, "w", **options)
        assert sits.wait(30)
        return waiter

    limits(poll_pause=3600.0)
    looked = rule_variant("_seconds_until_due", first(lambda _: sits.set()))
    with looked, ThreadPoolExecutor() as pool:
        yield start


@pytest.mark.parametrize(
    "what",
    [lambda taken, _: taken.nack(delay=0), lambda _, clock: clock.advance("62s")],
    ids=["nacked", "past its deadline"],
)
def test_what_makes_a_message_due_wakes_who_waits(
    make: Make, clock: ManualClock, waiter_on: Starts, what: Callable[..., object]
) -> None:
    queue = make(max_in_flight=1)
    taken, waiter = leased(queue, "a", "b", count=1), waiter_on(again(queue))
    what(taken, clock)
    assert values(waiter) == [b"a"]


def test_a_delayed_message_is_leased_when_it_is_due(tmp_path: Path) -> None:
    """On the machine's clock: never early, and at most a second late."""
    queue = Queue.create(tmp_path / "queue")
    due = context_of(queue).clock() + timedelta(seconds=1.2)
    queue.publish([Message("later", deliver_at=due)])
    taken = queue.group().lease("w", wait="30s", poll_interval=LONG)
    assert taken is not None
    assert timedelta() <= context_of(queue).clock() - due < timedelta(seconds=1.5)


def test_what_becomes_due_between_a_try_and_its_pause_is_leased(
    queue: Queue, clock: ManualClock, limits: Limits
) -> None:
    limits(poll_pause=3600.0)
    leased(queue, "a").nack(delay="1s")
    with rule_variant("_seconds_until_due", first(lambda *_: clock.advance("1s"))):
        taken = queue.group().lease("w", wait="10s", poll_interval=LONG)
    assert taken is not None


def test_a_publish_wakes_who_waits_and_who_loses_the_race_waits_on(
    queue: Queue, waiter_on: Starts
) -> None:
    waiters = [waiter_on(queue), waiter_on(again(queue))]
    queue.publish("a")
    _, (loser,) = wait(waiters, 30, FIRST_COMPLETED)
    assert not wait([loser], 0.5).done
    queue.publish("b")
    assert values(loser) == [b"b"]


@pytest.mark.parametrize("passed", ["1s", "61.000001s", "62s"])
def test_a_wait_for_a_paused_group_ends_with_its_time_and_nothing(
    queue: Queue, clock: ManualClock, tries: list[float], passed: str
) -> None:
    leased(queue, "a")
    queue.group().pause()
    clock.advance(passed)
    tries.clear()
    started = time.monotonic()
    assert queue.group().lease("w", wait="50ms", poll_interval=LONG) is None
    assert 0.05 <= time.monotonic() - started < 10
    assert len(tries) == 1


def test_a_full_group_is_waited_for_and_the_reason_is_known(make: Make, waiter_on: Starts) -> None:
    queue = make(max_in_flight=1)
    taken = leased(queue, "a", "b", count=1)
    assert queue.group().lease("w", wait="20ms") is None
    assert queue.group().blocked_because == "max_in_flight"
    waiter = waiter_on(queue)
    taken.ack()
    assert values(waiter) == [b"b"]


@pytest.fixture
def tries() -> Iterator[list[float]]:
    """Gets the time of each try to lease."""
    made = list[float]()
    with rule_variant("GroupCommitter.run", first(lambda _: made.append(time.monotonic()))):
        yield made


def test_a_lease_tries_again_once_a_slow_check_of_its_file_has_ended(
    delta_queue: Make, limits: Limits
) -> None:
    limits(check_seconds=0.0)
    queue, end, ended = as_in_a_store(delta_queue()), threading.Event(), list[bool]()
    slow = rule_variant("FileCheck.run", first(lambda _: end.wait(10)))
    waits = rule_variant("FileChecks.finish", first(lambda _: end.set()))
    waited = rule_variant("FileCheck.finish", then(lambda _, a: ended.append(a.self.readable)))
    with slow, waits, waited:
        assert leased(queue, "a")
    assert ended == [True]


def test_within_a_process_a_waiter_is_awake_within_20_ms(
    tmp_path: Path, waiter_on: Starts, tries: list[float]
) -> None:
    """From the end of the publish to the next look.

    The median of some, for the machine has others to serve.
    """
    queue = Queue.create(tmp_path / "queue")
    queue.group().ensure()
    delays = list[float]()
    for _ in range(9):
        waiter = waiter_on(queue)
        tries.clear()
        queue.publish("a")
        published = time.monotonic()
        waiter.result(30).ack()
        delays.append(tries[0] - published)
    assert sorted(delays)[4] < 0.02


def test_a_publish_of_another_process_is_noticed_between_two_tries(
    tmp_path: Path, waiter_on: Starts, limits: Limits, byte_store: ByteStore, tries: list[float]
) -> None:
    """Another name of the folder stands for another process."""
    queue = Queue.create(tmp_path / "queue")
    (tmp_path / "name of another process").symlink_to(tmp_path / "queue")
    other = Queue.open(tmp_path / "name of another process")
    limits(looks_a_pause=360_000)  # one each 10 ms
    waiter = waiter_on(queue)
    tries.clear()
    looks = byte_store.paths("exists", of=messages_of(queue).files)
    until(lambda: len(looks) >= 5)
    assert not tries, "a look takes no turn to commit"
    other.publish(["a"])
    assert values(waiter) == [b"a"]
    assert len(tries) == 1


def test_who_waits_tries_again_only_after_a_commit_of_another_process(
    tmp_path: Path, waiter_on: Starts, byte_store: ByteStore, tries: list[float]
) -> None:
    queue = Queue.create(tmp_path / "queue")
    (tmp_path / "name of another process").symlink_to(tmp_path / "queue")
    other = Queue.open(tmp_path / "name of another process")
    other.publish(["a"])
    taken = lease(other, 1)
    queue.group().stats()  # else its first try hears of the lease, and a second one follows
    waiter = waiter_on(queue, poll_interval="10ms")
    tries.clear()
    looks = byte_store.paths("exists", of=context_of(queue).ledgers.log.store)
    until(lambda: len(looks) >= 10)
    assert not tries
    taken.release()
    assert values(waiter) == [b"a"]


def test_who_waits_hears_that_the_queue_was_deleted(tmp_path: Path, waiter_on: Starts) -> None:
    queue = Queue.create(tmp_path / "queue")
    queue.group().ensure()
    waiter = waiter_on(queue, poll_interval="10ms")
    shutil.rmtree(tmp_path / "queue")
    with pytest.raises(NotAQueue):
        waiter.result(30)


def test_a_look_that_fails_is_followed_by_a_try_which_says_why(
    tmp_path: Path, waiter_on: Starts, limits: Limits, byte_store: ByteStore, tries: list[float]
) -> None:
    queue = Queue.create(tmp_path / "queue")
    limits(looks_a_pause=360_000)
    waiter = waiter_on(queue)
    tries.clear()
    byte_store.inject("exists", of=messages_of(queue).files, fail=PermissionError(13, "no"))
    until(lambda: tries)
    queue.publish(["a"])
    assert values(waiter) == [b"a"]


def test_what_time_alone_will_bring_is_known_beforehand(queue: Queue, clock: ManualClock) -> None:
    group = queue.group().ensure()

    def seconds() -> float | None:
        due = next_due(group)
        return None if due is None else (due - clock()).total_seconds()

    assert seconds() is None
    taken = leased(queue, "a", "b", count=1)
    assert seconds() == 61.000001, "after the deadline and the margin"
    taken.nack(delay="20s")
    assert seconds() == 20
    queue.publish(["c"], deliver_at=clock() + timedelta(seconds=5))
    assert 5 <= seconds() <= 6  # type: ignore[operator]
