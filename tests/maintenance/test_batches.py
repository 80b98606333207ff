"""Message batches: one completion message with the counts, whichever sweep runs and dies.

A batch is published in parts, closed once, and complete when each of its groups has settled it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.handles import again, killed, lease, leased, on_commit, take_all
from support.having import having
from support.limits import Limits
from support.people import as_visitor
from support.queues import Make, beside
from support.rule_variants import first, rule_variant
from support.tables import messages_of

from spark_mq import BatchClosed, InvalidOption, Message, Queue, QueueNotFound, UnsupportedTable
from spark_mq.testing import ManualClock, memory_queue


@pytest.fixture
def done(queue: Queue) -> Queue:
    """The queue of the completion messages, in the same storage."""
    queue.group().ensure()
    return beside(queue, "done")


def completions(done: Queue) -> list[dict[str, Any]]:
    """The values of the completion messages, in order of sequence."""
    return [json.loads(message.value) for message in done.peek(100)]


def counted(done: Queue) -> dict[str, int]:
    """What the completion message says of the only group, without zeros."""
    (value,) = completions(done)
    return {name: count for name, count in value["groups"]["default"].items() if count}


def publish_and_close(queue: Queue, done: Queue, *messages: Message | str) -> None:
    queue.publish(messages or ["a", "b"], batch_id="b")
    queue.close_batch("b", to=done)


def ack_all(queue: Queue, group: str = "default") -> None:
    take_all(queue.group(group))


def counts(**given: int) -> dict[str, int]:
    names = ("acked", "skipped", "expired", "lost", "dead_lettered", "dropped", "unknown")
    return {**dict.fromkeys(names, 0), **given}


# -- the completion message


def test_a_settled_batch_sends_one_message_with_its_counts(queue: Queue, done: Queue) -> None:
    queue.publish(["other"])
    queue.publish(["a", "b"], batch_id="import-7")
    queue.publish(["other"])
    again(queue).publish(["c"], batch_id="import-7")
    queue.publish(["other"], batch_id="import-8")
    closed = queue.close_batch("import-7", to=done)
    assert closed == having(
        state="closed", messages=3, settled=0, groups=("default",), to=done.path
    )
    held = lease(queue, 3)  # the first three of six: other, a, b
    assert queue.sweep().completed_batches == 0
    held.ack(held.messages[1:])  # what is behind the other one counts
    assert queue.batches()[0] == having(name="import-7", settled=2)
    lease(queue, 2).ack()  # other, c
    assert [queue.sweep().completed_batches for _ in range(3)] == [1, 0, 0]
    assert [*messages_of(done).look().txns.values()] == [1]
    (message,) = done.peek()
    assert message.headers == {"spark_mq.batch_id": "import-7", "spark_mq.batch_queue": queue.path}
    assert message.message_id == "import-7/complete"
    (value,) = completions(done)
    assert {name: value[name] for name in ("batch_id", "queue", "messages", "groups")} == {
        "batch_id": "import-7",
        "queue": queue.path,
        "messages": 3,
        "groups": {"default": counts(acked=3)},
    }
    first, second = queue.batches()
    assert first == having(state="complete", messages=3, settled=3)
    assert first.counts == value["groups"]
    assert second == having(name="import-8", state="open", messages=1, settled=0, to=None)


def test_each_way_to_end_is_counted(queue: Queue, done: Queue, clock: ManualClock) -> None:
    publish_and_close(queue, done, Message("late", expires_at="1h"), "a", "b", "c", "d")
    queue.publish(["other"])
    clock.advance("2h")
    queue.sweep()
    held = lease(queue, 2)
    held.ack(held.messages[:1])
    held.reject(held.messages[1:], error="bad")
    assert queue.batches()[0].settled == 2  # expired and acked; the dead one waits for a sweep
    queue.sweep()
    queue.group().seek("latest")  # skips c and d
    queue.sweep()
    assert counted(done) == {"expired": 1, "acked": 1, "dead_lettered": 1, "skipped": 2}


def test_a_failed_message_holds_the_batch_until_its_retry_is_settled(
    queue: Queue, done: Queue, clock: ManualClock
) -> None:
    publish_and_close(queue, done)
    held = lease(queue)
    held.ack(held.messages[:1])
    held.nack(held.messages[1:], delay="10m")
    assert queue.sweep().completed_batches == 0
    clock.advance("11m")
    lease(queue)
    assert queue.sweep().completed_batches == 0
    clock.advance("1h")  # the lease expires
    assert queue.sweep().completed_batches == 0
    lease(queue).ack()
    queue.sweep()
    assert counted(done) == {"acked": 2}


def test_each_group_of_the_batch_must_settle_it(queue: Queue, done: Queue) -> None:
    queue.group("audit").ensure()
    queue.group("slow").ensure()
    queue.publish(["a", "b"], batch_id="b")
    queue.close_batch("b", to=done, groups=["audit", "default"])
    lease(queue, 1).ack()
    held = lease(queue, group="audit")
    held.ack(held.messages[1:])
    assert queue.batches()[0].settled == 0, "each message by one of them"
    ack_all(queue)
    queue.sweep()
    assert completions(done) == []
    held.reject(error="no")
    queue.sweep()
    assert completions(done)[0]["groups"] == {
        "audit": counts(acked=1, dead_lettered=1),
        "default": counts(acked=2),
    }


def test_a_dropped_group_and_one_that_began_later_have_unknown_outcomes(
    queue: Queue, done: Queue
) -> None:
    queue.publish(["a", "b"], batch_id="b")
    queue.group("late", start="latest").ensure()
    queue.group("gone").ensure()
    queue.close_batch("b", to=done)
    ack_all(queue)
    queue.sweep()
    assert completions(done) == []
    queue.drop_group("gone")
    queue.sweep()
    assert completions(done)[0]["groups"] == {
        "default": counts(acked=2),
        "gone": counts(unknown=2),
        "late": counts(unknown=2),
    }


def test_a_group_made_again_does_not_count_what_its_predecessor_did(
    queue: Queue, done: Queue
) -> None:
    queue.publish(["a", "b"], batch_id="b")
    ack_all(queue)
    queue.drop_group("default")
    queue.group().ensure()
    queue.close_batch("b", to=done)
    lease(queue).reject(error="no")
    queue.sweep()
    assert counted(done) == {"dead_lettered": 2}


def test_redriven_letters_are_no_messages_of_the_batch(queue: Queue, done: Queue) -> None:
    publish_and_close(queue, done)
    held = lease(queue)
    held.reject(held.messages[:1], error="no")
    queue.sweep()
    assert queue.redrive().messages == 1
    held.ack()
    queue.sweep()
    ack_all(queue)
    queue.sweep()
    assert counted(done) == {"acked": 1, "dead_lettered": 1}


def test_duplicates_are_not_of_the_batch(make: Make, clock: ManualClock) -> None:
    queue = make(dedup_window="1h")
    queue.publish([Message("a", dedup_id="1")])
    queue.publish([Message("a", dedup_id="1"), Message("b", dedup_id="2")], batch_id="b")
    queue.publish([Message("b", dedup_id="2")], batch_id="b")
    assert queue.batches() == [having(name="b", messages=1, settled=0)]


def test_a_batch_in_a_queue_with_lanes_and_by_a_publisher(make: Make) -> None:
    queue = make(lanes=8)
    with queue.publisher(batch_id="b") as publisher:
        for at in range(20):
            publisher.publish(Message(str(at), key=str(at), priority=at % 2))
    queue.publish([Message("x", key="x")])
    assert again(queue).batches() == [having(name="b", messages=20, state="open")]


# -- closing


def test_a_closed_batch_refuses_publishes(queue: Queue, done: Queue) -> None:
    queue.publish(["a"], batch_id="b", producer_id="p", producer_sequence=1)
    queue.close_batch("b", to=done)
    version = messages_of(queue).look().version
    for messages in (["x"], [], [Message("x")]):
        with pytest.raises(BatchClosed, match=r"batch 'b' of .* is closed"):
            queue.publish(messages, batch_id="b")
    with pytest.raises(BatchClosed):
        queue.publish(["x"], batch_id="b", producer_id="p", producer_sequence=2)
    # A call that has landed is a duplicate, also after the close.
    repeated = {"batch_id": "b", "producer_id": "p", "producer_sequence": 1}
    assert queue.publish(["a"], on_duplicate="skip", **repeated).duplicate
    publisher = again(queue).publisher(batch_id="b")
    pending = publisher.publish("x")
    with pytest.raises(BatchClosed):
        pending.result(30)
    publisher.close()
    assert messages_of(queue).look().version == version
    assert queue.batches() == [having(messages=1)]


def test_closing_again_the_same_way_changes_nothing(queue: Queue, done: Queue) -> None:
    queue.group("audit").ensure()
    first = as_visitor("ada", lambda: queue.close_batch("b", to=done, groups=["default"]))
    version = messages_of(queue).look().version
    assert queue.close_batch("b", to=done) == first
    assert queue.close_batch("b", to=done, groups="default") == first
    assert messages_of(queue).look().version == version
    for other in ({"to": done, "groups": ["audit"]}, {"to": queue}):
        with pytest.raises(BatchClosed, match="is closed already, with"):
            queue.close_batch("b", **other)
    noted = [(change.user, change.detail) for change in queue.changes(since="3000d")]
    assert noted.count(("ada", "batch b closed")) == 1


def test_closed_batches_have_a_limit(queue: Queue, done: Queue, limits: Limits) -> None:
    queue.close_batch("a", to=done)
    entry = messages_of(queue).look().metadata["configuration"]["spark_mq.batch.a"]
    limits(batch_bytes=2 * len(entry))
    queue.close_batch("b", to=done)
    with pytest.raises(InvalidOption, match="makes the closed batches larger"):
        queue.close_batch("c", to=done)


def test_a_queue_without_groups_closes_no_batch(queue: Queue, clock: ManualClock) -> None:
    with pytest.raises(InvalidOption, match="has no groups"):
        queue.close_batch("b", to=memory_queue(clock))


def test_dead_letter_queues_neither_close_a_batch_nor_get_its_message(
    queue: Queue, done: Queue
) -> None:
    letters = queue.dead_letters
    with pytest.raises(InvalidOption, match="whose sweep completes no batch"):
        letters.close_batch("b", to=done)
    with pytest.raises(InvalidOption, match="is a dead-letter queue"):
        queue.close_batch("b", to=letters)


# -- races


def test_what_happens_after_a_kill_does_not_change_the_counts(queue: Queue, done: Queue) -> None:
    publish_and_close(queue, done)
    ack_all(queue)
    with killed("messages", at=2):
        again(queue).sweep()
    queue.group().seek("earliest")
    queue.sweep()
    assert counted(done) == {"acked": 2}


def test_a_publish_that_meets_the_close_is_refused_whole(
    queue: Queue, done: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open batch is never counted, so all that lands before the close is in the counts."""
    queue.publish(["a"], batch_id="b")
    ack_all(queue)
    other = again(queue)

    def sweep_and_close() -> None:
        other.sweep()
        other.close_batch("b", to=done)

    # The publish has read the log, and is about to create its entry.
    on_commit(monkeypatch, "messages", before=sweep_and_close)
    with pytest.raises(BatchClosed):
        queue.publish(["late"], batch_id="b")
    assert [message.value for message in queue.peek()] == [b"a"]
    queue.sweep()
    assert completions(done)[0]["messages"] == 1


