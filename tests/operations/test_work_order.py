"""The worker that calls a handler for each message of an ordered group."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from support.handles import side_by_side, until
from support.having import having
from support.queues import Make
from support.working import counts, drain, working

from spark_mq import Message, Queue, ReceivedMessage, Reject, Retry, Snooze
from spark_mq.ledger.slots import SlotLayout
from spark_mq.testing import ManualClock, memory_queue

LANES = 8
LAYOUT = SlotLayout(LANES)


def key_in(lane: int, number: int = 0) -> str:
    """Return a key of a lane, another one for each number."""
    return [f"k{n}" for n in range(1_000) if LAYOUT.lane(f"k{n}") == lane][number]


@pytest.fixture
def ordered(make: Make) -> Make:
    """Makes an ordered queue."""
    settings = {"lanes": LANES, "order": "key", "retry_delay": 0, "breaker_threshold": None}
    return lambda **given: make(**settings, **given)


@pytest.fixture
def queue(ordered: Make) -> Queue:
    return ordered()


def test_lanes_run_side_by_side_and_each_in_order(queue: Queue) -> None:
    keys = [key_in(lane, number) for number in range(2) for lane in range(3)]
    queue.publish([Message(f"{n}", key=keys[n % 6]) for n in range(30)])
    together = threading.Barrier(3, timeout=30)
    seen: dict[int, list[int]] = {lane: [] for lane in range(3)}
    running, lock = Counter[int](), threading.Lock()

    def handle(message: ReceivedMessage) -> None:
        lane = LAYOUT.lane(message.key)
        with lock:
            running[lane] += 1
            assert running[lane] == 1, "one thread a lane at a time, also for its other keys"
        seen[lane].append(int(message.text))
        together.wait()  # as many lanes as threads
        with lock:
            running[lane] -= 1

    summary = drain(queue, handle, threads=3)
    assert (summary.acked, summary.failed) == (30, 0)
    assert seen == {lane: list(range(lane, 30, 3)) for lane in range(3)}


def test_a_failure_gives_up_the_later_messages_of_its_lane_uncounted(queue: Queue) -> None:
    queue.publish([Message(value, key=key_in(0)) for value in "abc"])
    queue.publish([Message(value, key=key_in(1)) for value in "xy"])
    seen: list[tuple[str, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.text, message.delivery_count))
        if message.text == "a" and message.delivery_count < 3:
            raise ValueError("not yet")

    summary = drain(queue, handle, max_messages=100)
    assert summary == having(acked=5, failed=2, nacked=2)
    of_a_lane = [(text, count) for text, count in seen if text in "abc"]
    assert of_a_lane == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1)]
    assert [(text, count) for text, count in seen if text in "xy"] == [("x", 1), ("y", 1)]


def test_messages_without_a_key_run_beside_each_other(queue: Queue) -> None:
    queue.publish([Message("a", key=key_in(0)), "b", "c"])
    together = threading.Barrier(3, timeout=30)
    summary = drain(queue, lambda message: together.wait() and None, threads=3)
    assert summary.acked == 3


@pytest.mark.parametrize("decision", [Reject("no"), ValueError("past its limit")])
def test_the_lane_goes_on_behind_a_dead_message(ordered: Make, decision: Exception) -> None:
    """Its lease keeps the later ones, so they must not wait for its expiry."""
    queue = ordered(max_delivery_attempts=1)
    queue.publish([Message(value, key=key_in(0)) for value in "abcd"])
    seen: list[tuple[str, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.text, message.delivery_count))
        if message.text == "b":
            raise decision

    drain(queue, handle, max_messages=100, threads=4)
    assert seen == [(value, 1) for value in "abcd"]
    assert counts(queue) == {"acked": 3, "dead": 1}


@pytest.mark.parametrize("decision", [Retry(delay="1h"), Snooze("1h")])
def test_a_delayed_message_holds_back_its_lane(
    queue: Queue, clock: ManualClock, decision: Exception
) -> None:
    """Also if the work ends with it."""
    queue.publish(Message("x", key=key_in(1)))
    queue.publish([Message(value, key=key_in(0)) for value in "abc"])
    seen, stop = list[str](), threading.Event()

    def handle(message: ReceivedMessage) -> Any:
        seen.append(message.text)
        if message.text == "a" and len(seen) < 4:
            stop.set()
            return decision
        return None

    summary = drain(queue, handle, max_messages=100, stop=stop)
    assert seen == ["x", "a"]
    assert summary.nacked + summary.released == 3
    (delayed,) = queue.group().peek(state="delayed")
    assert delayed.available_at - clock() == timedelta(hours=1)
    clock.advance("2h")
    seen += ["-"] * 4
    drain(queue, handle, max_messages=100)
    assert seen[6:] == ["a", "b", "c"]


def test_a_priority_of_a_lane_goes_on_behind_a_failure_of_another(queue: Queue) -> None:
    queue.publish([Message("urgent", key=key_in(0), priority=9) for _ in range(2)])
    queue.publish([Message(value, key=key_in(0)) for value in "ab"])
    seen: list[str] = []

    def handle(message: ReceivedMessage) -> Any:
        seen.append(message.text)
        return Retry(delay="1h") if len(seen) == 1 else None

    drain(queue, handle, max_messages=100)
    assert seen == ["urgent", "a", "b"]


def test_no_message_overtakes_an_earlier_one_of_its_key(queue: Queue) -> None:
    """Handlers that fail often, in several workers at once, judged by keys and sequences."""
    queue.group().configure(max_delivery_attempts=None)
    keys = [f"key-{n}" for n in range(12)]
    for start in range(0, 240, 60):
        queue.publish([Message(f"{n}", key=keys[n % 12]) for n in range(start, start + 60)])
    expected = {key: list(range(at, 240, 12)) for at, key in enumerate(keys)}
    lock = threading.Lock()
    ended: dict[str, list[int]] = {key: [] for key in keys}
    wrong: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        number = int(message.text)
        done = ended[message.key]
        with lock:
            if [*done, number] != expected[message.key][: len(done) + 1]:
                wrong.append(f"{number} after {done[-3:]}")
        if number % 5 == 0 and message.delivery_count < 3:
            raise ValueError("again")
        with lock:
            done.append(number)

    group = queue.group().ensure()
    options: dict[str, Any] = {"mode": "message", "threads": 3, "until": "settled",
                               "poll_interval": 0.02}  # fmt: skip
    side_by_side(lambda: group.work(handle, **options), 2)
    assert not wrong
    assert ended == expected
    assert group.stats().acked == 240


def test_messages_acked_first_run_in_order_as_soon_as_the_group_has_one() -> None:
    queue = memory_queue(lanes=LANES)
    queue.publish([Message("early", key=key_in(0)) for _ in range(3)])
    group, began_and_ended, pause = queue.group().ensure(), list[str](), threading.Event()

    def handle(message: ReceivedMessage) -> None:
        began_and_ended.append(message.text)
        pause.wait(0.002)
        began_and_ended.append(message.text)
        if message.text == "2":
            raise ValueError("bad")

    with working(group, handle, mode="message", threads=4, ack="on_receive"):
        until(lambda: len(began_and_ended) == 6)
        group.configure(order="key")
        queue.publish([Message(f"{n}", key=key_in(0)) for n in range(20)])
        until(lambda: len(began_and_ended) == 46)
    assert began_and_ended[6:] == [f"{n}" for n in range(20) for _ in range(2)]
