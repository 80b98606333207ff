"""The breaker of a group, and the owner's pause."""

from __future__ import annotations

import msgspec
import pytest
from support.ledger_group import SECOND, TIMEOUT, Group, limits

from spark_mq.ledger.breaker import CLOSED, OPEN, PAUSED, Breaker
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.owner_commands import Pause, Resume
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE

from .slot_files import file_of, ordered


def fail(group: Group, count: int, size: int = 1, **more) -> None:
    """Lease and nack, one after the other. What failed is due much later."""
    for _ in range(count):
        lease_id = f"f{group.now}"
        assert group.lease(lease_id, size)
        group.settle(NACK, lease_id, delay=10_000 * SECOND, error="no column ammount", **more)
        group.now += 1


def breaker(group: Group) -> Breaker:
    return group.ledger.head.breaker


def state(group: Group) -> str:
    return breaker(group).state(group.rules, group.now)


def broken(messages: int = 100, size: int = 1, **settings) -> Group:
    group = Group(messages=messages, rules=limits(**settings))
    fail(group, group.rules.breaker_threshold, size)
    return group


def test_five_leases_of_different_messages_that_fail_in_a_row_open_it():
    group = Group(messages=100)
    fail(group, 4, size=10)
    assert state(group) == CLOSED
    assert group.ask("x", 1).ranges
    group.settle(RELEASE, "x")
    fail(group, 1, size=10)
    assert state(group) == OPEN
    why = group.ask("x", 10).blocked_because
    assert why.startswith("breaker open since 1970-01-01 00:16:40Z: 5 leases failed in a row")
    assert "no column ammount" in why
    assert "next trial is at 1970-01-01 00:16:50Z" in why
    assert why.endswith("set breaker_threshold=None")


def test_leases_that_expire_for_the_second_time_open_it_too():
    """Not those that expire once, as those of workers that a deployment kills."""
    group = Group(messages=100)
    for number in (1, 2):
        for i in range(5):
            assert len(group.lease(f"l{number}{i}", 10, timeout=TIMEOUT - i)) == 10
        group.expire()
        assert state(group) == (CLOSED if number == 1 else OPEN)
    assert breaker(group).failed == (40, 30, 20, 10, 0), "by the deadlines"
    assert breaker(group).cause == "lease l20 of worker of l20 expired"
    assert breaker(group).opened_at == group.now - 1


@pytest.mark.parametrize(
    ("verb", "messages", "more", "failed"),
    [
        (ACK, 2, {}, 0),
        (ACK, 2, {"handler_failed": True}, 5),
        (REJECT, 2, {}, 0),
        (REJECT, 2, {"handler_failed": True}, 5),
        (REJECT, 2, {"reason": "payload unreadable"}, 4),
        (RELEASE, 2, {}, 4),
        (NACK, 1, {}, 4),
        (NACK, 2, {}, 5),
    ],
)
def test_what_a_lease_is_settled_by_decides_how_it_counts(verb, messages, more, failed):
    """After four that failed: as a failure, as a handler that works, or as neither."""
    group = Group(messages=100)
    fail(group, 4)
    for seq in group.lease("x", 2)[:messages]:
        group.settle(verb, "x", [seq], **more)
    assert len(breaker(group).failed) == failed


def test_a_poison_that_is_isolated_does_not_open_it():
    """Other pieces succeed in between."""
    group = Group(messages=200, rules=limits(breaker_threshold=2))
    seen = set()
    for i in range(200):
        held = group.lease(f"l{i}", 100)
        seen.add(state(group))
        if 70 in held:
            group.settle(NACK, f"l{i}", delay=0)
        elif held:
            group.settle(ACK, f"l{i}")
    assert group.state(70) == "dead"
    assert group.ledger.head.counters == {"acked": 199}
    assert seen == {CLOSED}


def test_an_open_breaker_grants_one_lease_of_one_message_after_a_wait():
    group = Group(messages=100)
    group.lease("before", 2)
    fail(group, 5)
    group.settle(ACK, "before", [0])
    group.settle(NACK, "before", [1], delay=10_000 * SECOND)
    group.now = breaker(group).opened_at + 10 * SECOND - 1
    assert group.lease("early", 10) == []
    group.now += 1
    assert group.lease("trial", 10) == [7]
    assert "message 7 is the trial" in group.ask("second", 10).blocked_because


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({}, [10, 20, 40, 80, 160, 300, 300]),
        ({"breaker_threshold": 1, "breaker_reset_timeout": 60 * SECOND,
          "breaker_max_wait": 90 * SECOND}, [60, 90, 90]),
    ],
)  # fmt: skip
def test_the_wait_doubles_with_each_failed_trial_up_to_its_cap(settings, waits):
    group = broken(max_delivery_attempts=None, **settings)
    for i, wait in enumerate(waits):
        assert breaker(group).next_trial_at - group.now in (wait * SECOND, wait * SECOND - 1)
        group.now = breaker(group).next_trial_at
        assert len(group.lease(f"p{i}", 10)) == 1
        group.settle(NACK, f"p{i}", delay=10_000 * SECOND)


