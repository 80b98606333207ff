"""What the API makes of a settle in each state of a message, line by line.

The rule itself has such a table in tests/unit/ledger/test_settle.py. Here are the results and the
errors that callers see, and what an object of a lease knows.

A line reads: a message in this state, settled by a lease that was granted it, by this verb: so many
settled, so many already settled, or why not. "lost" is a LeaseLost that names the message and the
reason; "gone" one that knows only that the lease no longer holds anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support.handles import archive, lease, leased
from support.having import having
from support.tables import group_ledger_of

from spark_mq import Lease, Message, Queue, SettleResult
from spark_mq.errors import LeaseLost
from spark_mq.testing import ManualClock, memory_queue

VERBS = ("ack", "nack", "reject", "release")
AFTER = {
    "ack": "settled", "nack": "available", "reject": "dead", "release": "available",
    "extend": "leased",
}  # fmt: skip

OWN = {"settled by this lease", "given back", "dead", "blocked"}
"""The lease has settled the message itself. A repeat by its id has nothing left to do."""


@dataclass
class Case:
    """Three neighbours under three leases; the one in the middle is looked at."""

    queue: Queue
    clock: ManualClock
    leases: list[Lease]
    sequences: list[int]

    @property
    def lease(self) -> Lease:
        return self.leases[1]

    @property
    def sequence(self) -> int:
        return self.sequences[1]

    def expire(self) -> None:
        self.clock.advance("62s")
        self.queue.group().expire()

    def ranges(self) -> list[Any]:
        """The tracked ranges with the message in the middle."""
        ledger = group_ledger_of(self.queue.group()).current()
        return [r for r in ledger if r.first <= self.sequence <= r.last]


def by_id(case: Case, verb: str, *args: Any) -> None:
    """By the lease's id, so that its object knows nothing of it."""
    getattr(case.queue.group(), verb)(case.lease.lease_id, [case.sequence], *args)


def later(case: Case) -> Lease:
    case.expire()
    _, taken = lease(case.queue), lease(case.queue)  # of one message each, since they expired
    assert [message.sequence for message in taken.messages] == [case.sequence]
    return taken


def block(case: Case) -> None:
    case.queue.group().configure(on_max_deliveries="block", max_failures=1)
    by_id(case, "nack")


TABLE: dict[str, tuple[str, Callable[[Case], object]]] = {
    # the state of the message, what a settle of it by its sequence gives, and how it came there
    "held": ("settled 1", lambda case: None),
    "past its deadline": ("settled 1", Case.expire),
    "settled by this lease": ("already 1", lambda case: by_id(case, "ack")),
    "settled by a later lease": ("already 1", lambda case: later(case).ack()),
    "leased by another": ("lost leased by", later),
    "given back": ("lost given back", lambda case: by_id(case, "nack")),
    "dead": ("lost dead: rejected", lambda case: by_id(case, "reject")),
    "blocked": ("lost blocked: max_failures", block),
    "expired": ("already 1", lambda case: case.clock.advance("2h")),
    "expired after its deadline": (
        "already 1",
        lambda case: (case.expire(), case.clock.advance("2h")),
    ),
}


@pytest.fixture
def case(queue: Queue, clock: ManualClock) -> Case:
    receipt = queue.publish(["0", Message("1", expires_at="1h"), "2"])
    leases = [lease(queue, 1) for _ in range(3)]
    return Case(queue, clock, leases, list(receipt.sequences))


def check(expected: str, call: Callable[[], SettleResult], seq: int) -> None:
    what, _, reported = expected.partition(" ")
    if what == "settled":
        assert call() == SettleResult(int(reported), 0)
    elif what == "already":
        assert call() == SettleResult(0, int(reported))
    else:
        with pytest.raises(LeaseLost) as caught:
            call()
        assert caught.value.data["result"] == SettleResult(0, 0)
        assert [(first, last) for first, last, _ in caught.value.data["lost"]] == (
            [(seq, seq)] if what == "lost" else []
        )
        assert all(why.startswith(reported) for _, _, why in caught.value.data["lost"])


WAYS: dict[str, Callable[[Case, str], SettleResult]] = {
    "sequence": lambda case, verb: (
        case.lease.extend("5m", [case.sequence])
        if verb == "extend"
        else getattr(case.queue.group(), verb)(case.lease.lease_id, [case.sequence])
    ),
    "object of the lease": lambda case, verb: getattr(case.lease, verb)(),
    "id of the lease": lambda case, verb: getattr(case.queue.group(), verb)(case.lease.lease_id),
}


def expected_of(state: str, verb: str, way: str) -> str:
    """A whole lease is extended if it still holds anything, and a repeat by its id does nothing."""
    named, _ = TABLE[state]
    if verb == "extend" and way != "sequence":
        return named if named == "settled 1" else "gone"
    return "settled 0" if way == "id of the lease" and state in OWN else named


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", [*VERBS, "extend"])
@pytest.mark.parametrize("state", TABLE)
def test_a_settle(case: Case, state: str, verb: str, way: str) -> None:
    TABLE[state][1](case)
    expected, (before, *_) = expected_of(state, verb, way), case.ranges() or [None]
    check(expected, lambda: WAYS[way](case, verb), case.sequence)
    if state.startswith("expired"):  # by its time to live
        case.queue.sweep()
        assert case.queue.group().stats() == having(expired=1, acked=0, dead=0)
    if expected != "settled 1":
        return
    ranges = case.ranges()
    assert ({r.state for r in ranges} or {"settled"}) == {AFTER[verb]}
    if verb == "extend":
        (after,) = ranges
        assert after.lease_id == case.lease.lease_id
        if state == "held":
            counts = after.delivery_count, after.failure_count
            assert counts == (before.delivery_count, before.failure_count)


@pytest.mark.parametrize("again", VERBS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_repeat_settles_nothing_and_raises_nothing(case: Case, verb: str, again: str) -> None:
    group, taken = case.queue.group(), case.lease
    assert getattr(taken, verb)() == SettleResult(1)
    before = list(group_ledger_of(group).current())
    assert getattr(taken, again)() == SettleResult(0)
    assert getattr(group, again)(taken.lease_id) == SettleResult(0)
    assert getattr(group, again)([taken.lease_id, taken]) == SettleResult(0)
    assert list(group_ledger_of(group).current()) == before


def test_a_repeat_by_id_settles_the_other_leases(case: Case) -> None:
    group, (done, other, _) = case.queue.group(), case.leases
    group.ack(done.lease_id)
    archive(case.queue)
    assert group.ack(done.lease_id) == SettleResult(0), "as the archive tells"
    assert group.ack([done.lease_id, other.lease_id]) == SettleResult(1)
    with pytest.raises(LeaseLost) as caught:
        group.ack({other.lease_id: None, "no-such-lease": None})
    assert caught.value.data["lease_id"] == "no-such-lease"
    assert caught.value.data["result"] == SettleResult(0)


def test_a_repeat_by_id_is_known_for_a_day(clock: ManualClock) -> None:
    # On a disk the times of commits are of the machine's clock.
    queue = memory_queue(clock)
    group, name = queue.group(), leased(queue, "a").lease_id
    group.ack(name)
    for at in range(1, 19):  # with the ack and one more as many commits as one read of the past
        group.configure(max_in_flight=at)
    clock.advance("1d")
    group.configure(max_in_flight=19)
    assert group.ack(name) == SettleResult(0)
    clock.advance("1s")
    group.configure(max_in_flight=20)
    with pytest.raises(LeaseLost):
        group.ack(name)
