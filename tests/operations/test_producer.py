"""A publisher with a producer_id: each message lands once and in order, across restarts and
rivals.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.handles import again, once
from support.tables import messages_of, on_publish

from spark_mq import Queue
from spark_mq.errors import ProducerFenced, PublisherClosed, PublishFailed

Make = Callable[..., Queue]
LINES = [f"line {n}" for n in range(10)]
NEVER: dict[str, Any] = {"max_messages": 1000, "max_bytes": "1g", "linger": "1d"}
"""Nothing but a flush commits."""


def published(queue: Queue) -> list[str]:
    index = messages_of(queue).index()
    slices = index.slices(0, index.last_sequence)
    tables = [table for _, table in messages_of(queue).read(slices, ["value"])]
    return [value.decode() for table in tables for value in table["value"].to_pylist()]


class Crash(BaseException):
    """The process ends here, as far as its publisher can see."""


def crash(queue: Queue, monkeypatch: pytest.MonkeyPatch, nth: int, *, landed: bool) -> None:
    """The nth commit from now on ends in a crash, with its messages or without."""

    def end() -> None:
        raise Crash

    on_publish(monkeypatch, queue, once(at=nth, **{"after" if landed else "before": end}))


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
    assert published(queue) == [*LINES[:6], "other"]


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_crash_at_any_commit_repeats_and_skips_nothing(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, nth: int, landed: bool
) -> None:
    crash(queue, monkeypatch, nth, landed=landed)
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
    assert published(queue) == LINES


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
    assert published(queue) == LINES[:rivals]


def test_nothing_behind_a_failed_message_is_published(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its number would be below the last one, and a restart would skip it."""

    def fail() -> None:
        publisher.publish(LINES[1])  # there before the first has failed
        raise OSError("disk full")

    on_publish(monkeypatch, queue, once(before=fail))
    publisher = queue.publisher(**NEVER, retry_timeout=0, producer_id="p")
    publisher.publish(LINES[0])
    with pytest.raises(PublishFailed, match="disk full"):
        publisher.flush()
    with pytest.raises(PublishFailed, match="disk full"):
        publisher.close()
    assert published(queue) == []


CHILD = """
import sys
from spark_mq import Queue
with Queue.open(sys.argv[1]).publisher(max_messages=7, linger="1ms", producer_id="p") as publisher:
    for n in range(publisher.last_number, 300):
        publisher.publish(f"line {n}")
        if n % 20 == 19:
            publisher.flush()
            print(n, flush=True)
"""


@pytest.mark.slow
def test_killed_processes_repeat_and_skip_nothing(delta_queue: Make) -> None:
    queue = delta_queue()
    for kills in (2, 5, 0):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, queue.path], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            for _ in range(kills):
                assert child.stdout.readline()
            if kills:
                child.kill()
            else:
                assert child.wait(60) == 0
    assert published(queue) == [f"line {n}" for n in range(300)]