@pytest.mark.parametrize("max_delivery_attempts", [2, 5, None])
def test_a_trial_prefers_a_message_that_was_never_delivered(max_delivery_attempts):
    group = broken(10, 2, max_delivery_attempts=max_delivery_attempts)
    group.now += 20_000 * SECOND
    group.index = MessageIndex([DataFile(0, 11, "a", 110, 0)], 9)
    assert group.lease("trial", 10) == [10]
    group.settle(RELEASE, "trial")  # it counts as never delivered, and is tracked now
    assert group.lease("soon", 10) == []
    group.now += 10 * SECOND
    assert group.lease("again", 10) == [10]
    group.settle(ACK, "again")
    assert state(group) == CLOSED
    assert group.lease("next")[0] == 0


@pytest.mark.parametrize(("attempts", "trial"), [(2, 0), (3, 1), (None, 1)])
def test_a_trial_prefers_suspects_that_need_not_be_alone(attempts, trial):
    group = Group(messages=3, rules=limits(breaker_threshold=2, max_delivery_attempts=attempts))
    fail(group, 1)
    fail(group, 1, size=2)
    group.now += 20_000 * SECOND
    assert group.lease("trial") == [trial]


def test_a_trial_prefers_such_a_message_of_a_lower_priority():
    group = ordered(file_of(1, (9, None, 5)), order="none")
    group.rules = limits()
    fail(group, 5)
    group.now += 20_000 * SECOND
    group.index = group.index.extended([file_of(2, (1, None, 3))], 2)
    assert group.lease("trial", 10) == [sequence(2, 0)]


def test_a_trial_passes_over_no_failed_message_of_its_key():
    group = ordered(file_of(1, (0, 0, 5)), file_of(2, (0, 0, 1), (0, 1, 1)))
    group.rules = limits(order="key", breaker_threshold=1)
    fail(group, 1)
    group.now += 20_000 * SECOND
    assert group.lease("trial", 10) == [sequence(2, 1)]


def test_none_disables_it_also_while_it_is_open():
    group = broken()
    group.rules = limits(breaker_threshold=None)
    assert state(group) == CLOSED
    assert len(group.lease("next", 10)) == 10
    fail(group, 9)
    assert state(group) == CLOSED


def test_the_events_of_the_ledger_show_that_it_opened_and_closed():
    group = broken()
    opened = [(name, r.first, r.state, r.error) for name, r in group.ledger.events]
    assert opened[-1] == ("breaker_opened", 4, "available", "no column ammount")
    group.now += 10 * SECOND
    group.lease("trial")
    group.settle(ACK, "trial")
    assert [(name, r.first) for name, r in group.ledger.events][-2:] == [
        ("breaker_closed", 5),
        ("acked", 5),
    ]


# -- pause and resume


def test_a_paused_group_leases_nothing_and_settles_all():
    group = Group()
    group.lease("a", 2)
    group.run(Pause("migration"))
    assert group.ask("b").blocked_because == "paused since 1970-01-01 00:16:40Z: migration"
    assert state(group) == PAUSED
    assert group.extend("a").settled == 2
    assert group.settle(ACK, "a", [0]).settled == 1
    assert group.settle(NACK, "a", [1], delay=0).settled == 1
    assert group.lease("b") == []
    group.run(Resume())
    assert group.lease("b", 3) == [1, 2, 3]


def test_a_second_pause_keeps_the_time_and_changes_the_reason():
    group = broken()
    group.run(Pause("first"))
    group.now += 60 * SECOND
    group.run(Pause("second"))
    assert group.ask("trial").blocked_because == "paused since 1970-01-01 00:16:40Z: second"


def test_a_breaker_is_stored_with_what_differs_from_a_closed_one():
    group = broken()
    stored = breaker(group).to_stored()
    assert set(stored) == {"failed", "cause", "opened_at", "next_trial_at"}
    assert msgspec.convert(stored, Breaker) == breaker(group)
    assert Breaker().to_stored() == {}
