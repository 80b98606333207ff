"""The rules of the streaming source, without Spark: runners that start, die, freeze, come back."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.byte_store import Injected
from support.drivers import (
    Checkpoint,
    Runner,
    deliveries,
    lease_as,
    mark,
    remembered,
    sequences,
    states,
)
from support.handles import again, notes
from support.having import having
from support.tables import context_of, group_ledger_of, ledgers_of, messages_of

from spark_mq import Message, Queue
from spark_mq.errors import InvalidOption, LeaseLost, StreamFenced
from spark_mq.ledger.ranges import AVAILABLE, LEASED
from spark_mq.ledger.stream_batch import parse_lease_id
from spark_mq.operations.keep_alive import KeepAlive
from spark_mq.streaming.source import BatchPlan, StreamOptions, StreamSource, stream_id_in_queue
from spark_mq.streaming.source import leave_batch as leave
from spark_mq.testing import ManualClock, memory_queue
from spark_mq.util.clock import SECOND


@pytest.fixture
def queue(clock: ManualClock) -> Queue:
    return memory_queue(clock, visibility_timeout="60s", clock_skew="0s", retry_delay="10s")


@pytest.fixture
def three_attempts(clock: ManualClock) -> Queue:
    return memory_queue(clock, max_delivery_attempts=3, clock_skew="0s", retry_delay="0s")


# -- offers and leases


def test_messages_that_do_not_match_begin_no_batch(queue: Queue) -> None:
    group = queue.group("g")
    group.configure(filter="key_prefix=eu-")
    runner = Runner(queue)
    for n in range(3):
        queue.publish([Message(f"us-{n}", key=f"us-{n}")])
    assert not runner.offer()
    stats = group.stats()
    assert (stats.skipped, stats.ready) == (3, 0)
    assert stats.start_sequence == stats.latest_sequence, "nothing holds back the trim"
    queue.publish([Message("eu", key="eu-1")])
    assert runner.offer()
    assert group.stats().leased == 0


def test_replaced_messages_begin_no_batch(clock: ManualClock) -> None:
    queue = memory_queue(clock, dedup_window="1h", dedup_replaces=True)
    group = queue.group("g").ensure()
    queue.publish([Message("old", dedup_id="a", deliver_at="10s")])
    queue.publish([Message("new", dedup_id="a", deliver_at="20s")])
    runner = Runner(queue)
    clock.advance("11s")
    assert not runner.offer()
    assert group.stats().skipped == 1
    clock.advance("10s")
    assert len(sequences(runner.begun())) == 1
    assert group.stats().leased == 1


def test_messages_for_another_group_begin_no_batch(queue: Queue) -> None:
    group = queue.group("g").ensure()
    queue.publish(["a", "b"])
    queue.group("mail").lease("w", max_messages=2).reject()
    queue.sweep()
    runner = Runner(queue)
    assert len(sequences(runner.begun())) == 2
    queue.redrive()
    assert runner.offer() is False
    stats = group.stats()
    assert (stats.skipped, stats.ready, stats.start_sequence) == (2, 0, stats.latest_sequence)


def test_a_new_checkpoint_warns_of_what_its_group_has_settled(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    first, _, last = queue.publish(["a", "stuck", "c"]).sequences
    plan = Runner(queue).begun()
    group, late = queue.group("g"), queue.group("late", start="latest")
    for _ in range(2):
        StreamSource(group_ledger_of(late), StreamOptions()).initial()
    assert not caplog.text, "one group is new, the other begins after the messages"
    group.ack(plan.lease_id, [first, last])
    again = Runner(queue).source
    for _ in range(2):  # as Spark does
        again.initial()
    assert len(caplog.records) == 1
    assert "already settled 2 messages" in caplog.text
    assert f"group seek g --to earliest --execute -q {queue.path}`" in caplog.text
    caplog.clear()
    group.seek("earliest")
    Runner(queue).source.initial()
    assert not caplog.text, "all come again"


def test_batch_0_of_an_empty_queue_is_empty_whichever_stream_id_spark_kept(queue: Queue) -> None:
    source = StreamSource(group_ledger_of(queue.group("g")), StreamOptions())
    first, second = source.initial(), source.initial()
    assert first["stream"] != second["stream"]
    queue.publish("came meanwhile")
    assert source.plan(first, second) == BatchPlan()
    assert queue.group("g").stats().ready == 1


def test_a_batch_leases_under_stream_batch_and_runner_and_leaves_its_mark(queue: Queue) -> None:
    receipt = queue.publish(["a", "b", "c"])
    runner = Runner(queue, worker_id="w1")
    plan = runner.begun()
    assert sequences(plan) == list(receipt.sequences)
    assert {(r.delivery_count, r.worker) for _, r in plan.slices} == {(1, "w1")}
    stream = runner.checkpoint.offsets[-1]["stream"]
    assert parse_lease_id(plan.lease_id) == (stream, 1, runner.source.runner)
    assert runner.plan() is plan, "a repeated call leases nothing"
    assert mark(runner) == 3


def test_a_batch_is_acked_in_the_commit_of_the_next_lease_or_once_nothing_follows(
    queue: Queue,
) -> None:
    queue.publish(["a", "b"])
    runner = Runner(queue, max_messages=1)
    runner.batch()
    before = len(notes(queue))
    second = runner.batch()
    assert len(notes(queue)) == before + 1
    assert states(queue) == [(LEASED, 1, second.lease_id)]
    assert queue.group("g").stats().acked == 1
    assert not runner.offer()
    assert queue.group("g").stats().acked == 2
    commits = len(notes(queue))
    assert not runner.offer()
    assert len(notes(queue)) == commits, "an idle look commits nothing"


def test_manual_mode_leaves_what_nobody_settled_to_expire(queue: Queue, clock: ManualClock) -> None:
    receipt = queue.publish(["a", "b"])
    runner = Runner(queue, ack_on_commit=False)
    plan = runner.batch()
    runner.group.ack(plan.lease_id, [receipt.sequences[0]])
    assert not runner.offer()
    assert queue.group("g").stats().leased == 1
    clock.advance("61s")
    again = runner.batch()
    assert sequences(again) == [receipt.sequences[1]]
    assert deliveries(again) == {2}


def test_what_a_batch_left_on_purpose_is_not_acked_by_its_commit(
    queue: Queue, clock: ManualClock
) -> None:
    first, second, third = queue.publish(["a", "b", "c"]).sequences
    runner = Runner(queue, max_messages=2)
    plan = runner.plan() if runner.offer() else BatchPlan()
    runner.group.ack(plan.lease_id, [first])
    assert leave(group_ledger_of(runner.group), *_batch_of(plan)) == 1
    assert leave(group_ledger_of(runner.group), *_batch_of(plan)) == 1
    left = [note["lease_id"] for note in notes(queue) if note["operation"] == "leave"]
    assert left == [plan.lease_id], "once is enough"
    runner.commit()
    following = runner.batch()  # its lease would ack what is left of the batch before it
    assert sequences(following) == [third]
    assert not runner.offer()
    stats = queue.group("g").stats()
    assert (stats.acked, stats.leased) == (2, 1), (
        "the batch after it left nothing on purpose, and is acked"
    )
    restarted = Runner(queue, runner.checkpoint)
    assert not restarted.offer()  # nor at the next start
    assert queue.group("g").stats().leased == 1
    clock.advance("61s")
    again = restarted.batch()
    assert (sequences(again), deliveries(again)) == ([second], {2})


def test_where_nothing_was_left_nothing_is_put_down(queue: Queue) -> None:
    queue.publish(["a", "b"])
    runner = Runner(queue)
    plan = runner.batch()
    assert leave(group_ledger_of(queue.group("other")), *_batch_of(plan)) == 0
    runner.group.ack(plan.lease_id)
    commits = len(notes(queue))
    assert leave(group_ledger_of(runner.group), *_batch_of(plan)) == 0
    assert len(notes(queue)) == commits


def test_what_was_left_before_a_crash_is_replayed_and_may_be_acked_then(queue: Queue) -> None:
    queue.publish(["a", "b"])
    dead = Runner(queue)
    leave(group_ledger_of(dead.group), *_batch_of(dead.begun()))  # and Spark does not commit it
    successor = Runner(queue, dead.checkpoint)
    replayed = successor.batch()
    assert deliveries(replayed) == {2}
    assert not successor.offer()
    assert queue.group("g").stats().leased == 2
    assert successor.group.ack(replayed.lease_id).settled == 2


def test_an_ack_that_has_not_seen_what_was_left_is_refused(queue: Queue) -> None:
    """The runner looks, the batch leaves, the runner acks: the ack is computed again."""
    queue.publish("a")
    runner = Runner(queue)
    stream, n = _batch_of(runner.batch())
    other = group_ledger_of(again(queue).group("g"))
    read = Injected(ledgers_of(queue).read, after=lambda: leave(other, stream, n))
    ledgers_of(queue).read = read  # type: ignore[method-assign]
    runner.source.ack_committed(stream, n)
    assert read.calls == 2
    assert queue.group("g").stats().leased == 1


def _batch_of(plan: BatchPlan) -> tuple[str, int]:
    parts = parse_lease_id(plan.lease_id)
    return parts[0], parts[1]


# -- replays


def uncommitted(runner: Runner) -> Checkpoint:
    """The checkpoint of a runner that died before it committed its last batch."""
    return Checkpoint(runner.checkpoint.offsets, runner.checkpoint.committed - 1)


def test_a_replay_takes_over_what_the_batch_holds_and_counts_it(queue: Queue) -> None:
    receipt = queue.publish(["a", "b"])
    dead = Runner(queue)
    first = dead.begun()
    queue.publish("later: a replay leases nothing again")
    successor = Runner(queue, dead.checkpoint, max_messages=1)  # limits are for new batches
    plan = successor.plan()
    assert sequences(plan) == sequences(first) == list(receipt.sequences)
    assert deliveries(plan) == {2}
    assert parse_lease_id(plan.lease_id) == (*_batch_of(first), successor.source.runner)
    assert plan.lease_id != first.lease_id
    assert mark(successor) == 4
    assert [alive.lease_id for alive in successor.alive] == [plan.lease_id]
    assert successor.plan() is plan


def test_a_replay_has_a_write_of_its_own_after_that_of_the_dead_batch(
    queue: Queue, tmp_path: Path
) -> None:
    write_deltalake(str(tmp_path), pa.table({"n": [1]}))
    queue.group("g").configure(sink=tmp_path)
    queue.publish(["a", "b"])
    dead = Runner(queue)
    ((_, leased),) = dead.begun().slices
    ((_, replayed),) = Runner(queue, dead.checkpoint).plan().slices
    earlier, own = replayed.sink_writes.split()
    assert earlier == leased.sink_writes
    (writer, number), (other, later) = (write.split(":") for write in (earlier, own))
    assert other != writer
    assert int(later) > int(number)
    queue.publish("c")
    queue.group("g").lease("w")
    *_, last = group_ledger_of(queue.group("g")).current()
    assert int(last.sink_writes.partition(":")[2]) > int(later)


def test_a_row_that_was_nacked_is_never_acked_by_a_replay(queue: Queue, clock: ManualClock) -> None:
    acked, first, nacked, second, rejected = queue.publish(list("abcde")).sequences
    dead = Runner(queue)
    plan = dead.begun()
    dead.group.ack(plan.lease_id, [acked])
    dead.group.nack(plan.lease_id, [nacked], delay="5s")
    dead.group.reject(plan.lease_id, [rejected])
    clock.advance("10s")  # due again, and still not the replay's
    successor = Runner(queue, dead.checkpoint)
    assert sequences(successor.batch()) == [first, second]
    again = successor.batch()
    assert sequences(again) == [nacked]
    assert deliveries(again) == {2}
    assert queue.group("g").stats().acked == 3


def test_a_replay_takes_what_expired_and_nobody_leased_since(
    queue: Queue, clock: ManualClock
) -> None:
    receipt = queue.publish(["a", "b"])
    dead = Runner(queue)
    dead.begun()
    clock.advance("2m")
    assert queue.group("g").expire() == 2  # folded by somebody's operation
    successor = Runner(queue, dead.checkpoint)
    assert sequences(successor.batch()) == list(receipt.sequences)


def test_a_second_replay_gives_the_batch_back_as_suspects_and_is_empty(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish([str(i) for i in range(100)])
    first = Runner(queue)
    first.begun()
    second = Runner(queue, first.checkpoint)
    assert len(sequences(second.plan())) == 100
    third = Runner(queue, first.checkpoint)
    assert sequences(third.batch()) == []
    (left,) = group_ledger_of(queue.group("g")).current()
    assert left == having(state=AVAILABLE, suspect=True, lease_id=None, delivery_count=2)
    caplog.set_level("INFO", "spark_mq.streaming.source")
    caplog.clear()
    piece = third.batch()
    assert deliveries(piece) == {3}
    sizes = [len(sequences(piece))]
    while third.offer():
        sizes.append(len(sequences(third.plan())))
    assert sizes == [10, 20, 20, 20, 15, 10, 5], "suspects come in pieces"
    assert [r.getMessage() for r in caplog.records] == [
        "group g: isolating 100 suspects, about 6 leases left"
    ], "once"


def test_a_driver_that_dies_on_one_batch_each_time_kills_only_the_poison(queue: Queue) -> None:
    receipt = queue.publish([str(i) for i in range(50)])
    poison = receipt.sequences[17]
    checkpoint, delivered = Checkpoint(), Counter[int]()
    for _ in range(400):
        runner = Runner(queue, checkpoint)  # started again at once: no lease has expired
        while runner.replays or runner.offer():
            rows = sequences(runner.plan())
            delivered.update(rows)
            if poison in rows:
                break  # dies
            runner.commit()
        if not runner.replays:
            break
    stats = queue.group("g").stats()
    assert (stats.acked, stats.dead, stats.ready, stats.leased) == (49, 1, 0, 0)
    assert [message.sequence for message in queue.group("g").peek(state="dead")] == [poison]
    assert delivered.keys() == {*receipt.sequences}
    assert max(delivered.values()) <= 5, "never more deliveries than allowed"


def test_an_innocent_on_its_last_attempt_is_leased_alone(three_attempts: Queue) -> None:
    """In company a crash would end it for another's fault.

    Given back by a replay, a sink that had it would write it twice.
    """
    queue = three_attempts
    queue.publish(["a", "b"])
    runner = Runner(queue)
    runner.batch()
    plan = Runner(queue, uncommitted(runner)).plan()
    queue.group("g").release(plan.lease_id)  # so it was not counted, and neither has failed
    again = Runner(queue)
    plan = again.begun()
    assert (len(sequences(plan)), deliveries(plan)) == (1, {2})
    replay = Runner(queue, again.checkpoint).batch()
    assert (sequences(replay), deliveries(replay)) == (sequences(plan), {3})


def test_a_last_attempt_in_company_is_given_back_uncounted(clock: ManualClock) -> None:
    """Where there were more attempts when it was leased."""
    queue = memory_queue(clock, max_delivery_attempts=9, clock_skew="0s", retry_delay="0s")
    queue.publish(["a", "b"])
    Runner(queue).batch()
    clock.advance("1h")  # it died
    runner = Runner(queue)
    assert deliveries(runner.batch()) == {2}
    queue.group("g").configure(max_delivery_attempts=3)
    again = Runner(queue, uncommitted(runner))
    assert sequences(again.batch()) == []
    (left,) = group_ledger_of(queue.group("g")).current()
    assert (left.delivery_count, left.suspect) == (2, True)
    alone = again.batch()
    assert (len(sequences(alone)), deliveries(alone)) == (1, {3})


def test_a_replay_leaves_out_what_has_no_attempt_left(three_attempts: Queue) -> None:
    queue = three_attempts
    spent, other = queue.publish(["a", "b"]).sequences
    runner = Runner(queue, ack_on_commit=False)
    first = runner.batch().lease_id
    runner.group.nack(first, [spent])
    runner.group.nack(runner.batch().lease_id, [spent])
    runner.group.nack(first, [other])
    assert deliveries(runner.begun()) == {2, 3}
    assert sequences(Runner(queue, runner.checkpoint).plan()) == [other]
    assert queue.group("g").stats().dead == 1


def test_a_replay_acks_the_batches_before_it(queue: Queue) -> None:
    queue.publish(["a", "b"])
    dead = Runner(queue, max_messages=1)
    dead.batch()
    assert dead.offer()  # dies before the lease that would have acked batch 1
    successor = Runner(queue, dead.checkpoint)
    assert sequences(successor.batch()) == []
    assert queue.group("g").stats().acked == 1


# -- starts after a stop


@pytest.mark.parametrize("more", [[], ["c"]], ids=["nothing more", "more to do"])
@pytest.mark.parametrize("pause", ["1s", "1h", "1h and a commit of others"])
def test_a_start_after_a_stop_acks_the_last_batch(
    queue: Queue, clock: ManualClock, more: list[str], pause: str
) -> None:
    queue.publish(["a", "b"])
    stopped = Runner(queue)
    stopped.batch()
    stopped.source.stop()
    clock.advance(pause[:2])
    if len(pause) > 2:
        assert queue.group("g").expire() == 2
    queue.publish(more)
    successor = Runner(queue, stopped.checkpoint)
    assert successor.offer() == bool(more)
    assert len(sequences(successor.plan())) == len(more)
    assert queue.group("g").stats().acked == 2


def test_the_last_attempt_of_a_batch_that_spark_committed_is_acked_though_it_expired(
    three_attempts: Queue, clock: ManualClock
) -> None:
    three_attempts.publish("a")
    runner = Runner(three_attempts)
    for _ in range(2):
        runner.group.nack(runner.batch().lease_id)
    runner.batch()
    clock.advance("1h")
    assert not runner.offer()
    assert runner.group.stats().acked == 1


# -- zombies


def test_a_frozen_driver_leases_nothing_after_its_batch_was_replayed(queue: Queue) -> None:
    queue.publish(["a", "b"])
    frozen = Runner(queue)
    assert frozen.offer()
    assert sequences(Runner(queue, frozen.checkpoint).plan()) == []
    with pytest.raises(StreamFenced, match=r"fenced.*another driver") as caught:
        frozen.plan()
    assert (caught.value.batch, caught.value.mark) == (1, 4)  # type: ignore[attr-defined]
    assert queue.group("g").stats().ready == 2


def test_of_two_drivers_that_offered_the_same_batch_the_second_leases_nothing(queue: Queue) -> None:
    queue.publish(["a", "b", "c"])
    first = Runner(queue, max_messages=1)
    first.batch()
    second = Runner(queue, first.checkpoint.copy(), max_messages=1)
    assert first.offer()
    assert second.offer()
    first.plan()
    with pytest.raises(StreamFenced):
        second.plan()
    assert queue.group("g").stats().ready == 1


def test_a_successor_that_started_earlier_acks_only_leases_of_its_own(queue: Queue) -> None:
    """What another runner leased after this one's start is that runner's, even with a number that
    this one has passed.
    """
    queue.publish(["a", "b", "c"])
    own = Runner(queue, max_messages=1)
    own.batch()
    own.batch()
    stranger = f"{own.checkpoint.offsets[-1]['stream']}/1/{'f' * 12}"
    lease_as(queue.group("g"), stranger)
    assert not own.offer()
    assert queue.group("g").stats().acked == 2
    assert states(queue) == [(LEASED, 1, stranger)]


@pytest.mark.parametrize("start_over", ["lease", "replay"])
def test_a_checkpoint_that_was_rolled_back_is_refused(queue: Queue, start_over: str) -> None:
    queue.publish(["a", "b", "c", "d"])
    runner = Runner(queue, max_messages=1)
    runner.batch()
    backup = runner.checkpoint.copy()
    runner.batch()
    runner.batch()
    before = len(notes(queue))
    restored = Runner(queue, backup, max_messages=1)
    if start_over == "replay":
        backup.committed -= 1
    else:
        assert restored.offer()
    with pytest.raises(StreamFenced, match=r"leased batch 3 of .* Start with a new"):
        restored.plan()
    assert len(notes(queue)) == before, "and nothing was changed"


# -- AvailableNow


def test_available_now_drains_what_was_there_and_due_at_its_start(
    queue: Queue, clock: ManualClock
) -> None:
    receipt = queue.publish(["a", "b", "c"])
    queue.group("g").lease("other").nack(delay="1s")
    runner = Runner(queue, max_messages=1)
    assert not runner.source.is_limited
    runner.source.limit_to_current()
    assert runner.source.is_limited
    queue.publish("too late")
    clock.advance("1s")  # what became due meanwhile waits for the next run
    seen = []
    while runner.offer():
        seen += sequences(runner.batch())
    assert seen == list(receipt.sequences[1:])
    stats = queue.group("g").stats()
    assert (stats.acked, stats.ready) == (2, 2)


def test_available_now_drains_what_its_replay_gave_back(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["a", "b", "c"])
    checkpoint = Checkpoint()
    Runner(queue, checkpoint).begun()  # dies
    Runner(queue, checkpoint).plan()  # dies
    runner = Runner(queue, checkpoint)
    runner.source.limit_to_current()
    clock.advance("1s")
    assert sequences(runner.batch()) == []
    while runner.offer():
        runner.batch()
    assert queue.group("g").stats().acked == 3


# -- what keeps a lease


def test_a_lease_is_kept_alive_until_spark_asks_for_the_next_batch(queue: Queue) -> None:
    queue.publish(["a", "b"])
    runner = Runner(queue, max_messages=1, max_lease_duration=600 * SECOND)
    plan = runner.batch()
    (alive,) = runner.alive
    assert alive == having(lease_id=plan.lease_id, timeout=60 * SECOND, limit=600 * SECOND)
    assert not alive.stopped
    assert runner.offer()
    assert alive.stopped
    runner.plan()
    runner.source.stop()
    assert runner.alive[1].stopped


def test_no_lease_is_longer_than_the_longest_lease_duration(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish("a")
    runner = Runner(queue, visibility_timeout=3600 * SECOND, max_lease_duration=300 * SECOND)
    plan = runner.batch()
    assert plan.expires_at == context_of(queue).now() + 300 * SECOND
    assert runner.alive[0].timeout == 300 * SECOND


def test_a_hung_batch_loses_its_lease_after_the_longest_lease_duration() -> None:
    """The real thread, by the wall clock. A store that fails does not end it."""
    asked, ended, over = list[int](), threading.Event(), threading.Event()
    errors = [OSError("the store is away"), RuntimeError("503 slow down")]

    def extend(_: object, timeout: int) -> None:
        asked.append(timeout)
        if errors:
            raise errors.pop()
        if timeout < 300_000:
            ended.set()
            raise LeaseLost("it holds nothing", lease_id="x", lost=[], result=None)

    alive = KeepAlive(extend, lambda _: over.set())
    alive.add("lease", timeout=300_000, limit=900_000)  # 300 ms, 900 ms
    try:
        assert ended.wait(10), "the last extension does not reach beyond the limit"
        assert over.wait(10)
    finally:
        alive.stop()
    assert set(asked[:-1]) == {300_000}, "and none is tried after the lease is lost"


@pytest.mark.parametrize("limit", [None, 3_600_000_000])
def test_a_limit_changed_while_it_is_reached_counts_no_longer(limit: int | None) -> None:
    extended, reached = threading.Semaphore(0), list[float]()

    def on_limit(lease_id: str) -> None:
        reached.append(time.monotonic())
        if len(reached) == 2:
            alive.set_limit([lease_id], limit)

    alive = KeepAlive(lambda *_: extended.release(), on_limit)
    alive.add("lease", timeout=90_000, limit=0)
    try:
        for _ in range(2):
            assert extended.acquire(timeout=10)
    finally:
        alive.stop()
    assert reached[1] - reached[0] > 0.009, "it does not ask all the time"


def test_the_source_extends_its_own_lease(queue: Queue, clock: ManualClock) -> None:
    queue.publish("a")
    group = group_ledger_of(queue.group("g"))
    source = StreamSource(group, StreamOptions(visibility_timeout=30_000))
    start = source.initial()
    plan = source.plan(start, source.latest(start))
    reached = threading.Event()
    group.run = Injected(group.run, after=reached.set)  # type: ignore[method-assign]
    clock.advance("20ms")
    try:
        assert reached.wait(10)
    finally:
        source.stop()
    (held,) = group.current()
    assert held.lease_id == plan.lease_id
    assert (held.expires_at or 0) > plan.expires_at


# -- payloads that are gone, refusals, progress


def test_messages_of_a_missing_file_are_dead_at_once_and_the_rest_go_on(queue: Queue) -> None:
    lost = queue.publish(["a", "b"])
    kept = queue.publish(["c"])
    messages_of(queue).files.delete(messages_of(queue).index().files[0].path)
    runner = Runner(queue)
    assert sequences(runner.batch()) == list(kept.sequences)
    (dead,) = [r for r in group_ledger_of(queue.group("g")).current() if r.state == "dead"]
    assert (dead.first, dead.last) == (lost.sequences[0], lost.sequences[-1])
    assert dead.reason == "payload unreadable"
    assert "missing" in (dead.error or "")
    assert not runner.offer()
    assert queue.group("g").stats().acked == 1


@pytest.mark.parametrize("attempts", [1, 2])
def test_too_few_attempts_for_a_stream_are_refused_before_anything_changes(attempts: int) -> None:
    queue = memory_queue(max_delivery_attempts=attempts)
    queue.publish("a")
    runner = Runner(queue)
    with pytest.raises(InvalidOption, match=f"max_delivery_attempts={attempts}.*3"):
        runner.offer()
    assert queue.groups() == []
    assert notes(queue) == []


@pytest.mark.parametrize(
    "offset",
    [{}, None, {"partition-0": 7}, {"batch": -1, "stream": str(uuid.UUID(int=0))},
     {"batch": True, "stream": str(uuid.UUID(int=0))}, {"batch": 1, "stream": "../x"}],
    ids=["empty", "none", "another source's", "negative", "bool", "not a uuid"],
)  # fmt: skip
def test_a_checkpoint_of_another_source_is_refused(queue: Queue, offset: Any) -> None:
    with pytest.raises(InvalidOption, match="checkpoint"):
        StreamSource(group_ledger_of(queue.group("g")), StreamOptions()).latest(offset)
    assert queue.groups() == []


def test_an_open_breaker_gives_a_stream_a_trial_at_its_time(clock: ManualClock) -> None:
    queue = memory_queue(clock, breaker_threshold=2)
    queue.publish([str(i) for i in range(9)])
    for _ in range(2):
        queue.group("g").lease("w").nack(delay="1h", error="boom")
    runner = Runner(queue)
    assert not runner.offer()
    progress = runner.source.progress()
    assert progress["breaker"] == "open"
    assert "the last with boom" in progress["blocked_because"]
    clock.advance("10s")
    assert len(sequences(runner.batch())) == 1
    assert runner.offer(), "the ack of the trial has closed it"
    assert len(sequences(runner.plan())) == 6
    assert queue.group("g").stats().breaker == "closed"


def test_a_batch_is_replayed_while_its_group_is_paused(clock: ManualClock) -> None:
    queue = memory_queue(clock)
    queue.publish([str(i) for i in range(9)])
    first = Runner(queue)
    first.begun()
    queue.group("g").pause()
    second = Runner(queue, first.checkpoint)
    assert len(sequences(second.batch())) == 9
    queue.publish("more")
    assert not second.offer()
    queue.group("g").resume()
    assert second.offer()
    assert queue.group("g").stats().acked == 9


def test_progress_says_what_is_ready_delayed_leased_and_blocked(clock: ManualClock) -> None:
    queue = memory_queue(clock, max_in_flight=2)
    queue.publish([str(i) for i in range(5)])
    other = queue.group("g").lease("other", max_messages=2)
    other.nack([other.messages[0].sequence], delay="1h")
    runner = Runner(queue)
    assert runner.source.progress() == {}
    assert runner.offer()
    reported = runner.source.progress()
    assert reported == {
        "source": "spark_mq", "queue": queue.path, "group": "g", "ready": 3, "delayed": 1,
        "leased": 1, "dead": 0, "blocked": 0, "blocked_because": "", "breaker": "closed",
        "oldest_unsettled_age": 0, "isolating": 0, "isolation_leases": 0,
    }  # fmt: skip
    runner.batch()
    blocked = Runner(queue)
    assert not blocked.offer()
    reported = blocked.source.progress()
    assert [reported[name] for name in ("ready", "delayed", "leased")] == [2, 1, 2]
    assert reported["blocked_because"] == "max_in_flight"


def test_what_a_runner_remembers_does_not_grow_with_its_batches(queue: Queue) -> None:
    queue.publish(["a"] * 6)
    runner = Runner(queue, max_messages=1)
    runner.batch()
    before = remembered(runner.source)
    for _ in range(5):
        runner.batch()
    assert remembered(runner.source) == before


def test_a_stream_knows_a_queue_by_its_place(tmp_path: Path) -> None:
    """It found none of its leases after a restart with another text of the path."""
    stream = str(uuid.uuid4())
    os.symlink(tmp_path / "queue", tmp_path / "link")
    known = stream_id_in_queue(stream, str(tmp_path / "queue"))
    assert stream_id_in_queue(stream, str(tmp_path / "link")) == known
    assert stream_id_in_queue(stream, str(tmp_path / "other")) != known
    assert stream_id_in_queue(stream, "s3a://b/q") == stream_id_in_queue(stream, "s3://b/q")
