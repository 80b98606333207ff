"""Queues of earlier versions open and lose no message, and two versions can share a queue."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stored_queue import DATA, StoredQueue, differences, views
from versions import ROOT, running, version_of

from spark_mq import Queue

ARCHIVES = sorted(DATA.glob("queue-*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> StoredQueue:
    return StoredQueue.unpack(request.param, tmp_path)


def test_a_stored_queue_shows_what_it_showed(stored: StoredQueue) -> None:
    assert list(differences(stored.views, views(stored.queue))) == []


def test_a_view_that_changes_is_named() -> None:
    assert not list(differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2, "new": 3}], "c": 4}))
    for known, shown in (({"a": [1]}, {"a": [2]}), ({"a": [1]}, {"a": [1, 2]}), ({"a": 1}, {})):
        assert len(list(differences(known, shown))) == 1


def test_a_lease_of_an_earlier_version_holds_and_can_be_settled(stored: StoredQueue) -> None:
    group = stored.queue.group("large")
    (held,) = (lease for lease in group.leases() if lease.messages > 1)
    assert group.extend(held.lease_id, "3h").settled == held.messages
    assert group.lease("w", sequences=[first for first, _ in held.positions]) is None
    assert group.ack(held.lease_id).settled == held.messages
    assert group.leases() == []


@pytest.mark.slow
def test_each_message_of_a_stored_queue_is_delivered_once(stored: StoredQueue) -> None:
    """In each group, and after a redrive also the one that was a dead letter."""
    queue, clock = stored.queue, stored.clock
    queue.remove_schedule("often")
    queue.resume_schedule("nightly")
    clock.advance("1d")
    queue.group("blocking").unblock("retry")
    queue.group("limited").configure(rate_limit=None)
    queue.group("sinking").configure(sink=None)  # the place where it was is not there
    queue.sweep()
    assert queue.redrive().messages == 1
    messages = {message.value.decode(): message.key for message in queue.peek(1_000)}
    assert "run" in messages, "the schedule publishes on"
    for name in queue.groups():
        acked = [*stored.acked[name], *drained(stored, name)]
        expected = {
            value
            for value, key in messages.items()
            if name != "filtered" or (key or "").startswith("t1")
        }
        if "short-lived" not in stored.acked[name]:
            expected -= {"short-lived"}
        assert Counter(acked) == Counter(expected), name
    queue.sweep()
    again = Queue.open(queue.path, clock=clock)
    for name, stats in again.describe().groups.items():
        assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0), name


def drained(stored: StoredQueue, name: str) -> list[str]:
    """Return what a worker gets, and acks, until all messages are settled."""
    group, values = stored.queue.group(name), list[str]()
    for _ in range(1_000):
        lease = group.lease("later-version", max_messages=100)
        if lease is not None:
            values += [message.text for message in lease.messages]
            lease.ack()
            continue
        stats = group.stats()
        if not (stats.ready or stats.delayed or stats.leased):
            return values
        stored.clock.advance("5m")
    raise AssertionError(f"group {name} does not come to its end: {values}")


OTHERS = {
    "without ledgers in the log": "c0ff118b9226aada054b4b5281f548feb66bd672",
    "0.2.0": "684e126f4ac75966b445da41435c7e735130efac",
}
"""Commits of earlier versions whose queues have the same format. The last one is to be a tag."""


@pytest.mark.slow
@pytest.mark.parametrize("creator", [0, 1], ids=["created before", "created after"])
@pytest.mark.parametrize("commit", OTHERS.values(), ids=OTHERS)
def test_two_versions_share_a_queue(commit: str, creator: int, tmp_path: Path) -> None:
    """As while processes are replaced one after the other. Both settle, sweep and redrive."""
    (tmp_path / "before").mkdir()
    package = version_of(commit, tmp_path / "before")
    published, acked = list[str](), list[str]()
    with running(package, ROOT, on=tmp_path / "queue") as versions:
        versions[creator].create(durable=False, retry_delay="1s", retry_jitter=0.0)
        for turn in range(6):
            first, second = versions if turn % 2 else versions[::-1]
            values = [f"{turn}-{number}" for number in range(8)]
            first.publish(values)
            published += values
            mine, theirs = second.lease(4), first.lease(4)
            assert len({*mine, *theirs}) == 8
            second.settle("ack", mine[0])
            second.settle("nack", mine[1], delay=0, error="again")
            first.settle("reject", theirs[0], error="bad")
            first.settle("release", theirs[1])
            first.settle("ack", theirs[2])
            acked += [mine[0], theirs[2]]
            assert first.stats() == second.stats()
            (first if turn % 3 else second).sweep()
            for version, value in ((second, mine[2]), (second, mine[3]), (first, theirs[3])):
                version.settle("ack", value)
                acked.append(value)
        assert versions[creator].redrive() == 6
        values = [f"many-{number}" for number in range(5_000)]
        versions[creator].publish(values)
        with ThreadPoolExecutor() as pool:
            drained = [*pool.map(lambda version: version.drain(5), versions)]
        assert all(drained), "both work"
        acked += [value for values in drained for value in values]
        assert Counter(acked) == Counter(published + values)
        for version in versions:
            version.sweep()
        assert versions[0].stats() == versions[1].stats()
