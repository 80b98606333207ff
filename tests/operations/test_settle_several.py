"""Settle, release and extend parts of leases, and several leases in one call."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.handles import lease, leased, notes
from support.queues import Make
from support.tables import ledgers_of

from spark_mq import Message, Queue, SettleResult
from spark_mq.errors import LeaseLost
from spark_mq.testing import ManualClock


@pytest.mark.parametrize("verb", ["ack", "reject", "nack", "release"])
def test_a_lease_over_several_commits_has_nothing_left_once_each_message_is_settled(
    queue: Queue, verb: str
) -> None:
    """Between two commits are sequences without messages, which nobody settles."""
    for _ in range(3):
        queue.publish(["a", "b"])
    held = lease(queue, 6)
    getattr(held, verb)([message.sequence for message in held.messages])
    before = ledgers_of(queue).version()
    for rest in (held.ack, held.nack, held.reject, held.release):
        assert rest() == SettleResult(0)
    assert ledgers_of(queue).version() == before


def three(queue: Queue) -> tuple[Any, ...]:
    """Three leases of two messages each, and their sequences."""
    receipt = queue.publish([Message(str(n), message_id=f"id-{n % 4}") for n in range(6)])
    return (*(lease(queue, 2) for _ in range(3)), receipt.sequences)


def test_one_call_settles_parts_of_several_leases(queue: Queue) -> None:
    a, b, c, seqs = three(queue)
    before = ledgers_of(queue).version()
    assert a.ack([]) == SettleResult(0), "without a commit"
    parts = {a.lease_id: [seqs[0]], b: None, c.lease_id: [seqs[5]]}
    assert queue.group().ack(parts) == SettleResult(4)
    assert ledgers_of(queue).version() - before == 1
    assert b.ack() == SettleResult(0)
    # These objects know nothing of what was settled by id.
    assert queue.group().nack([a, c], delay=0) == SettleResult(2, 2)
    assert queue.group().stats().ready == 2


def test_what_a_lease_has_lost_is_reported_after_the_rest_is_settled(queue: Queue) -> None:
    a, b, _, seqs = three(queue)
    a.nack([seqs[0]])
    with pytest.raises(LeaseLost) as caught:
        queue.group().ack({a.lease_id: [seqs[0], seqs[1]], b.lease_id: None, "other": [seqs[4]]})
    assert caught.value.data["result"] == SettleResult(3)
    lost = {first: why.split()[0] for first, _, why in caught.value.data["lost"]}
    assert lost == {seqs[0]: "given", seqs[4]: "leased"}
    assert caught.value.data["lease_id"] == f"{a.lease_id}, other"


@pytest.mark.parametrize("by", ["the lease", "its id", "its id later"])
def test_after_an_ack_other_settles_of_the_message_do_nothing(queue: Queue, by: str) -> None:
    held = leased(queue, "a", "b", count=2)
    message = held.messages[0]
    held.ack(message)
    if by == "its id later":
        held.ack()  # so that it holds nothing
    for verb in ("ack", "reject", "nack", "release", "extend"):
        settle = getattr(held if by == "the lease" else queue.group(), verb)
        settle = settle if by == "the lease" else partial(settle, held.lease_id)
        assert settle(sequences=message) == SettleResult(0, already_settled=1)


# -- release for later, and extend


def test_some_messages_are_released_for_later_and_the_rest_stays_leased(
    queue: Queue, clock: ManualClock
) -> None:
    first, _, third = queue.publish(["a", "b", "c"]).sequences
    group, held = queue.group(), lease(queue, 3)
    assert held.release([first], delay=30) == SettleResult(1)
    assert group.release(held, held.messages[2], delay=10) == SettleResult(1)
    assert held.ack() == SettleResult(1), "the object knows what it has released"
    for pause, sequence in (("11s", third), ("20s", first)):
        clock.advance(pause)
        (message,) = lease(queue, 3).messages
        assert (message.sequence, message.delivery_count) == (sequence, 1)


def test_a_late_release_counts_and_its_delay_still_holds(queue: Queue, clock: ManualClock) -> None:
    held = leased(queue, "a")
    clock.advance("62s")
    assert held.release(delay="5m") == SettleResult(1)
    clock.advance("4m")
    assert queue.group().lease("w") is None
    clock.advance("61s")
    assert lease(queue).messages[0].delivery_count == 2


def test_an_extension_of_a_message_lets_the_others_expire(queue: Queue, clock: ManualClock) -> None:
    first, second = (queue.publish(value).sequences[0] for value in "ab")
    held = lease(queue, 2)
    deadline = held.expires_at
    assert held.extend("10m", [second]) == SettleResult(1)
    assert held.expires_at == deadline
    clock.advance("62s")
    assert [m.sequence for m in lease(queue, 2).messages] == [first]
    with pytest.raises(LeaseLost) as lost:
        held.extend("10m", [first, second])
    assert [place for *place, _ in lost.value.data["lost"]] == [[first, first]]
    assert lost.value.data["result"] == SettleResult(1)
    assert held.ack([second]) == SettleResult(1)
    with pytest.raises(LeaseLost) as lost:
        queue.group().ack(held.lease_id)
    assert [place for *place, _ in lost.value.data["lost"]] == [[first, first]], "and no gap"


def test_one_call_extends_several_leases_in_one_commit(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["a", "b", "c"])
    group, one, two = queue.group(), lease(queue, 1), lease(queue, 2)
    assert group.extend({one: None, two: [two.messages[0].sequence]}, "20m") == SettleResult(2)
    assert group.extend(two, "30m", two.messages[1]) == SettleResult(1)
    before = ledgers_of(queue).version()
    assert group.extend([one, two], "10m") == SettleResult(3), "none to an earlier deadline"
    assert ledgers_of(queue).version() == before + 1
    clock.advance("15m")
    assert group.lease("v", max_messages=3) is None
    clock.advance("10m")
    assert group.expire() == notes(queue)[-1]["messages"] == 2


def test_a_lease_is_extended_by_a_process_that_knows_no_later_messages(delta_queue: Make) -> None:
    queue = delta_queue()
    held, other = leased(queue, "a"), Queue.open(queue.path)
    for value in "bc":
        other.publish(value)
        lease(other)
    assert held.extend("10m") == SettleResult(1)


@pytest.mark.parametrize("verb", ["ack", "extend"])
def test_a_message_that_only_another_process_knows_is_unread(delta_queue: Make, verb: str) -> None:
    queue = delta_queue()
    held, other = leased(queue, "a"), Queue.open(queue.path)
    (later,) = other.publish("b").sequences
    with pytest.raises(LeaseLost, match="unread"):
        getattr(held, verb)(sequences=[later])
