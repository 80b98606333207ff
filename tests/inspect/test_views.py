"""What a look at a queue shows. No look leases or commits."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.byte_store import ByteStore, Call
from support.handles import Killed, contents, die
from support.having import having
from support.tables import messages_of

from spark_mq import GroupNotFound, InvalidOption, Message, Queue, QueueNotFound, SparkMQError
from spark_mq.errors import NotAQueue, StorageError
from spark_mq.testing import ManualClock, memory_queue


def test_a_dry_run_creates_no_dead_letter_queue(
    delta_queue: Callable[..., Queue], tmp_path: Path
) -> None:
    queue = delta_queue(dead_letter_path=tmp_path / "letters")
    queue.publish("a")
    queue.group().lease("w").reject(error="bad")
    queue.sweep()
    shutil.rmtree(tmp_path / "letters")
    queue = Queue.open(queue.path)
    assert queue.redrive(dry_run=True).messages == 0
    expected = queue.recover(dry_run=True)
    assert not (tmp_path / "letters").exists()
    assert expected.dead_letters == 1
    assert queue.recover() == expected


def test_a_dead_letter_queue_without_leases_is_not_taken_for_missing(
    delta_queue: Callable[..., Queue],
) -> None:
    queue = delta_queue()
    queue.publish("a")
    queue.group().lease("w").reject(error="bad")
    queue.sweep()
    shutil.rmtree(Path(queue.dead_letters.path, "leases"))
    queue = Queue.open(queue.path)
    assert queue.describe().dead_letters is None
    (problem,) = queue.health(max_dead=9).problems
    assert problem.check == "unreadable"
    with pytest.raises(NotAQueue, match="leases/ of the queue"):
        queue.list_dead_letters()


def test_looking_changes_no_file(delta_queue: Callable[..., Queue], tmp_path: Path) -> None:
    queue = delta_queue(dead_letter_path=tmp_path / "letters")
    queue.publish([Message("a", key="k"), "b", "c"])
    group = queue.group("g")
    lease = group.lease("w", max_messages=2)
    lease.nack([lease.messages[0].sequence], error="bad")
    before = contents(queue.path)
    fresh = Queue.open(queue.path)
    same = fresh.group("g")
    (first, *_) = fresh.peek()
    fresh.describe(), fresh.health(max_dead=0), fresh.blockers(), fresh.sweep_state()
    assert fresh.list_dead_letters().num_rows == 0
    fresh.find(key="k"), fresh.locate(first.sequence), fresh.throughput(), fresh.stats()
    same.leases(), same.peek(), same.slowest(), same.most_failing(), same.workers()
    same.last_errors(), same.preview_seek("latest"), Queue.find_all(tmp_path)
    same.lanes(), same.priorities(), fresh.describe(lanes=True)
    for look in (fresh.group("never").peek, fresh.group("never").leases):
        with pytest.raises(GroupNotFound):
            look()
    assert contents(queue.path) == before
    assert not (tmp_path / "letters").exists()


def test_a_message_is_found_by_key_and_by_id(queue: Queue) -> None:
    queue.publish([Message(f"{n}", key=f"k{n % 3}", message_id=f"id-{n}") for n in range(9)])
    queue.publish(Message("9", key="k0"))
    assert [message.value for message in queue.peek(key="k1")] == [b"1", b"4", b"7"]
    assert [message.value for message in queue.peek(2, key="k1")] == [b"1", b"4"]
    assert [message.value for message in queue.peek(message_id="id-5")] == [b"5"]
    assert queue.peek(key="k1", message_id="id-5") == []
    group = queue.group("g")
    group.lease("w", max_messages=3)
    assert [message.state for message in group.peek(key="k1")] == ["leased", "ready", "ready"]
    newest = queue.find(key="k0", n=2)
    assert [queue.peek(1, after=seq - 1)[0].value for seq in newest] == [b"9", b"6"]
    assert queue.find(message_id="none") == []


def test_a_message_that_cannot_be_read_is_shown_with_the_reason(
    delta_queue: Callable[..., Queue],
) -> None:
    queue = delta_queue()
    queue.publish("lost")
    queue.publish("good")
    (first, _) = messages_of(queue).index().files
    (Path(queue.path) / "messages" / first.path).unlink()
    bad, good = Queue.open(queue.path).peek()
    assert (bad.value, good.value) == (None, b"good")
    assert first.path in bad.unreadable
    assert good.unreadable is None


def test_a_lease_that_has_expired_is_nobodys(queue: Queue, clock: ManualClock) -> None:
    """What else a lease says, the stored queues of tests/acceptance/test_upgrades.py show."""
    queue.publish(["a", "b", "c", "d"])
    group = queue.group("g")
    group.lease("w-1", max_messages=3)
    clock.advance("10s")
    group.lease("w-2", visibility_timeout="10m")
    assert [lease.expired for lease in group.leases()] == [False, False]
    clock.advance("2m")
    assert [lease.expired for lease in group.leases()] == [True, False]
    assert group.workers() == [
        having(worker_id="w-2", state="busy", leases=1, messages=1, seen_at=None),
        having(worker_id="w-1", state="gone", leases=0, messages=0, seen_at=None),
    ]


def test_locate_shows_how_a_message_ended(queue: Queue, clock: ManualClock) -> None:
    acked, dead = queue.publish(["a", "b"]).sequences
    group = queue.group("g")
    lease = group.lease("w", max_messages=2)
    lease.nack([acked], error="once", delay=0)
    lease.reject([dead], error="no customer")
    queue.sweep()
    group.lease("w").ack()
    queue.group("late", start="latest").ensure()
    (end, unknown) = queue.locate(acked)
    assert (end.outcome, end.delivery_count, end.failure_count) == ("acked", 2, 1)
    assert end.settled_at == queue.trace(acked).events[-1].at
    assert (unknown.group, unknown.state, unknown.outcome) == ("late", "settled", None)
    assert unknown.settled_at is None
    (end, _) = queue.locate(dead)
    assert (end.outcome, end.reason, end.error) == ("dead_lettered", "rejected", "no customer")
    queue.sweep()
    assert queue.locate(dead)[0] == end
    assert queue._locate_traced(queue.trace(dead)) == queue.locate(dead)
    group.seek("earliest")
    assert (queue.locate(dead)[0].state, queue.locate(dead)[0].outcome) == ("ready", None)


def test_a_message_past_its_time_has_expired_before_a_commit_settles_it(
    queue: Queue, clock: ManualClock
) -> None:
    (sequence,) = queue.publish(Message("a", expires_at=clock() + timedelta(seconds=5))).sequences
    queue.group("g").ensure()
    clock.advance("10s")
    (place,) = queue.locate(sequence)
    assert (place.state, place.outcome, place.settled_at) == ("settled", "expired", None)
    queue.group("g").expire()
    (place,) = queue.locate(sequence)
    assert (place.state, place.outcome) == ("settled", "expired")
    assert place.settled_at is not None


def test_an_end_that_the_history_lost_stays_settled(delta_queue: Callable[..., Queue]) -> None:
    queue = delta_queue()
    (sequence,) = queue.publish("a").sequences
    queue.group("g").lease("w").ack()
    queue.sweep()
    assert [place.outcome for place in queue.locate(sequence)] == ["acked"]
    DeltaTable(f"{queue.path}/history").delete()
    fresh = Queue.open(queue.path)
    (place,) = fresh.locate(sequence)
    assert (place.state, place.outcome, place.settled_at) == ("settled", None, None)
    assert fresh.trace(sequence).outcomes == ()


def test_locate_reads_no_history_for_a_message_that_is_not_settled(
    queue: Queue, byte_store: ByteStore
) -> None:
    held, acked = queue.publish(["a", "b"]).sequences
    queue.group("g").lease("w", max_messages=2).ack([acked])
    read = byte_store.paths("read", "stat", "list", of="history")
    assert [place.state for place in queue.locate(held)] == ["leased"]
    assert read == []
    assert [place.state for place in queue.locate(acked)] == ["settled"]
    assert read != []


def test_locate_finds_messages_by_their_id(queue: Queue) -> None:
    queue.publish([Message("a", message_id="x"), Message("b", message_id="y")])
    queue.publish([Message("c", message_id="x")])
    first, second, third = (message.sequence for message in queue.peek())
    queue.group("one").lease("w", max_messages=2)
    queue.group("two").ensure()
    places = queue.locate(message_id="x")
    assert [(place.sequence, place.group, place.state) for place in places] == [
        (third, "one", "ready"), (third, "two", "ready"),
        (first, "one", "leased"), (first, "two", "ready"),
    ]  # fmt: skip
    assert {place.sequence for place in queue.locate(message_id="x", n=1)} == {third}
    assert {place.sequence for place in queue.locate(message_id="y")} == {second}


def test_a_limit_that_is_lowered_counts_no_failure_again(queue: Queue) -> None:
    queue.publish("a")
    group = queue.group("g")
    group.lease("w").nack(delay=0)
    group.configure(max_delivery_attempts=1)
    assert group.lease("w") is None
    queue.sweep()
    assert group.stats().dead_lettered == 1
    assert sum(queue.throughput(every="1h", since="2h")["failed"].to_pylist()) == 1


def test_slow_and_failing_messages_are_named(queue: Queue, clock: ManualClock) -> None:
    queue.publish([Message("later", deliver_at="1h"), "fast", "slow", "failing"])
    group = queue.group("g")
    lease = group.lease("w", max_messages=3, visibility_timeout="1h")
    fast, slow, failing = (message.sequence for message in lease.messages)
    lease.ack([fast])
    lease.nack([failing], error="oops", delay=0)
    clock.advance("5m")
    group.lease("w").nack([failing], error="worse")
    (worst,) = group.most_failing()
    assert (worst.first, worst.failure_count, worst.error) == (failing, 2, "worse")
    assert {record.first for record in group.slowest(2)} == {slow, failing}
    assert {record.first for record in group.slowest()} == {fast, slow, failing}
    assert group.slowest(1)[0].duration >= timedelta(seconds=295)
    (last,) = group.last_errors()
    assert (last.error, last.at) == ("worse", clock()), "the time of its last delivery"


def test_the_clock_of_a_slow_message_ends_when_it_is_settled(clock: ManualClock) -> None:
    queue = memory_queue(clock)  # whose commits have its times
    queue.publish(["dies", "acked"])
    group = queue.group("g")
    lease = group.lease("w", max_messages=2, visibility_timeout="1h")
    dead, acked = (message.sequence for message in lease.messages)
    clock.advance("10s")
    lease.reject([dead])
    clock.advance("20s")
    lease.ack([acked])

    def seconds() -> Any:
        ages = {record.first: record.duration.total_seconds() for record in group.slowest()}
        return pytest.approx(ages, abs=2)

    clock.advance("30s")
    assert seconds() == {acked: 30, dead: 60}
    queue.sweep()  # which routes the dead letter
    clock.advance("1h")
    assert seconds() == {acked: 30, dead: 60}
    assert {record.state for record in group.slowest()} == {"acked", "dead_lettered"}


def test_the_clock_of_a_message_goes_on_when_its_owner_retries_it(clock: ManualClock) -> None:
    queue = memory_queue(clock)
    sequence = queue.publish(["m"]).sequences[0]
    group = queue.group("g")
    group.lease("w").reject()
    clock.advance("5m")
    group.retry_now([sequence])
    clock.advance("5m")
    group.lease("w").ack()
    queue.sweep()
    (one,) = group.slowest()
    assert (one.first, one.state) == (sequence, "acked")
    assert one.duration.total_seconds() == pytest.approx(600, abs=2)


def test_blockers_name_the_message_and_the_group(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["poison", "next"])
    group = queue.group("g")
    group.configure(max_delivery_attempts=1, on_max_deliveries="block")
    poison = group.lease("w")
    poison.nack(error="broken")
    queue.group("done").ensure()
    (blocker,) = queue.blockers()
    sequence = poison.messages[0].sequence
    assert (blocker.group, blocker.blocks) == ("g", "leases")
    assert (blocker.first, blocker.last, blocker.error) == (sequence, sequence, "broken")
    (problem,) = queue.health(max_unswept=None).problems
    assert (problem.check, problem.group) == ("blocked", "g")
    clock.advance("8d")
    trims = {
        blocker.group: blocker.because for blocker in queue.blockers() if blocker.blocks == "trim"
    }
    assert trims == {"g": "blocked", "done": "ready"}


def test_an_overview_prints_fifty_groups(queue: Queue) -> None:
    for number in range(62):
        queue.group(f"g{number:02}").ensure()
    *_, last, more = str(queue.describe()).splitlines()
    assert last.startswith("  g49: ready 0, ")
    assert more == "  and 12 more groups"


def test_queues_under_a_path_are_found(tmp_path: Path) -> None:
    for name in ("b/two", "a", "deep/er/and/deeper"):
        Queue.create(tmp_path / name)
    (tmp_path / "other").mkdir()
    for name in (b"no text\xff", b"escape\x1b[31m", b"bracket["):  # no queue can have them
        shutil.copytree(os.fsencode(tmp_path / "a"), os.fsencode(tmp_path) + b"/" + name)
    paths = Queue.find_all(tmp_path)
    assert paths == [
        str(tmp_path / "a"),
        str(tmp_path / "b/two"),
        str(tmp_path / "deep/er/and/deeper"),
    ]
    assert Queue.find_all(tmp_path, max_depth=0) == [str(tmp_path / "a")]
    assert Queue.find_all(tmp_path / "a") == [str(tmp_path / "a")]
    assert Queue.find_all(tmp_path / "none") == []


def test_a_folder_that_may_not_be_read_does_not_hide_the_others(
    tmp_path: Path, byte_store: ByteStore
) -> None:
    for name in ("closed", "open"):
        Queue.create(tmp_path / name)
    closed = {"closed"}

    def denied(call: Call) -> Any:
        if call.path in closed:
            raise PermissionError(errno.EACCES, "Permission denied", call.path)
        return call.run()

    byte_store.on("folders", act=denied)
    assert Queue.find_all(tmp_path) == [str(tmp_path / "closed"), str(tmp_path / "open")]
    Queue.create(tmp_path / "open too")  # beside it
    closed.add("")
    with pytest.raises(StorageError, match="Permission"):
        Queue.find_all(tmp_path)


def test_a_queue_drops_itself_and_wants_its_name(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "orders")
    queue.publish("a")
    other = Queue.open(queue.path)
    for name in ("other", "", queue.path):
        with pytest.raises(InvalidOption, match="give the queue's name"):
            queue.drop(name)
        with pytest.raises(InvalidOption, match="orders"):
            Queue.drop_at(queue.path, name)
    assert queue.group().lease("w") is not None, "nothing was dropped"
    assert queue.drop("orders") > 5
    assert not (tmp_path / "orders").exists()
    for call in (lambda: queue.publish("b"), other.stats, lambda: other.group().lease("w")):
        with pytest.raises(SparkMQError):
            call()
    with pytest.raises(QueueNotFound):
        Queue.open(queue.path)
    with pytest.raises(QueueNotFound):
        queue.drop("orders")


def test_a_queue_in_memory_is_not_dropped_but_purged() -> None:
    with pytest.raises(InvalidOption, match="use purge"):
        memory_queue().drop("memory")


def test_a_drop_that_was_killed_can_be_repeated(tmp_path: Path, byte_store: ByteStore) -> None:
    queue = Queue.create(tmp_path / "orders")
    queue.publish("a")
    for kills in range(100):
        byte_store.clear()
        byte_store.inject("delete", at=kills + 1, before=die)
        try:
            Queue.drop_at(tmp_path / "orders", "orders")
            break
        except Killed:
            if kills:
                with pytest.raises(Exception, match="orders"):
                    Queue.open(tmp_path / "orders")
    assert not (tmp_path / "orders").exists()
