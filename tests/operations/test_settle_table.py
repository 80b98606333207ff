"""What the API makes of a settle in each state of a message, line by line.

The rule itself has such a table in tests/unit/ledger/test_settle.py. Here are the results and the
errors that callers see, what an object of a lease knows, and the same after ranges have merged.

A line reads: a message in this state, settled by a lease that was granted it, by this verb: so many
settled, so many already settled, or why not. "lost" is a LeaseLost that names the message and the
reason; "gone" one that knows only that the lease no longer holds anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support.tables import group_ledger_of

from spark_mq import Lease, Queue, SettleResult
from spark_mq.errors import InvalidOption, LeaseLost
from spark_mq.testing import ManualClock

VERBS = ("ack", "nack", "reject", "release")
AFTER = {"ack": "settled", "nack": "available", "reject": "dead", "release": "available"}

# state of the message              ack, reject      nack, release
TABLE = {
    "held":                         ("settled 1",    "settled 1"),
    "past its deadline":            ("settled 1",    "settled 1"),
    "settled by this lease":        ("already 1",    "already 1"),
    "settled by a later lease":     ("already 1",    "already 1"),
    "leased by another":            ("lost leased by", "lost leased by"),
    "given back":                   ("lost given back", "lost given back"),
    "dead":                         ("lost dead: rejected", "lost dead: rejected"),
    "blocked":                      ("lost blocked: max_failures", "lost blocked: max_failures"),
    "being routed":                 ("lost dead: rejected", "lost dead: rejected"),
    "skipped by a seek":            ("lost skipped", "lost skipped"),
    "unread again, by a seek":      ("lost unread",  "lost unread"),
}  # fmt: skip
OWN = {"settled by this lease", "given back", "dead", "blocked", "being routed"}
"""The lease has settled the message itself. A repeat by its id has nothing left to do."""


@dataclass
class Case:
    """Three neighbours under three leases; the one in the middle is looked at.

    The others, where ranges are to merge, share its fate.
    """

    queue: Queue
    clock: ManualClock
    leases: list[Lease]
    sequences: list[int]
    merged: bool

    @property
    def lease(self) -> Lease:
        return self.leases[1]

    @property
    def sequence(self) -> int:
        return self.sequences[1]

    def each(self, act: Callable[[Lease, int], object]) -> None:
        for lease, seq in zip(self.leases, self.sequences, strict=True):
            if self.merged or lease is self.lease:
                act(lease, seq)

    def expire(self) -> None:
        self.clock.advance("62s")
        self.queue.group().expire()


def by_id(case: Case, verb: str, *args: Any) -> None:
    """By the lease's id, so that its object knows nothing of it."""
    case.each(lambda lease, seq: getattr(case.queue.group(), verb)(lease.lease_id, [seq], *args))


def later(case: Case) -> Lease:
    case.expire()
    taken = case.queue.group().lease("later", max_messages=3)
    while taken is not None and case.sequence not in [m.sequence for m in taken.messages]:
        taken = case.queue.group().lease("later", max_messages=3)
    assert taken is not None
    return taken


PREPARE: dict[str, Callable[[Case], object]] = {
    "held": lambda case: None,
    "past its deadline": Case.expire,
    "settled by this lease": lambda case: by_id(case, "ack"),
    "settled by a later lease": lambda case: later(case).ack(),
    "leased by another": later,
    "given back": lambda case: by_id(case, "nack"),
    "dead": lambda case: by_id(case, "reject"),
    "blocked": lambda case: (
        case.queue.group().configure(on_max_deliveries="block", max_failures=1),
        by_id(case, "nack"),
    ),
    "being routed": lambda case: (by_id(case, "reject"), freeze(case.queue)),
    "skipped by a seek": lambda case: case.queue.group().seek("latest"),
    "unread again, by a seek": lambda case: case.queue.group().seek("earliest"),
}


def freeze(queue: Queue) -> None:
    """The first step of routing, whose sweeper has been killed."""
    from spark_mq.ledger import routing

    group_ledger_of(queue.group()).run(routing.FreezeDead("routing-1", 10, 100))


@pytest.fixture
def case(queue: Queue, clock: ManualClock) -> Case:
    receipt = queue.publish(["0", "1", "2"])
    leases = [queue.group().lease(f"w{n}") for n in range(3)]
    held = [lease for lease in leases if lease is not None]
    return Case(queue, clock, held, list(receipt.sequences), merged=False)


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


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", TABLE)
def test_by_sequence(case: Case, state: str, verb: str, merged: bool) -> None:
    case.merged = merged
    PREPARE[state](case)
    expected = TABLE[state][verb in ("nack", "release")]
    check(
        expected,
        lambda: getattr(case.queue.group(), verb)(case.lease.lease_id, [case.sequence]),
        case.sequence,
    )
    if expected.startswith("settled"):
        states = {
            r.state
            for r in group_ledger_of(case.queue.group()).current()
            if r.first <= case.sequence <= r.last
        } or {"settled"}
        assert states == {AFTER[verb]}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", TABLE)
