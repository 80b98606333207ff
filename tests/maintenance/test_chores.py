"""Each chore of a sweep is killed, loses a reply and meets rivals at each of its commits.

What it does happens once, and whoever has finished it reports it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from support.handles import (
    again,
    archive,
    complete,
    history,
    index_commits,
    killed,
    lease,
    on_commit,
    publish_due,
    route,
    side_by_side,
    take_all,
    trim,
    trimmable,
)
from support.having import having
from support.queues import Make
from support.tables import messages_of

from spark_mq import Queue
from spark_mq.testing import ManualClock


class Chore(NamedTuple):
    commits: int
    counted: int
    """The commit whose maker reports it."""
    count: int
    """What is reported."""
    prepare: Callable[[Make, ManualClock], Queue]
    run: Callable[[Queue], int]
    check: Callable[[Queue], None]
    """What must hold when it has been done once."""


def with_dead(make: Make, _: ManualClock) -> Queue:
    queue = make()
    queue.publish(["0", "1", "2"])
    lease(queue, 3).reject()
    return queue


def were_routed(queue: Queue) -> None:
    assert take_all(queue.dead_letters.group()) == ["0", "1", "2"]
    assert queue.group().stats() == having(dead_lettered=3, dead=0, transferring=0)


def with_letters(make: Make, clock: ManualClock) -> Queue:
    queue = with_dead(make, clock)
    assert queue.sweep().routed == 3
    return queue


def were_redriven(queue: Queue) -> None:
    assert take_all(queue.group()) == ["0", "1", "2"]


def were_trimmed(queue: Queue) -> None:
    assert messages_of(queue).files.list("") == []
    queue.publish("d")
    assert take_all(queue.group()) == ["d"]


def with_schedule(make: Make, clock: ManualClock) -> Queue:
    queue = make()
    queue.schedule("s", every="1h", message="x", catch_up="all")
    clock.advance("2h")
    return queue


def were_published(queue: Queue) -> None:
    first, second = (message.headers["spark_mq.scheduled_at"] for message in queue.peek(10))
    assert first < second


def with_batch(make: Make, _: ManualClock) -> Queue:
    queue = make()
    queue.group().ensure()
    queue.publish(["a", "b"], batch_id="b")
    queue.close_batch("b", to=queue)
    lease(queue).ack()
    return queue


def was_completed(queue: Queue) -> None:
    (message,) = queue.peek(10)[2:]
    counts = message_counts(json.loads(message.value))
    assert counts == {"acked": 2}
    assert message_counts({"groups": queue.batches()[0].counts}) == counts


def message_counts(value: dict[str, dict[str, dict[str, int]]]) -> dict[str, int]:
    """The counts of the only group, without those that are zero."""
    (counts,) = value["groups"].values()
    return {name: count for name, count in counts.items() if count}


def with_history(make: Make, _: ManualClock) -> Queue:
    queue = make()
    queue.publish("a")
    lease(queue).ack()
    return queue


def was_archived(queue: Queue) -> None:
    events = Counter(history(queue)["event"].drop_null().to_pylist())
    assert events == {"leased": 1, "acked": 1}


def were_indexed(queue: Queue) -> None:
    rows, *_ = messages_of(queue).commits.read_after() or ()
    assert [row["version"] for row in rows.to_pylist() if row["kind"] == "publish"] == [1]


CHORES = {
    "route": Chore(3, 3, 3, with_dead, lambda q: route(q.group()), were_routed),
    "redrive": Chore(3, 3, 3, with_letters, lambda q: q.redrive().messages, were_redriven),
    "trim": Chore(2, 2, 3, trimmable, trim, were_trimmed),
    "schedule": Chore(1, 1, 2, with_schedule, lambda q: publish_due(q, "s"), were_published),
    "batch": Chore(3, 2, 1, with_batch, lambda q: complete(q, "b"), was_completed),
    "archive": Chore(1, 1, 4, with_history, archive, was_archived),
    "index": Chore(1, 1, 2, with_history, index_commits, were_indexed),
}


def steps() -> Iterator[tuple[str, int]]:
    for name, chore in CHORES.items():
        for at in range(1, chore.commits + 1):
            yield name, at


EACH_STEP = pytest.mark.parametrize(("name", "at"), list(steps()))
WHEN = pytest.mark.parametrize("when", ["before", "after"])


@EACH_STEP
@WHEN
def test_killed_at_any_commit_and_repeated_it_happens_once(
    make: Make, clock: ManualClock, name: str, at: int, when: str
) -> None:
    chore = CHORES[name]
    queue = chore.prepare(make, clock)
    with killed(at=at, when=when):
        chore.run(queue)
    survivor = again(queue)
    was_counted = at > chore.counted or (at, when) == (chore.counted, "after")
    assert chore.run(survivor) == (0 if was_counted else chore.count)
    assert chore.run(survivor) == 0
    chore.check(survivor)


@EACH_STEP
@WHEN
def test_with_a_rival_at_any_commit_it_happens_once(
    make: Make, clock: ManualClock, name: str, at: int, when: str
) -> None:
    chore = CHORES[name]
    queue = chore.prepare(make, clock)
    rival, done = again(queue), list[int]()
    with pytest.MonkeyPatch.context() as patch:
        on_commit(patch, "", at=at, **{when: lambda: done.append(chore.run(rival))})
        done.append(chore.run(queue))
    assert len(done) == 2
    assert sum(done) == chore.count
    chore.check(queue)


@EACH_STEP
def test_a_lost_reply_of_any_commit_changes_nothing(
    make: Make, clock: ManualClock, name: str, at: int
) -> None:
    chore = CHORES[name]
    queue = chore.prepare(make, clock)
    with pytest.MonkeyPatch.context() as patch:
        on_commit(patch, "", at=at, fail=TimeoutError("the reply is lost"))
        assert chore.run(queue) == chore.count
    assert chore.run(again(queue)) == 0
    chore.check(queue)


@pytest.mark.parametrize("name", CHORES)
def test_in_threads_it_happens_once(make: Make, clock: ManualClock, name: str) -> None:
    chore = CHORES[name]
    queue = chore.prepare(make, clock)
    handles, done = [again(queue) for _ in range(4)], list[int]()
    side_by_side(lambda: done.append(chore.run(handles.pop())), len(handles))
    assert sum(done) == chore.count
    chore.check(queue)
