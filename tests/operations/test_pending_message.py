"""Wait for a pending message by a callback, and in an event loop."""

from __future__ import annotations

import asyncio
import logging

import pytest
from support.tables import on_publish

from spark_mq import PendingMessage, Queue
from spark_mq.errors import StorageError


def test_a_callback_gets_its_message_once_it_is_durable(queue: Queue) -> None:
    done = list[PendingMessage]()
    with queue.publisher(linger="1h") as publisher:
        pending = [publisher.publish(text) for text in ("a", "b")]
        for one in pending:
            one.add_done_callback(done.append)
        assert done == []
        publisher.flush()
        assert done == pending
        lease = queue.group().lease(max_messages=2)
        assert [one.result(0) for one in done] == [m.sequence for m in lease.messages]
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


def test_messages_can_be_awaited(queue: Queue) -> None:
    async def publish() -> list[int | None]:
        with queue.publisher(linger="10ms") as publisher:
            return list(await asyncio.gather(*map(_wait, map(publisher.publish, "abc"))))

    sequences = asyncio.run(publish())
    lease = queue.group().lease(max_messages=3)
    assert sequences == [message.sequence for message in lease.messages]


async def _wait(pending: PendingMessage) -> int | None:
    return await pending


def test_a_cancelled_wait_cancels_no_publish(queue: Queue) -> None:
    async def publish() -> None:
        with queue.publisher(linger="1h") as publisher:
            pending = publisher.publish("a")
            task = asyncio.create_task(_wait(pending))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            publisher.flush()
            assert await pending is not None

    asyncio.run(publish())
    assert queue.stats()["published"] == 1


def test_an_awaited_failure_is_raised_and_counts_as_reported(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise StorageError("full", path="p", landed=False)

    on_publish(monkeypatch, queue, fail)

    async def publish() -> None:
        with queue.publisher(linger="10ms", retry_timeout=0) as publisher:
            with pytest.raises(StorageError):
                await publisher.publish("a")
            publisher.flush()  # raises nothing more

    asyncio.run(publish())
