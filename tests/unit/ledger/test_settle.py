"""Apply ack, nack, reject, release and extend."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.having import having
from support.ledger_group import SECOND, TIMEOUT, Group, freeze, limits, seek

from spark_mq.ledger.message_index import DataFile, sequence
from spark_mq.ledger.ranges import AVAILABLE, DEAD, SETTLED, Ledger, Range
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE, Settle, SettleOutcome, SettlePart

# -- nack


@pytest.mark.parametrize(
    ("retry", "waits"),
    [
        ("exponential", [10, 20, 40, 80, 160, 320, 640, 900, 900]),
        ("linear", [10, 20, 30, 40, 50]),
        ("constant", [10] * 5),
    ],
)
def test_backoff_grows_as_the_policy_says_up_to_its_cap(retry, waits):
    group = Group(messages=1, rules=limits(retry=retry, max_delivery_attempts=None))
    for attempt, wait in enumerate(waits):
        assert group.lease(f"l{attempt}") == [0]
        group.settle(NACK, f"l{attempt}")
        assert group.at(0).available_at == group.now + wait * SECOND
        group.now = group.at(0).available_at


def test_a_nack_of_the_last_attempt_is_death():
    group = Group(messages=2, rules=limits(max_delivery_attempts=3))
    for lease_id, held in [("a", [0]), ("b", [0, 1]), ("c", [0])]:
        assert group.lease(lease_id, len(held)) == held
        group.settle(NACK, lease_id, held, delay=0, error=f"failed in {lease_id}")
    dead = group.at(0)
    assert dead == having(
        state=DEAD, reason="max_delivery_attempts", error="failed in c", failure_count=3
    )
    assert group.at(1) == having(state=AVAILABLE, failure_count=1)


HOUR = 3600 * SECOND
FINAL = {
    # the failures of a message, by the time since the one before; and why the last one is final
    "a count": ({"max_failures": 2}, [0, 0], "max_failures"),
    "the first": ({"retry": "none"}, [0], "max_failures"),
    # The age of the message itself is no matter.
    "an age since the first failure": (
        {"max_retry_age": HOUR}, [2 * HOUR, HOUR - 1, 1], "max_retry_age",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("exhausted", "state"), [("dead_letter", DEAD), ("drop", SETTLED), ("block", "blocked")]
)
@pytest.mark.parametrize("case", FINAL)
def test_a_failure_past_a_limit_is_final_and_the_ones_before_are_not(case, exhausted, state):
    given, waits, reason = FINAL[case]
    rules = limits(max_delivery_attempts=None, on_max_deliveries=exhausted, **given)
    group = Group(messages=1, rules=rules)
    for wait in waits:
        assert group.state(0) != state
        group.now += wait
        lease_id = f"at {group.now}"
        assert group.lease(lease_id) == [0]
        group.settle(NACK, lease_id, [0], delay=0)
    assert group.state(0) == state
    assert group.ledger.head.counters == ({"dropped": 1} if exhausted == "drop" else {})
    if exhausted != "drop":
        assert group.at(0).reason == reason


# -- reject, release


def test_reject_is_death_at_once():
    group = Group()
    group.lease("a", 2)
    group.settle(REJECT, "a", [1], error="not JSON")
    group.settle(REJECT, "a", [0], reason="payload unreadable")
    assert group.at(1) == having(state=DEAD, reason="rejected", error="not JSON")
    assert group.at(0).reason == "payload unreadable"


# -- late settles


def test_a_late_release_gives_up_the_claim_and_keeps_the_count():
    group = Group()
    group.lease("a", 3)
    group.expire()
    leased_at = group.at(0).leased_at
    assert group.settle(RELEASE, "a").settled == 3
    back = group.at(0)
    assert back == having(state=AVAILABLE, lease_id=None, suspect=True, delivery_count=1)
    assert back == having(worker_id=None, leased_at=leased_at, available_at=leased_at + TIMEOUT)
    assert group.extend("a").settled == 0
    group.lease("b", 3)
    group.now += TIMEOUT + 1
    assert group.settle(ACK, "b").settled == 3
    assert group.ledger.head.happened["lease_expired"] == 3, "an ack comes before the expiry"


def test_only_who_names_messages_takes_the_write_of_the_lease_from_them():
    group = Group(messages=2)
    group.lease("a", 2)
    (held,) = group.ledger
    group.ledger = Ledger(group.ledger.head, [held._replace(sink_writes="1:5 2:7")])
    group.settle(NACK, "a", [0], delay=0)
    group.settle(NACK, "a", delay=0)
    assert [r.sink_writes for r in group.ledger] == ["1:5", "1:5 2:7"]


@pytest.mark.parametrize(("attempts", "deliveries"), [(1, 1), (2, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("exhausted", ["dead_letter", "drop", "block"])
@pytest.mark.parametrize("seqs", [None, [0]])
@pytest.mark.parametrize("verb", [NACK, RELEASE])
def test_a_late_nack_or_release_does_the_same_whoever_expires_the_lease(
    *, verb, seqs, exhausted, size, attempts, deliveries
):
    ends = []
    for expires_before in (True, False):  # or by the settle, the first operation that comes
        rules = limits(
            max_delivery_attempts=attempts, on_max_deliveries=exhausted, breaker_threshold=1
        )
        group = Group(rules=replace(rules, max_delivery_attempts=9))
        if deliveries == 2:
            group.lease("before", size)
            group.expire()
        group.lease("a", size)
        group.rules = rules
        group.now += TIMEOUT + 7
        if expires_before:
            group.expire_leases()
        outcome = group.settle(verb, "a", seqs, error="late")
        group.expire_leases()
        events = sorted(
            (name, seq, *r[2:3], *r[4:])
            for name, r in group.ledger.events
            if not name.startswith("breaker")
            for seq in range(r.first, r.last + 1)
        )
        head, failed = group.ledger.head, group.ledger.head.breaker.failed
        breaker = replace(head.breaker, failed=(len(failed),))  # one lease that failed, or none
        ends.append((list(group.ledger), replace(head, breaker=breaker), outcome, events))
    assert ends[0] == ends[1]


# -- what each settle does to each state


STATES = {
    # how message 0 came to be there, and what it counts as: held, settled, or why it is lost
    "held": ("held", lambda group: None),
    "past its deadline": ("held", lambda group: group.expire()),
    "settled": ("settled", lambda group: group.settle(ACK, "a")),
    "settled by a later lease": (
        "settled", lambda group: (group.expire(), group.lease("b", 1), group.settle(ACK, "b")),
    ),
    "settled, a hole above the floor": (
        "settled", lambda group: (group.settle(ACK, "a"), reopen(group)),
    ),
    "leased by another": ("leased by b", lambda group: (group.expire(), group.lease("b", 1))),
    "dead": ("dead: rejected", lambda group: group.settle(REJECT, "a")),
    "routing": ("dead: rejected", lambda group: (group.settle(REJECT, "a"), freeze(group))),
    "given back": ("given back", lambda group: group.settle(NACK, "a")),
    "unread": ("unread", lambda group: seek(group, 0)),
    "skipped": ("skipped", lambda group: seek(group, 1)),
    "skipped after it was settled": (
        "settled", lambda group: (group.settle(ACK, "a"), seek(group, 1)),
    ),
    "skipped, then unread again": ("unread", lambda group: (seek(group, 1), seek(group, 0))),
}  # fmt: skip


def reopen(group: Group) -> None:
    """Puts a floor below message 0 again, as if another message before it were open."""
    group.ledger = Ledger.from_ranges(
        replace(group.ledger.head, start_sequence=-1, settled_count=0),
        [Range(0, 0, SETTLED, 1), *group.ledger],
    )


@pytest.mark.parametrize("verb", [ACK, NACK, REJECT, RELEASE])
@pytest.mark.parametrize("by", ["whole lease", "sequence", "nothing"])
@pytest.mark.parametrize("case", STATES)
def test_a_settle_touches_what_its_lease_holds_and_tells_of_the_rest(case, by, verb):
    expected, prepare = STATES[case]
    group = Group(messages=3)
    assert group.lease("a", 1) == [0]
    prepare(group)
    before = group.ledger
    outcome = group.settle(verb, "a", {"whole lease": None, "sequence": [0], "nothing": []}[by])
    if by == "nothing":
        assert outcome == SettleOutcome()
    elif expected == "held":
        state = {ACK: "settled", REJECT: "dead"}.get(verb, "available")
        due = group.at(0).available_at if state == "available" else None
        assert (due is None) == (verb in (ACK, REJECT))
        assert outcome == SettleOutcome(settled=1, ranges=[(0, 0)])
        assert (outcome.states, outcome.next_due_at) == ({state: 1}, due)
        assert group.state(0) == state
        assert not group.ledger.rows_held("a"), "nothing holds its id now"
        return
    elif by == "whole lease":
        assert outcome == SettleOutcome(), (
            "the lease no longer holds anything, and no message was named"
        )
    elif expected == "settled":
        assert outcome == SettleOutcome(already_settled=1)
    else:
        assert outcome == SettleOutcome(lost=[(0, 0, expected)])
    assert group.ledger is before, "nothing done, nothing to commit"


def test_what_is_still_held_is_settled_though_the_rest_is_lost():
    group = Group(files=[DataFile(0, 9, "a", 9, 0), DataFile(sequence(2, 0), 2, "b", 2, 0)])
    group.lease("a", 5)
    group.settle(ACK, "a", [0])
    group.settle(NACK, "a", [2, 3], delay=SECOND)
    group.settle(NACK, "a", [4], delay=2 * SECOND)
    group.lease("b", 2)
    outcome = group.settle(ACK, "a", [*range(8), 9, sequence(2, 0), sequence(3, 0)])
    assert (outcome.settled, outcome.already_settled, outcome.ranges) == (1, 1, [(1, 1)])
    assert outcome.lost == [
        (2, 4, "given back"),
        (5, 6, "leased by b"),
        (7, 7, "unread"),
        (9, 9, "no message"),
        (sequence(2, 0), sequence(2, 0), "unread"),
        (sequence(3, 0), sequence(3, 0), "no message"),
    ]


def test_the_intervals_of_a_whole_lease_may_end_in_gaps():
    """What is left of a range after part of it was settled can begin past a commit's last
    message.
    """
    group = Group(files=[DataFile(0, 2, "a", 2, 0), DataFile(sequence(1, 0), 2, "b", 2, 0)])
    group.lease("a", 4)
    group.settle(ACK, "a", [1])
    group.expire_leases("a")
    wanted = SettlePart(ACK, "a", [(0, 0), (2, sequence(1, 1))], whole=True)
    (outcome,) = group.run(Settle((wanted,)))
    assert (outcome.settled, outcome.lost) == (3, [])


def test_intervals_may_come_in_any_order_and_overlap():
    group = Group()
    group.lease("a", 10)
    wanted = SettlePart(ACK, "a", [(7, 9), (0, 3), (2, 4)])
    (outcome,) = group.run(Settle((wanted,)))
    assert (outcome.settled, group.states()) == (8, "SSSSSLLSSS")
