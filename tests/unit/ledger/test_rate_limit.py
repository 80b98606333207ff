"""The rate limit of a group: never too many, and never a wait that is longer than it says."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.ledger_group import SECOND, Group, limits

from spark_mq import GroupSettings
from spark_mq.util.setting_fields import Rate

SIZE = 10  # bytes of each message
SHARE = 4
"""A lease waits until a quarter of a burst is there."""


def make(messages: int = 100_000, **rates: Any) -> Group:
    return Group(messages, rules=GroupSettings().changed(clock_skew="0s", **rates))


def waits(group: Group, limit: int, **more: Any) -> int:
    """Return for how long a lease has to wait, in microseconds."""
    grant = group.ask("w", limit, **more)
    assert not grant.ranges
    assert grant.blocked_because.startswith("rate_limit")
    assert grant.blocked_for_now
    assert not grant.breaker_stops
    return (grant.wait_until or 0) - group.now


def test_a_burst_and_then_the_rate():
    group = make(rate_limit="1000000/s", rate_burst="200us")
    assert len(group.lease("a", 1_000)) == 200
    assert waits(group, 1) == 1
    group.now += 1
    assert len(group.lease("b", 1)) == 1
    group.now += 10 * SECOND
    assert len(group.lease("c", 1_000)) == 200


def test_a_lease_of_many_waits_for_a_share_of_the_burst():
    group = make(rate_limit="100/s")
    group.lease("a", 100)
    group.now += SECOND // 10
    assert waits(group, 1_000) == SECOND // SHARE - SECOND // 10
    assert len(group.lease("b", 10)) == 10, "as many as it asked for"
    group.now += SECOND // SHARE
    assert len(group.lease("c", 1_000)) == 100 // SHARE


def test_the_last_messages_do_not_wait_for_others():
    group = make(105, rate_limit="100/s")
    group.lease("a", 100)
    assert group.ask("b", intervals=[]).blocked_because == ""
    group.now += SECOND // 10
    assert len(group.lease("b", 1_000)) == 5
    assert group.ask("c", 1_000).blocked_because == ""


def test_bytes_are_limited_too_and_a_large_message_waits_for_a_full_burst():
    group = make(rate_limit="1000/s", byte_rate_limit="100/s")
    assert len(group.lease("a", 1_000)) == 10
    assert waits(group, 1) == SECOND // 10
    group.now += SECOND // 10
    assert len(group.lease("b", 1)) == 1
    group = make(byte_rate_limit="5/s")
    assert len(group.lease("a", 1_000)) == 1, "a full burst, though the message is larger"
    assert waits(group, 1_000) == 2 * SECOND


def test_max_bytes_and_what_may_be_in_flight_hold_beside_it():
    group = make(rate_limit="100/s", byte_rate_limit="1k/s", max_in_flight=30)
    assert len(group.lease("a", 1_000, max_bytes=50)) == 5
    assert len(group.lease("b", 1_000)) == 25
    assert group.ask("c", 1_000).blocked_because == "max_in_flight"
    group = make(rate_limit="100/s", max_in_flight_bytes=50)
    assert len(group.lease("a", 1_000)) == 5


def test_a_clock_that_ran_ahead_costs_no_more_than_the_burst():
    group = make(rate_limit="100/s")
    group.now += 3_600 * SECOND
    group.lease("a", 1_000)
    group.now -= 3_600 * SECOND
    assert waits(group, 1) == 3_600 * SECOND + SECOND // 100 - 3_600 * SECOND
    group.now += SECOND
    assert waits(group, 1) == SECOND // 100, "it waits until the clock is as far"


Steps = list[tuple[int, int, int]]
"""By step: a pause, the most messages of a lease, and how far the worker's clock is ahead."""


def lease_all(steps: Steps, rate: Rate, burst: int) -> list[tuple[int, int]]:
    """Return the instant and the number of messages of each lease."""
    rules = limits(breaker_threshold=None, rate_limit=[rate.amount, rate.per], rate_burst=burst,
                   byte_rate_limit=[3 * rate.amount * SIZE, rate.per],
                   clock_skew=SECOND)  # fmt: skip
    group, real, leased = Group(100_000, rules=rules), 1_000 * SECOND, []
    for at, (pause, limit, ahead) in enumerate(steps):
        real += pause
        group.now = real + ahead
        leased.append((real, len(group.lease(str(at), limit))))
    return leased


@given(
    st.integers(1, 50), st.sampled_from([SECOND, 7 * SECOND, 60 * SECOND]),
    st.integers(1, 5 * SECOND),
    st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 80), st.integers(0, SECOND)),
             min_size=2, max_size=40),
)  # fmt: skip
@example(100, SECOND, SECOND, [(0, 10, 0), (0, 10, SECOND)] * 20)
def test_in_no_window_are_more_leased_than_the_rate_and_a_burst(
    amount: int, per: int, burst: int, steps: Steps
):
    """The clocks of the workers differ by up to a second."""
    rate = Rate(amount, per)
    leased = lease_all(steps, rate, burst)
    most = max(burst, rate.duration_of(1)) + SECOND
    for begin, (start, _) in enumerate(leased):
        for end, (instant, _) in enumerate(leased[begin:], begin):
            messages = sum(count for _, count in leased[begin : end + 1])
            assert messages <= rate.units_in(instant - start + most)


@given(
    st.integers(1, 1_000), st.sampled_from([SECOND, 60 * SECOND]), st.integers(1, 5 * SECOND),
    st.lists(st.tuples(st.integers(0, SECOND), st.integers(1, 2_000)), min_size=1, max_size=20),
)  # fmt: skip
def test_after_the_wait_that_it_says_a_lease_is_granted(
    amount: int, per: int, burst: int, steps: list[tuple[int, int]]
):
    rules = limits(breaker_threshold=None, rate_limit=[amount, per], rate_burst=burst,
                   byte_rate_limit=[amount * SIZE // 2 + 1, per])  # fmt: skip
    group = Group(1_000_000, rules=rules)
    for at, (pause, limit) in enumerate(steps):
        group.now += pause
        for _ in range(3):  # one wait for each limit
            if (grant := group.ask(str(at), limit)).ranges:
                break
            assert grant.wait_until is not None
            assert grant.wait_until > group.now
            group.now = grant.wait_until
        assert grant.ranges


@pytest.mark.parametrize(
    ("given", "rate", "shown"),
    [("100/s", (100, SECOND), "100/s"), ("5/10s", (5, 10 * SECOND), "5/10s"),
     ("7/h", (7, 3_600 * SECOND), "7/h"), (" 3 / m ", (3, 60 * SECOND), "3/m")],
)  # fmt: skip
def test_a_rate_is_text(given: str, rate: tuple[int, int], shown: str):
    rules = GroupSettings().changed(rate_limit=given)
    assert rules.rate_limit == Rate(*rate)
    assert str(rules.rate_limit) == shown
    assert rules.to_arrow()["rate_limit"].to_pylist() == [shown]
    copied = pickle.loads(pickle.dumps(rules.rate_limit))
    assert (copied, copied.amount, copied.per) == (shown, *rate)
    assert GroupSettings.decoded(rules.encoded()) == rules
    found = GroupSettings().changed(byte_rate_limit="10m/s")
    assert found.byte_rate_limit == Rate(10 << 20, SECOND)
