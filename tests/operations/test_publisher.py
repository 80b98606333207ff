"""The buffered publisher: when it commits, that it loses nothing, and how errors reach the
caller.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from support.handles import again, die, lease, once, side_by_side, until
from support.queues import Make
from support.tables import messages_of, on_publish

from spark_mq import Message, PendingMessage, Queue, errors
from spark_mq.errors import ProducerFenced, PublisherClosed, PublishFailed
from spark_mq.testing import ManualClock

NEVER: dict[str, Any] = {"max_messages": 1000, "max_bytes": "1g", "linger": "1d"}
"""Nothing but a flush commits."""


def commits(queue: Queue) -> list[int]:
    """How many messages each commit published."""
    return [file.rows for file in messages_of(queue).index().files]


def published(queue: Queue) -> dict[int, bytes]:
    return {m.sequence: m.value for m in lease(queue, 100_000).messages}


class Gate:
    """Holds commits back until it is opened; counts those that have arrived."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.arrived = threading.Event(), threading.Event()

        def commit(run: Callable[[], Any]) -> Any:
            self.arrived.set()
            assert self.open.wait(60)
            return run()

        on_publish(monkeypatch, queue, commit)


def fail() -> None:
    raise OSError("disk full")


# -- what is handed in is published


def test_each_message_gets_its_sequence_and_a_bad_one_fails_alone(queue: Queue) -> None:
    with queue.publisher(**NEVER) as publisher:
        pending = [publisher.publish(b"bytes")]
        with pytest.raises(errors.InvalidOption, match="the message has"):
            publisher.publish(None)
        more = Message("more", key="k", headers={"h": "1"}, message_id="m")
        pending += [publisher.publish(message) for message in ("text", more)]
    assert all(message.done() for message in pending)
    *_, last = messages = lease(queue, 3).messages
    assert [message.result() for message in pending] == [m.sequence for m in messages]
    assert [m.value for m in messages] == [b"bytes", b"text", b"more"]
    assert (last.key, last.headers, last.message_id) == ("k", {"h": "1"}, "m")


def test_threads_share_a_publisher_and_lose_nothing(queue: Queue) -> None:
    got: dict[int | None, bytes] = {}

    def work() -> None:
        values = [f"{threading.get_ident()}-{n}".encode() for n in range(500)]
        mine = [(publisher.publish(value), value) for value in values]
        got.update((pending.result(60), value) for pending, value in mine)

    with queue.publisher(max_messages=50, linger="5ms") as publisher:
        side_by_side(work, 4)
    assert len(got) == 2_000
    assert got == published(queue)


def test_a_queues_default_times_hold_here_too(make: Make, clock: ManualClock) -> None:
    queue = make(delivery_delay="1m")
    with queue.publisher() as publisher:
        publisher.publish("default")
        publisher.publish(Message("own", deliver_at=clock() - timedelta(minutes=1)))
    assert list(published(queue).values()) == [b"own"]
    assert queue.group().stats().delayed == 1


# -- when it commits


def test_it_commits_once_enough_messages_are_there(queue: Queue) -> None:
    with queue.publisher(**{**NEVER, "max_messages": 3}) as publisher:
        first, second, _ = (publisher.publish(str(n)) for n in range(3))
        assert second.result(60) == first.result() + 1
        assert not publisher.publish("waits").done()
    assert commits(queue) == [3, 1]


def test_it_commits_once_enough_bytes_are_there(queue: Queue) -> None:
    with queue.publisher(**{**NEVER, "max_bytes": "1k"}) as publisher:
        publisher.publish(b"x" * 1000)
        over = publisher.publish(Message(b"y", key="k" * 30))
        over.result(60)
        assert commits(queue) == [2]


def test_it_commits_once_the_oldest_message_is_old_enough(queue: Queue) -> None:
    with queue.publisher(**{**NEVER, "linger": "10ms"}) as publisher:
        publisher.publish("a").result(60)
        assert commits(queue) == [1]