def test_a_lease_of_later_messages_while_a_sweep_counts_is_no_damage(
    queue: Queue, done: Queue
) -> None:
    publish_and_close(queue, done, "a")
    ack_all(queue)
    with rule_variant("count_outcomes", first(lambda _: leased(again(queue), "later"))):
        assert again(queue).sweep().completed_batches == 1
    assert counted(done) == {"acked": 1}


@pytest.mark.parametrize("hangs_at", ["completion", "removal"])
def test_a_sweep_that_hangs_for_days_spares_a_later_batch_of_the_name(
    queue: Queue, done: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, hangs_at: str
) -> None:
    for name in ("b", "gone"):
        queue.close_batch(name, to=done)
    other = again(queue)
    if hangs_at == "removal":
        other.sweep()
        clock.advance("99d")

    def remove_and_close_again() -> None:
        other.sweep()
        clock.advance("99d")
        other.sweep()
        publish_and_close(other, done)

    on_commit(monkeypatch, "messages", before=remove_and_close_again)
    assert queue.sweep().completed_batches == 0
    ack_all(queue)
    assert queue.sweep().completed_batches == 1
    assert queue.batches() == [having(name="b", state="complete", messages=2)]


# -- time


def test_trimmed_messages_of_an_open_batch_are_still_counted(
    make: Make, clock: ManualClock
) -> None:
    queue = make(retention="1h")
    done = beside(queue)
    queue.publish(["a", "b"], batch_id="b")
    ack_all(queue)
    clock.advance("3h")
    queue.publish(["c"], batch_id="b")
    ack_all(queue)
    assert queue.sweep().trimmed_files > 0
    clock.advance("3h")
    queue.publish(["other"])
    ack_all(queue)
    queue.sweep()
    late = again(queue)  # knows the trimmed files only from commits/
    late.close_batch("b", to=done)
    late.sweep()
    assert counted(done) == {"acked": 3}


