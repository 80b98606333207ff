"""Leases that are divided between lanes: by weight, and within a limit for each key."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from support.ledger_group import Group

from spark_mq import GroupSettings
from spark_mq.ledger.message_filter import RowRuns
from spark_mq.ledger.message_index import DataFile, sequence
from spark_mq.ledger.settle import ACK, NACK
from spark_mq.ledger.slots import encode_slots

from .slot_files import LAYOUT, file_of, ordered

BURSTS = 16
"""A lane is at most this part of a lease ahead of its share, or behind it."""
#: Keys whose lanes are 0 to 3.
KEYS = {LAYOUT.lane(key): key for key in map(str, range(100))}


def fair(*files: DataFile, **settings: Any) -> Group:
    return ordered(*files, order="fair", **settings)


def lanes_of(group: Group, seqs: list[int]) -> list[int | None]:
    found = []
    for seq in seqs:
        ((slot, _, _),) = group.index.slot_runs(seq, seq)
        found.append(group.index.layout.lane_of(slot))
    return found


def drain(group: Group, limit: int, leases: int) -> list[Counter[int | None]]:
    """Lease and ack. Return how many messages of each lane each lease had."""
    found = []
    for at in range(leases):
        seqs = group.lease(f"l{at}", limit)
        group.settle(ACK, f"l{at}")
        found.append(Counter(lanes_of(group, seqs)))
    return found


BACKLOG = [file_of(version, (0, 0, 10_000)) for version in range(1, 101)]  # a million of lane 0


@pytest.mark.parametrize("limit", [20, 100, 1_000, 100_000])
def test_a_backlog_of_a_million_delays_ten_messages_of_another_by_two_leases(limit: int):
    group = fair(*BACKLOG, file_of(101, (0, 2, 10)))
    first, second, third = drain(group, limit, 3)
    assert first[2] + second[2] == 10
    assert third[2] == 0
    assert [one.total() for one in (first, second, third)] == [limit] * 3, "no lease is smaller"


def test_single_messages_go_round():
    group = fair(file_of(1, (0, 0, 100), (0, 1, 100)), file_of(2, (0, 3, 2)))
    found = [one for leased in drain(group, 1, 9) for one in leased]
    assert Counter(found[:6]) == {0: 2, 1: 2, 3: 2}
    assert Counter(found[6:]) in ({0: 2, 1: 1}, {0: 1, 1: 2})


def test_a_lease_goes_round_three_times_before_the_oldest_has_the_rest():
    text = encode_slots(64, [(0, 1_000), *((lane, 1) for lane in range(1, 64))])
    group = fair(DataFile(0, 1_063, "f", 10, 0, slots=text), lanes=64)
    (found,) = drain(group, 320, 1)
    assert (len(found), found[0]) == (3 * BURSTS, 320 - (3 * BURSTS - 1))


def test_a_filter_keeps_the_shares_and_lanes_go_on_where_they_were():
    file = file_of(1, (0, 0, 100), (0, 1, 8))
    matches = {file.path: RowRuns(array("q", [row for row in range(1, 109) if row % 4 < 2]), False)}
    group = fair(file, max_in_flight_per_key=33)
    rows = [seq - file.first for seq in group.lease("a", 40, matches=matches)]
    assert rows == [row for row in (*range(45), *range(100, 108)) if row % 4]


def test_messages_without_a_key_share_as_one_lane():
    group = fair(file_of(1, (0, 0, 1_000), (0, 1, 1_000), (0, None, 1_000)))
    assert drain(group, 3, 10) == [{0: 1, 1: 1, None: 1}] * 10
    of_one_lane = fair(DataFile(0, 20, "f", 20, 0, slots="1|18 1|10 10"), lanes=1)
    assert drain(of_one_lane, 2, 10) == [{0: 1, None: 1}] * 10


def test_a_lane_that_was_idle_has_saved_up_nothing():
    group = fair(file_of(1, (0, 0, 1_000)))
    drain(group, 100, 5)
    group.index = group.index.extended([file_of(2, (0, 1, 500))], 2)
    for found in drain(group, 100, 2):
        assert found[0] == pytest.approx(50, abs=100 / BURSTS)


@pytest.mark.parametrize("limit", [1, 7, 100, 1_000])
def test_the_shares_follow_the_weights(limit: int):
    weights = {KEYS[0]: 4, KEYS[1]: 0.5}
    rows = 100 * limit
    files = [file_of(version, *((0, lane, rows) for lane in range(4))) for version in (1, 2)]
    found = sum(drain(fair(*files, weights=weights), limit, 100), Counter())
    total = found.total()
    for lane, weight in enumerate((4, 0.5, 1, 1)):
        assert found[lane] / total == pytest.approx(weight / 6.5, rel=0.1)


def test_priority_comes_before_fairness():
    group = fair(file_of(1, (9, 0, 80), (0, 0, 100), (0, 1, 100)), file_of(2, (9, 2, 5)))
    (found,) = drain(group, 100, 1)
    assert (found[0], found[1], found[2]) in ((88, 7, 5), (87, 8, 5))


def test_many_small_files_of_one_lane_leave_others_their_pieces():
    """A lease has at most a thousand pieces, which the older files would use up."""
    files = [file_of(version, (version % 2 * 9, version % 2, 1)) for version in range(1, 6_001)]
    group = fair(*files, file_of(6_001, (9, 2, 10)))
    (found,) = drain(group, 5_000, 1)
    assert found[1] == 500
    assert found[2] == 10


@pytest.mark.parametrize("messages", [4, 11, 40])
def test_a_limit_of_bytes_does_not_cut_off_the_share_of_newer_messages(messages: int):
    """In a lease of both lanes, the messages of the second one are the last."""
    group = fair(file_of(1, (0, 0, 1_000)), file_of(2, (0, 1, 1_000)))
    seqs = group.lease("a", 500, max_bytes=10 * messages)
    found = Counter(lanes_of(group, seqs))
    assert len(seqs) == messages
    assert abs(found[0] - found[1]) <= 1


def test_large_messages_of_a_newer_lane_have_their_turn():
    big = replace(file_of(2, (0, 1, 10)), size=10 * 5_000)
    group = fair(file_of(1, (0, 0, 1_000)), big)
    found = Counter()
    for at in range(9):
        seqs = group.lease(str(at), 100, max_bytes=6_000)
        group.settle(ACK, str(at))
        found.update(lanes_of(group, seqs))
    assert found == {0: 8 * 6, 1: 9}, "small ones begin after the first large one"


def test_failed_messages_are_isolated_as_in_other_groups():
    group = fair(file_of(0, (0, 0, 50), (0, 1, 50)), max_delivery_attempts=3)
    seqs = group.lease("a", 100)
    group.settle(NACK, "a", delay=0)
    again = group.lease("b", 100)
    assert 0 < len(again) < len(seqs)
    assert again == seqs[: len(again)]


@pytest.mark.parametrize("order", ["none", "fair"])
def test_a_key_over_its_limit_delays_no_other(order: str):
    group = ordered(*BACKLOG[:3], file_of(101, (0, 2, 10)), order=order, max_in_flight_per_key=3)
    first = group.lease("a", 1_000)
    assert Counter(lanes_of(group, first)) == {0: 3, 2: 3}
    grant = group.ask("b", 1_000)
    why = "max_in_flight_per_key: 3 leased of each key in lane 0, lane 2"
    assert (grant.ranges, grant.blocked_because) == ((), why)
    assert grant.blocked_for_now
    assert not grant.breaker_stops
    group.settle(ACK, "a", first[-2:])
    assert lanes_of(group, group.lease("c", 1_000)) == [2, 2]


def test_a_limit_of_each_key_alone_does_not_change_the_order():
    group = ordered(file_of(0, (0, 0, 1), (0, 2, 1)), order="none", max_in_flight_per_key=3)
    assert group.lease("a", 1) == [0]


def test_a_failed_key_at_its_limit_does_not_hold_up_fresh_messages():
    group = ordered(file_of(1, (0, 0, 9), (0, 1, 9)), order="none", max_in_flight_per_key=2)
    assert lanes_of(group, group.lease("a", 2)) == [0, 0]
    group.settle(NACK, "a", delay=0)
    group.rules = replace(group.rules, max_in_flight_per_key=1)
    assert lanes_of(group, group.lease("b", 1)) == [0], "one that failed; the other one waits"
    assert lanes_of(group, group.lease("c", 9)) == [1]


def test_a_blocked_message_is_the_reason_although_a_lane_is_at_its_limit():
    group = ordered(
        file_of(1, (0, 0, 2), (0, 1, 1)), order="none", max_in_flight_per_key=1,
        max_delivery_attempts=1, on_max_deliveries="block",
    )  # fmt: skip
    blocked = sequence(1, 2)
    assert group.lease("a", 1, intervals=[(blocked, blocked)]) == [blocked]
    group.settle(NACK, "a")
    assert group.state(blocked) == "blocked"
    assert lanes_of(group, group.lease("b", 9)) == [0]
    grant = group.ask("c", 9)
    assert grant.blocked_because.startswith(f"message {blocked} is past its limit")
    assert not grant.blocked_for_now, "only the owner can help"


def test_the_limit_counts_all_priorities_and_messages_without_a_key_have_none():
    file = file_of(1, (9, 0, 2), (0, 0, 9), (0, 1, 9), (0, None, 9))
    group = ordered(file, order="none", max_in_flight_per_key=3)
    assert Counter(lanes_of(group, group.lease("a", 100))) == {0: 3, 1: 3, None: 9}
    assert group.ask("b", 100).blocked_because.endswith(" in lane 0, lane 1")


def test_what_a_lane_leaves_of_its_share_goes_to_the_oldest_of_the_others():
    group = fair(file_of(1, (0, 0, 40), (0, 1, 2), (0, 2, 9)))
    assert [seq - sequence(1, 0) for seq in group.lease("a", 30)] == [*range(19), *range(40, 51)]


@pytest.mark.parametrize(
    ("given", "weights"),
    [({"gold": 4, "silver": 0.5}, {"gold": 4, "silver": 0.5}),
     ("gold=4, a=b=2", {"gold": 4, "a=b": 2})],
)  # fmt: skip
def test_weights_are_a_mapping_or_text(given: Any, weights: dict[str, float]):
    rules = GroupSettings().changed(order="fair", weights=given)
    assert rules.weights == weights
    assert GroupSettings.decoded(rules.encoded()) == rules
    assert rules.changes(rules.changed(weights=None)) == "weights=None"
    assert "=4, " in GroupSettings().changes(rules)