def test_what_comes_during_a_commit_waits_for_room_and_shares_the_next_one(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, handed_in = Gate(queue, monkeypatch), []

    def publish_many() -> None:
        for n in range(100):
            publisher.publish(str(n))
            handed_in.append(n)
            if n == 1:
                assert gate.arrived.wait(60)

    with (
        queue.publisher(max_messages=2, linger="1d") as publisher,
        ThreadPoolExecutor() as pool,
    ):
        publishing = pool.submit(publish_many)
        until(lambda: len(handed_in) == 32)  # 16 batches' worth
        with pytest.raises(TimeoutError):
            publishing.result(0.1)
        assert len(handed_in) == 32
        gate.open.set()
    assert commits(queue)[0] == 2
    assert commits(queue)[1] >= 30
    assert sum(commits(queue)) == 100


# -- closing


def test_after_an_error_in_its_block_it_has_published_all_and_takes_nothing(queue: Queue) -> None:
    publisher = queue.publisher(**NEVER)
    pending = publisher.publish("a")
    with pytest.raises(RuntimeError, match="elsewhere"), publisher:
        raise RuntimeError("elsewhere")
    publisher.close()
    assert pending.done()
    with pytest.raises(PublisherClosed):
        publisher.publish("b")
    assert commits(queue) == [1]


def test_who_waits_for_room_when_it_is_closed_is_reported(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, taken = Gate(queue, monkeypatch), list[Any]()
    publisher = queue.publisher(max_messages=1, linger="1d")

    def fill() -> None:
        while True:
            taken.append(publisher.publish("a"))

    with ThreadPoolExecutor() as pool:
        filling = pool.submit(fill)
        assert gate.arrived.wait(60)
        closing = pool.submit(publisher.close)
        assert isinstance(filling.exception(60), PublisherClosed)
        gate.open.set()
        closing.result(60)
    assert sum(commits(queue)) == len(taken), "what was taken is published"


@pytest.mark.slow
def test_a_publisher_that_nobody_closed_is_closed_with_the_interpreter(delta_queue: Make) -> None:
    queue = delta_queue()
    script = (
        "from spark_mq import Queue; "
        f"Queue.open({queue.path!r}).publisher(linger='1d').publish('a')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert commits(queue) == [1]


# -- errors


@pytest.mark.parametrize("producer", [None, "p"])
def test_a_commit_whose_reply_was_lost_is_not_repeated(
    delta_queue: Make, monkeypatch: pytest.MonkeyPatch, producer: str | None
) -> None:
    """Lost so thoroughly that the log could not look whether it had landed: its number shows it.

    A named publisher takes it for no rival's.
    """
    queue = delta_queue()
    on_publish(monkeypatch, queue, once(fail=OSError("connection reset by peer")))
    with queue.publisher(**NEVER, producer_id=producer) as publisher:
        pending = [publisher.publish(value) for value in ("a", "b")]
    assert published(queue) == {pending[0].result(): b"a", pending[1].result(): b"b"}


@pytest.mark.parametrize("landed", [False, True])
def test_a_batch_that_failed_for_good_is_reported_once_and_the_next_one_goes_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """Its number is not used again, because it may have landed all the same."""
    on_publish(monkeypatch, queue, once(**{"after" if landed else "before": fail}))
    with queue.publisher(**NEVER, retry_timeout=0) as publisher:
        bad = [publisher.publish(str(n)) for n in range(1000)]
        for one in bad[3:]:
            with pytest.raises(OSError, match=r"^disk full$"):
                one.result(60)
        why = "not published: 3 messages: disk full"
        with pytest.raises(PublishFailed, match=why) as caught:
            publisher.flush()
        assert caught.value.messages == 3
        assert isinstance(caught.value.__cause__, OSError)
        publisher.flush()
        good = publisher.publish("good")
    found = published(queue)
    assert len(found) == 1 + 1000 * landed
    assert found[good.result()] == b"good"


REFUSED = errors.StorageError("refused", path="p", landed=False, lasting=True)
MENDED = {
    # the error, how many messages the publisher has published, and whether it tries again
    "a store that fails for a moment": (OSError("503 slow down"), 0, True),
    "a refusal of the first batch": (REFUSED, 0, False),
    "a refusal of a later batch": (REFUSED, 1, True),
    "what no retry mends": (errors.CorruptLog("gone", path="p", version=None), 0, False),
}


@pytest.mark.parametrize("why", MENDED)
def test_a_commit_is_tried_again_if_that_may_help(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    (error, before, helps), tried = MENDED[why], list[int]()

    def commit(run: Callable[[], Any]) -> Any:
        tried.append(1)
        if len(tried) <= 2:
            raise error
        return run()

    with queue.publisher(retry_timeout="1d") as publisher:
        for _ in range(before):
            publisher.publish("before").result(60)
        on_publish(monkeypatch, queue, commit)
        pending = publisher.publish("a")
        with nullcontext() if helps else pytest.raises(type(error), match=str(error)):
            pending.result(60)
    assert len(tried) == (3 if helps else 1)
    assert sum(commits(queue)) == before + helps


# -- callbacks and event loops


def test_a_callback_gets_its_message_once_it_is_durable(queue: Queue) -> None:
    done = list[PendingMessage]()
    with queue.publisher(linger="1h") as publisher:
        pending = [publisher.publish(text) for text in ("a", "b")]
        for message in pending:
            message.add_done_callback(done.append)
        assert done == []
        publisher.flush()
        assert done == pending
        assert [message.result(0) for message in done] == list(published(queue))
        pending[0].add_done_callback(done.append)
        assert done[2:] == pending[:1], "called at once"


@pytest.mark.parametrize("error", [ValueError("broken callback"), SystemExit(3)])
def test_a_callback_that_fails_harms_nobody(
    queue: Queue, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def fail(_: PendingMessage) -> None:
        raise error

    done = list[PendingMessage]()
    with queue.publisher(linger="1h") as publisher, caplog.at_level(logging.ERROR):
        first = publisher.publish("a")
        first.add_done_callback(fail)
        first.add_done_callback(done.append)
        publisher.flush()
        assert done == [first]
        publisher.publish("b")
        publisher.flush()
    assert "a callback failed" in caplog.text
    assert queue.stats()["published"] == 2


def test_messages_can_be_awaited_and_a_cancelled_wait_cancels_no_publish(queue: Queue) -> None:
    async def wait(pending: PendingMessage) -> int | None:
        return await pending

    async def publish() -> list[int | None]:
        with queue.publisher(linger="1h") as publisher:
            pending = [publisher.publish(text) for text in "abc"]
            cancelled, *waits = [asyncio.create_task(wait(one)) for one in (pending[0], *pending)]
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            publisher.flush()
            return list(await asyncio.gather(*waits))

    assert asyncio.run(publish()) == list(published(queue))


def test_an_awaited_failure_is_raised_and_counts_as_reported(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_publish(monkeypatch, queue, once(before=fail))

    async def publish() -> None:
        with queue.publisher(linger="10ms", retry_timeout=0) as publisher:
            with pytest.raises(OSError, match="disk full"):
                await publisher.publish("a")
            publisher.flush()  # raises nothing more

    asyncio.run(publish())


# -- with a producer_id: each message lands once and in order, across restarts and rivals


LINES = [f"line {n}" for n in range(10)]


def lines(queue: Queue) -> list[str]:
    return [value.decode() for value in published(queue).values()]


def test_numbers_count_the_messages_and_go_on_after_a_restart(queue: Queue) -> None:
    with queue.publisher(**NEVER, producer_id="p") as publisher:
        assert publisher.last_number == 0
        first = [publisher.publish(line) for line in LINES[:4]]
        assert publisher.last_number == 0
        publisher.flush()
        assert publisher.last_number == 4
        late = publisher.publish(LINES[4])
        assert [pending.number for pending in [*first, late]] == [1, 2, 3, 4, 5]
    assert queue.last_producer_sequence("p") == 5
    with queue.publisher(producer_id="p") as publisher:
        assert publisher.last_number == 5
        assert publisher.publish(LINES[5]).number == 6
    with queue.publisher() as unnamed:
        assert unnamed.last_number is None
        assert unnamed.publish("other").number is None
    assert lines(queue) == [*LINES[:6], "other"]


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_crash_at_any_commit_repeats_and_skips_nothing(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, nth: int, landed: bool
) -> None:
    on_publish(monkeypatch, queue, once(at=nth, **{"after" if landed else "before": die}))
    dead = queue.publisher(max_messages=3, producer_id="p")

    def publish_all() -> None:
        for line in LINES:
            dead.publish(line)
            dead.flush()

    with pytest.raises(PublishFailed):
        publish_all()
    monkeypatch.undo()
    with queue.publisher(producer_id="p") as publisher:
        assert publisher.last_number == nth - (not landed)
        for line in LINES[publisher.last_number :]:
            publisher.publish(line)
    assert lines(queue) == LINES


@pytest.mark.parametrize("rivals", [1, 3])
def test_two_publishers_of_one_name_publish_no_number_twice(delta_queue: Make, rivals: int) -> None:
    """Whether the rival's numbers are the same, or lower: gaps are allowed for plain producers."""
    queue = delta_queue()
    zombie = queue.publisher(**NEVER, producer_id="p")
    with again(queue).publisher(producer_id="p") as other:
        for line in LINES[:rivals]:
            other.publish(line)
    pending = [zombie.publish(line) for line in LINES[:3]]
    with pytest.raises(PublishFailed) as failed:
        zombie.flush()
    fenced = failed.value.__cause__
    assert isinstance(fenced, ProducerFenced)
    assert fenced.data == {"producer_id": "p", "last_sequence": rivals, "expected": 0}
    for message in pending:
        with pytest.raises(ProducerFenced):
            message.result()
    with pytest.raises(PublisherClosed, match="has stopped: another publisher has published"):
        zombie.publish("more")
    zombie.close()
    assert lines(queue) == LINES[:rivals]


def test_nothing_behind_a_failed_message_is_published(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its number would be below the last one, and a restart would skip it."""

    def publish_more_and_fail() -> None:
        publisher.publish(LINES[1])  # there before the first has failed
        fail()

    on_publish(monkeypatch, queue, once(before=publish_more_and_fail))
    publisher = queue.publisher(**NEVER, retry_timeout=0, producer_id="p")
    publisher.publish(LINES[0])
    with pytest.raises(PublishFailed, match="disk full"):
        publisher.flush()
    with pytest.raises(PublishFailed, match="disk full"):
        publisher.close()
    assert commits(queue) == []
