"""Settle parts of several leases in one call."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.handles import lease
from support.tables import ledgers_of

from spark_mq import Message, Queue, SettleResult
from spark_mq.errors import LeaseLost


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


def test_a_lease_over_several_commits_that_another_worker_has_got_is_lost(queue: Queue) -> None:
    for _ in range(2):
        queue.publish(["a", "b"])
    held = lease(queue, 4)
    held.ack([held.messages[0].sequence, held.messages[3].sequence])
    queue.group().discard([m.sequence for m in held.messages[1:3]], force=True)
    assert held.ack() == SettleResult(0, already_settled=2)
    queue.publish(["c"])
    queue.publish(["d"])
    other = lease(queue, 2)
    queue.group().seek("earliest")
    with pytest.raises(LeaseLost):
        other.ack()


def three(queue: Queue) -> tuple[Any, ...]:
    """Three leases of two messages each, and their sequences."""
    receipt = queue.publish([Message(str(n), message_id=f"id-{n % 4}") for n in range(6)])
    return (*(lease(queue, 2) for _ in range(3)), receipt.sequences)


def test_one_call_settles_parts_of_several_leases(queue: Queue) -> None:
    a, b, c, seqs = three(queue)
    before = ledgers_of(queue).version()
    parts = {a.lease_id: [seqs[0]], b: None, c.lease_id: [seqs[5]]}
    assert queue.group().ack(parts) == SettleResult(4)
    assert ledgers_of(queue).version() - before == 1
    assert b.ack() == SettleResult(0)
    # These objects know nothing of what was settled by id.
    assert queue.group().nack([a, c], delay=0) == SettleResult(2, 2)
    assert a.ack([]) == SettleResult(0)
    assert queue.group().stats().ready == 2


def test_what_one_of_several_leases_has_lost_is_reported_after_the_rest_is_settled(
    queue: Queue,
) -> None:
    a, b, _, seqs = three(queue)
    a.nack([seqs[0]])
    with pytest.raises(LeaseLost) as caught:
        queue.group().ack({a.lease_id: [seqs[0], seqs[1]], b.lease_id: None, "other": [seqs[4]]})
    assert caught.value.data["result"] == SettleResult(3)
    lost = {first: why.split()[0] for first, _, why in caught.value.data["lost"]}
    assert lost == {seqs[0]: "given", seqs[4]: "leased"}


@pytest.mark.parametrize("by", ["the lease", "its id", "its id later"])
def test_after_an_ack_other_settles_of_the_message_do_nothing(queue: Queue, by: str) -> None:
    queue.publish(["a", "b"])
    held = lease(queue, 2)
    message = held.messages[0]
    held.ack(message)
    if by == "its id later":
        held.ack()  # so that it holds nothing
    for verb in ("ack", "reject", "nack", "release", "extend"):
        settle = getattr(held if by == "the lease" else queue.group(), verb)
        settle = settle if by == "the lease" else partial(settle, held.lease_id)
        assert settle(sequences=message) == SettleResult(0, already_settled=1)