def test_a_batch_older_than_the_history_has_unknown_outcomes(clock: ManualClock) -> None:
    # On a disk the days of the history are of the machine's clock.
    queue = memory_queue(clock, retention="1h", history_retention="1d")
    queue.publish(["a", "b"], batch_id="b")
    ack_all(queue)
    queue.sweep()
    clock.advance("10d")
    queue.sweep()
    queue.close_batch("b", to=queue)
    again(queue).sweep()
    (batch,) = queue.batches()
    assert (batch.state, batch.messages) == ("complete", 2)
    assert batch.counts["default"] == counts(unknown=2)


def test_an_old_complete_batch_is_removed_with_its_messages(make: Make, clock: ManualClock) -> None:
    queue = make(retention="1h", history_retention="1d")
    queue.publish(["a"], batch_id="old")
    ack_all(queue)
    queue.close_batch("old", to=queue)
    queue.group("slow").ensure()
    queue.sweep()
    clock.advance("2d")
    queue.sweep()
    assert queue.batches() == [having(name="old", state="complete")], "a group holds its messages"
    ack_all(queue, "slow")
    queue.close_batch("young", to=queue)
    for _ in range(2):
        queue.sweep()
        clock.advance("5h")
    assert queue.batches() == [having(name="young", state="complete")]