def test_the_whole_lease_by_its_object(case: Case, state: str, verb: str) -> None:
    PREPARE[state](case)
    check(TABLE[state][verb in ("nack", "release")], getattr(case.lease, verb), case.sequence)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", TABLE)
def test_the_whole_lease_by_its_id_is_as_by_its_object(case: Case, state: str, verb: str) -> None:
    PREPARE[state](case)
    expected = "settled 0" if state in OWN else TABLE[state][verb in ("nack", "release")]
    check(
        expected,
        lambda: getattr(case.queue.group(), verb)(case.lease.lease_id),
        case.sequence,
    )


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
    assert group.ack([done.lease_id, other.lease_id]) == SettleResult(1)
    with pytest.raises(LeaseLost) as caught:
        group.ack({done.lease_id: None, "no-such-lease": None})
    assert caught.value.data["lease_id"] == "no-such-lease"


EXTEND = {"held": "settled 1", "past its deadline": "settled 1"}
"""To extend revives what nobody has leased since.

Of anything else the lease no longer holds anything.
"""


@pytest.mark.parametrize("state", TABLE)
def test_extending(case: Case, state: str) -> None:
    PREPARE[state](case)
    counts = [
        (r.delivery_count, r.failure_count)
        for r in group_ledger_of(case.queue.group()).current()
        if r.first <= case.sequence <= r.last
    ]
    check(EXTEND.get(state, "gone"), lambda: case.lease.extend("5m"), 0)
    if state == "held":
        assert counts == [
            (r.delivery_count, r.failure_count)
            for r in group_ledger_of(case.queue.group()).current()
            if r.first <= case.sequence <= r.last
        ]


@pytest.mark.parametrize("state", TABLE)
def test_extending_by_sequence(case: Case, state: str) -> None:
    PREPARE[state](case)
    expected = TABLE[state][0]
    check(expected, lambda: case.lease.extend("5m", [case.sequence]), case.sequence)
    if expected.startswith("settled"):
        found = [
            r for r in group_ledger_of(case.queue.group()).current() if r.first == case.sequence
        ]
        assert [(r.state, r.lease_id) for r in found] == [("leased", case.lease.lease_id)]


@pytest.mark.parametrize("verb", [*VERBS, "extend"])
def test_a_lease_that_never_was_holds_nothing(case: Case, verb: str) -> None:
    check("gone", lambda: getattr(case.queue.group(), verb)("no-such-lease"), 0)
    other = case.queue.group("other").ensure()
    with pytest.raises(LeaseLost) as caught:
        getattr(other, verb)(case.lease.lease_id)
    assert caught.value.data["lease_id"] == case.lease.lease_id


@pytest.mark.parametrize("verb", [*VERBS, "extend"])
def test_a_lost_message_id_names_its_lease(case: Case, verb: str) -> None:
    first, second = case.leases[:2]
    for ids in ([first.lease_id], [first.lease_id, second.lease_id], ["no-such-lease"]):
        with pytest.raises(LeaseLost, match=f"^lease {', '.join(ids)} no longer holds") as caught:
            getattr(case.queue.group(), verb)(ids, message_ids=["no-such-id"])
        assert caught.value.data["lease_id"] == ", ".join(ids)


@pytest.mark.parametrize("verb", [*VERBS, "extend"])
def test_messages_that_were_never_in_the_lease_or_do_not_exist_are_lost(
    case: Case, verb: str
) -> None:
    group = case.queue.group()
    settle = getattr(group, verb)
    if verb == "extend":
        settle = lambda lease_id, some: group.extend(lease_id, "1m", some)  # noqa: E731
    other, unread, nowhere = (
        case.sequences[0],
        case.queue.publish(["x"]).sequences[0],
        case.sequences[2] + 1,
    )
    check("lost leased by", lambda: settle(case.lease.lease_id, [other]), other)
    check("lost unread", lambda: settle(case.lease.lease_id, [unread]), unread)
    check("lost no message", lambda: settle(case.lease.lease_id, [nowhere]), nowhere)
    with pytest.raises(InvalidOption):
        settle(case.lease.lease_id, [-1])
