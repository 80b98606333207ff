"""The time limit of a handler: its messages fail, and what it decides later is refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.byte_store import ByteStore, Outage
from support.handles import again, until
from support.limits import Limits
from support.rule_variants import first, rule_variant
from support.working import counts, fail

from spark_mq import Lease, Message, Queue, ReceivedMessage, WorkSummary
from spark_mq.errors import HandlerTimeout

LIMIT = "150ms"


@contextlib.contextmanager
def hanging(condition: Callable[[], object] | None = None) -> Iterator[threading.Event]:
    """An event that hung handlers wait for. It is set once a condition holds, or at the end."""
    released = threading.Event()

    def release() -> None:
        if condition is not None:
            until(condition)
            released.set()

    watcher = threading.Thread(target=release)
    watcher.start()
    try:
        yield released
    finally:
        released.set()
        watcher.join(30)


async def hang(_: ReceivedMessage) -> None:
    await asyncio.Event().wait()


def work(queue: Queue, handler: Any, **options: Any) -> WorkSummary:
    given = {"mode": "message", "until": "settled", "timeout": LIMIT, **options}
    return queue.group().work(handler, **given)


def trace(queue: Queue, sequence: int) -> list[tuple[str, str | None]]:
    return [(event.event, event.error) for event in queue.trace(sequence).events]


@pytest.mark.parametrize("mode", ["message", "batch"])
def test_a_thread_that_hangs_fails_alone_and_is_refused_later(queue: Queue, mode: str) -> None:
    queue.group().configure(max_delivery_attempts=2, retry_delay=0, breaker_threshold=None)
    slow, *others = queue.publish(["slow", *map(str, range(9))]).sequences
    late = list[int]()

    def handle(given: Lease | ReceivedMessage) -> None:
        messages = given.messages if isinstance(given, Lease) else [given]
        if messages[0].text == "slow":
            released.wait(30)
            if isinstance(given, Lease):
                late.append(given.ack().settled)
            ended.release()

    ended = threading.Semaphore(0)
    with hanging() as released:
        summary = work(queue, handle, mode=mode, threads=3)
    for _ in range(2):
        assert ended.acquire(timeout=30)
    assert (summary.acked, summary.nacked, summary.failed) == (9, 2, 2)
    stats = again(queue).group().stats()
    assert (stats.acked, stats.dead) == (len(others), 1)
    assert late == ([0, 0] if mode == "batch" else [])
    found = trace(queue, slow)
    assert [event for event, _ in found][:4] == ["leased", "nacked", "leased", "nacked"]
    assert "exceeded its time limit of 0.15s" in str(found[1][1])
    assert "HandlerTimeout" in str(found[1][1])


def test_a_coroutine_is_cancelled(queue: Queue) -> None:
    queue.group().configure(retry_delay=0)
    (slow, *_) = queue.publish(["slow", *map(str, range(9))]).sequences
    cancelled = list[int]()

    async def handle(message: ReceivedMessage) -> None:
        if message.text != "slow" or message.delivery_count > 1:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message.sequence)
            raise

    summary = work(queue, handle, concurrency=1)
    assert (summary.acked, summary.nacked, cancelled) == (10, 1, [slow])
    ended = {"spark_mq time limit", "spark_mq keep-alive"}
    until(lambda: ended.isdisjoint(thread.name for thread in threading.enumerate()))
    assert "exceeded its time limit" in str(trace(queue, slow)[1][1])


@pytest.mark.parametrize(
    ("mode", "end"), [("message", "settled"), ("message", "empty"), ("batch", "settled")]
)
def test_if_all_threads_hang_a_warning_says_so_and_ready_messages_wait(
    queue: Queue, caplog: pytest.LogCaptureFixture, mode: str, end: str
) -> None:
    queue.group().configure(retry_delay=0)
    queue.publish("slow")
    seen, looks = list[str](), list[str]()
    looking = rule_variant("GroupLedger.stats", first(lambda a: looks.append(a.self.name)))

    def handle(given: Lease | ReceivedMessage) -> None:
        message = given.messages[0] if isinstance(given, Lease) else given
        seen.append(message.text)
        if len(seen) == 1:
            released.wait(30)

    def has_waited() -> bool:
        """It has no thread for the retry, leaves it to others, and does not end."""
        text = "exceeded their time limit of 0.15s and still run. Nothing is leased until one"
        until(lambda: text in caplog.text)
        before = len(looks)
        until(lambda: len(looks) > before)
        return seen == ["slow"] and counts(queue) == {"ready": 1}

    with looking, hanging(has_waited) as released:
        summary = work(queue, handle, mode=mode, until=end)
    assert (summary.acked, summary.nacked) == (1, 1)


def test_in_an_ordered_group_later_messages_of_the_key_come_back(tmp_path: Any) -> None:
    queue = Queue.create(tmp_path / "queue", lanes=4, order="key", retry_delay=0)
    first, *_ = queue.publish([Message(str(n), key="a") for n in range(4)]).sequences
    done = list[int]()

    async def handle(message: ReceivedMessage) -> None:
        if message.sequence == first and message.delivery_count == 1:
            await asyncio.Event().wait()
        done.append(message.sequence)

    summary = work(queue, handle)
    assert done == sorted(done)
    assert (summary.acked, summary.nacked, summary.released) == (4, 1, 3)


@pytest.mark.parametrize(
    ("on_error", "outcome"), [("reject", "dead"), ("ack", "acked"), ("raise", "leased")]
)
def test_on_error_decides_about_it(queue: Queue, on_error: str, outcome: str) -> None:
    queue.publish(["slow"])
    raises = pytest.raises(HandlerTimeout) if on_error == "raise" else contextlib.nullcontext()
    with hanging() as released, raises:
        work(queue, lambda _: released.wait(30) and None, on_error=on_error)
    assert counts(queue) == {outcome: 1}


@pytest.mark.parametrize("mode", ["message", "batch"])
def test_a_handler_that_hangs_in_a_failing_store_is_not_the_messages_failure(
    make: Any, byte_store: ByteStore, limits: Limits, mode: str
) -> None:
    limits(outage_pause=0.0)
    queue, outage, seen = make(), Outage(byte_store), list[int]()
    (sequence,) = queue.publish(["slow"]).sequences

    def handle(given: Lease | ReceivedMessage) -> None:
        message = given.messages[0] if isinstance(given, Lease) else given
        seen.append(message.delivery_count)
        if len(seen) == 1:
            outage.begin()
            released.wait(30)

    def has_ended() -> bool:
        ended = "released" in [event for event, _ in trace(again(queue), sequence)]
        outage.on = outage.on and not ended
        return ended

    with hanging(has_ended) as released:
        summary = work(queue, handle, mode=mode, threads=2)
    assert seen == [1, 1]
    assert (summary.acked, summary.nacked, summary.failed) == (1, 0, 0)


def test_a_handler_that_returns_at_its_limit_has_succeeded(queue: Queue) -> None:
    queue.publish("slow")
    may_return = threading.Event()

    def return_first(call: Any) -> None:
        may_return.set()
        until(lambda: not call.self.running())

    with rule_variant("OpenTasks.give_up", first(return_first)):
        summary = work(queue, lambda _: may_return.wait(30) and None)
    assert (summary.acked, summary.failed) == (1, 0)


@pytest.mark.timeout(20)
def test_an_error_in_the_thread_of_the_time_limit_ends_the_work(queue: Queue) -> None:
    queue.publish("slow")
    with rule_variant("Pool.give_up", first(fail)), pytest.raises(ValueError, match="boom"):
        work(queue, hang, shutdown_timeout=0)


def test_with_an_ack_first_the_message_stays_acked(queue: Queue) -> None:
    """Nothing extends its lease, whose longest duration would end the handler."""
    queue.publish(["slow"])
    steps = list[str]()
    noting = rule_variant("KeepAlive.remove", first(lambda _: steps.append("removed")))
    with noting, rule_variant("OpenTasks.claim", first(lambda _: steps.append("claimed"))):
        summary = work(queue, hang, ack="on_receive")
    assert (summary.acked, summary.failed, steps[:2]) == (1, 1, ["removed", "claimed"])