def test_a_missing_target_fails_the_sweep_and_is_tried_again(
    delta_queue: Make, clock: ManualClock
) -> None:
    queue = delta_queue()
    queue.group().ensure()
    done = beside(queue, "done")
    queue.publish(["a"], batch_id="b")
    queue.publish(["x"], batch_id="other")
    queue.close_batch("b", to=done)
    queue.close_batch("other", to=queue)
    ack_all(queue)
    Queue.drop_at(done.path, done.name)
    with pytest.raises(QueueNotFound):
        queue.sweep()
    assert queue.peek()[2:] == [having(message_id="other/complete")]  # the others continue
    made = Queue.create(done.path, clock=clock, durable=False)
    queue.sweep()
    assert len(completions(made)) == 1


def test_an_entry_of_another_version_is_named(make: Make, clock: ManualClock) -> None:
    queue = make(retention="1h", history_retention="1d")
    queue.publish(["a"], batch_id="b")
    queue.publish(["other"])
    ack_all(queue)
    clock.advance("3d")
    entry = "spark_mq.batch.b"
    messages_of(queue).change_property(entry, lambda _: '{"format": 99}', "by hand")
    for call in (queue.batches, queue.sweep, lambda: queue.close_batch("b", to=queue)):
        with pytest.raises(UnsupportedTable, match=r"batch 'b' of .* cannot be read"):
            call()
    with pytest.raises(BatchClosed):
        queue.publish(["c"], batch_id="b")
    messages_of(queue).change_property(entry, lambda _: None, "by hand")
    assert queue.batches() == [having(messages=1, settled=1)], "no sweep has forgotten it"
