"""Leases of ordered groups: lanes, holes, failures, claims and priority."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest
from support.ledger_group import TIMEOUT, Group

from spark_mq.ledger.interventions import RETRY_NOW, Intervene
from spark_mq.ledger.message_filter import RowRuns
from spark_mq.ledger.message_index import DataFile, DeliveryTimes, sequence
from spark_mq.ledger.ranges import Ledger
from spark_mq.ledger.settle import ACK, NACK, RELEASE
from spark_mq.ledger.slots import SlotLayout, encode_slots

from .slot_files import LANES, file_of, ordered

PIECES = 1_000
"""The most pieces of a lease, as docs/explanation/order.md says."""


def rows_of(group: Group, lease_id: str) -> list[tuple[int, int]]:
    """Return what a lease holds, as version and row of each message."""
    held = [r for r in group.ledger.held(lease_id) if r.state == "leased"]
    return [divmod(seq, 2**32) for seq in group.sequences(held)]


@pytest.mark.parametrize("given", [{"order": "none"}, {"lanes": 0}])
def test_without_order_an_extension_keeps_messages_behind_others_of_their_key(given: Any) -> None:
    group = ordered(file_of(1, (0, 0, 3)), **given)
    first, _, third = group.lease("a", 3)
    group.settle(NACK, "a", [first])
    outcome = group.extend("a", 2 * TIMEOUT, [third])
    assert (outcome.settled, outcome.lost) == (1, [])
    group.expire()
    assert group.settle(ACK, "a", [third]).settled == 1


def test_a_lease_of_a_file_with_its_lanes_in_turns_takes_no_more_than_it_may() -> None:
    group = ordered(file_of(1, (0, 1, 1), (0, 0, 4), (0, 1, 3)))
    first = sequence(1, 0)
    assert group.lease("a", 3, max_sequence=first + 7) == [first, first + 1, first + 2]


def test_a_lease_of_such_a_file_has_no_more_pieces_than_of_others() -> None:
    turns = [(0, 0, 1), (0, 2, 9), (0, 3, 1), (0, 2, 9)] * (PIECES + 1)
    assert len(ordered(file_of(1, *turns)).lease("a", 10**6)) == PIECES
    limited = ordered(file_of(1, *turns), order="none", max_in_flight_per_key=PIECES)
    assert len(limited.ask("a", 10**6).ranges) == PIECES


def test_a_lease_leaves_a_share_of_the_lanes_free() -> None:
    group = ordered(file_of(1, (0, 0, 2), (0, 1, 2), (0, 2, 2), (0, 3, 2)))
    group.lease("a", 100)
    assert rows_of(group, "a") == [(1, 0), (1, 1), (1, 2), (1, 3)]
    group.lease("b", 100)
    assert rows_of(group, "b") == [(1, 4), (1, 5), (1, 6), (1, 7)]
    assert group.lease("c", 100) == []


def test_neighbouring_lanes_of_many_files_leave_one_hole_a_file() -> None:
    files = [file_of(v, (0, 0, 5), (0, 1, 5), (0, 2, 5), (0, 3, 5)) for v in range(1, 21)]
    group = ordered(*files)
    assert len(group.lease("a", 100)) == 100
    assert len(group.ledger) == 10 + 9  # ten pieces, and the holes between them
    group.lease("b", 50)
    assert len(group.ledger) <= 3 * 10


def test_leases_come_to_hold_neighbouring_lanes() -> None:
    """Each gap between the lanes of a lease would cost a range of each file."""
    lanes, workers, layout = 16, 4, SlotLayout(16)
    text = encode_slots(lanes, [(layout.number(0, lane), 1) for lane in range(lanes)])
    files = [DataFile(sequence(v, 0), lanes, f"f{v}", 10, v, slots=text) for v in range(1, 201)]
    group = ordered(*files, lanes=lanes)
    held: list[str] = []
    for number in range(40):
        if len(held) == workers or group.lease(f"l{number}", 30) == []:
            group.settle("ack", held.pop(0))
            group.lease(f"l{number}", 30)
        held.append(f"l{number}")
    for lease_id in held:
        pieces = [r for r in group.ledger.held(lease_id) if r.state == "leased"]
        assert len(pieces) == len({r.first >> 32 for r in pieces})
        own = {
            layout.lane_of(n) for r in pieces for n, _, _ in group.index.slot_runs(r.first, r.last)
        }
        assert max(own) - min(own) + 1 == len(own) <= 4
    assert group.lease("one more", 30) != []


def test_a_lease_of_small_files_takes_any_lanes_of_its_share() -> None:
    other = replace(file_of(0, (0, 1, 1)), group="other")
    group = ordered(other, file_of(1, (9, 0, 1), (9, 3, 1)), file_of(2, (0, 2, 1)))
    group.lease("a", 10)
    assert rows_of(group, "a") == [(1, 0), (1, 1)]
    assert group.ledger.head.counters == {"skipped": 1}, "it has passed over the first file"


def test_a_nack_returns_the_later_messages_of_its_lane_uncounted() -> None:
    group = ordered(file_of(1, (0, 0, 3), (0, 1, 2)))
    group.lease("a", 10)
    outcome = group.settle("nack", "a", [sequence(1, 1)])
    assert outcome.returned == [(sequence(1, 2), sequence(1, 2))]
    assert rows_of(group, "a") == [(1, 0), (1, 3), (1, 4)]
    back = next(r for r in group.ledger if r.first == sequence(1, 2))
    assert (back.state, back.delivery_count, back.lease_id) == ("available", 0, None)
    late = group.settle("ack", "a", [sequence(1, 2)])
    assert late.lost == [(sequence(1, 2), sequence(1, 2), "given back")]


def test_an_expired_lease_loses_its_claim_with_one_of_its_lanes() -> None:
    group = ordered(file_of(0, (0, 0, 2), (0, 1, 2)))
    group.lease("a", 10)
    group.expire()
    group.lease("b", 1)
    assert rows_of(group, "b") == [(0, 0)]
    outcome = group.settle("ack", "a")
    assert outcome.settled == 0


def test_an_expired_lease_keeps_its_claim_if_a_full_lease_only_looks_at_its_lane() -> None:
    group = ordered(file_of(1, (0, 1, 1)), file_of(2, (0, 0, 1)))
    first, second = sequence(1, 0), sequence(2, 0)
    group.lease("a", intervals=[(second, second)])
    group.expire()
    assert group.lease("b", 2, max_bytes=0) == [first]
    assert group.settle(ACK, "a").settled == 1


def test_an_expired_lease_that_loses_its_claim_loses_what_it_extended_behind_it() -> None:
    group = ordered(file_of(1, (0, 0, 1), (0, 1, 2)))
    other, _, behind = group.lease("a", 3)
    group.extend("a", 2 * TIMEOUT, [behind])
    group.now += TIMEOUT + 1
    assert group.lease("b", 3, intervals=[(other, other)]) == [other]
    assert rows_of(group, "a") == []
    group.settle(ACK, "b")
    assert group.lease("c", 3) == [behind - 1]


def test_suspects_of_a_higher_priority_beyond_the_last_sequence_hold_back_no_others() -> None:
    group = ordered(file_of(1, (0, 0, 2)), file_of(2, (1, 0, 1)))
    first, second = group.lease("a", 3)[:2]
    group.now += TIMEOUT + 1
    assert group.lease("b", 1, max_sequence=second) == [first]


def test_a_suspect_behind_a_delayed_message_of_its_key_holds_back_no_other_key() -> None:
    group = ordered(file_of(1, (0, 0, 2), (0, 1, 1)))
    first, _ = group.lease("a", 2)
    group.expire()
    group.lease("b", intervals=[(first, first)])
    group.settle(NACK, "b")
    assert group.lease("c", 9) == [first + 2]


@pytest.mark.parametrize(("order", "left"), [("key", []), ("none", [(1, 1), (1, 2)])])
def test_the_owners_retry_returns_what_stands_behind(order: str, left: list[Any]) -> None:
    group = ordered(file_of(1, (0, 0, 3)), order=order)
    group.lease("a", 10)
    first = sequence(1, 0)
    done = group.run(Intervene(RETRY_NOW, [(first, first)], force=True))
    assert done.changed == 1
    assert rows_of(group, "a") == left


def test_the_owners_retry_changes_no_message_that_is_due_already() -> None:
    late = Group().now + TIMEOUT
    times = DeliveryTimes.of([(1, None, None), (1, late, None), (1, None, None)])
    group = ordered(file_of(1, (0, 0, 2), (0, 1, 1), times=times))
    first = sequence(1, 0)
    group.lease("a", intervals=[(first + 2, first + 2)])
    group.settle(RELEASE, "a")
    assert group.run(Intervene(RETRY_NOW, [(first, first + 2)])).ranges == [(first + 1, first + 1)]
    assert group.lease("b", 9) == [first, first + 1, first + 2]


def test_an_unread_message_waits_for_a_delayed_one_of_its_key_and_for_no_expired_one() -> None:
    late = Group().now + TIMEOUT
    times = DeliveryTimes.of([(1, late, None), (1, None, None), (1, None, 1), (1, None, None)])
    group = ordered(file_of(1, (0, 0, 2), (0, 1, 2), times=times))
    assert group.lease("a", 9) == [sequence(1, 3)]


def test_a_higher_priority_comes_first_and_fills_up_with_lower_ones() -> None:
    group = ordered(file_of(1, (0, 0, 3)), file_of(2, (9, 1, 1), (0, 1, 1)), file_of(3, (5, 2, 1)))
    group.lease("a", 1)
    assert rows_of(group, "a") == [(2, 0)]
    group.lease("b", 3)
    assert rows_of(group, "b") == [(1, 0), (1, 1), (3, 0)]
    group.settle(NACK, "b", delay=0)
    group.settle(RELEASE, "a")
    group.lease("c", 3)
    assert rows_of(group, "c") == [(2, 0)], "what failed together is not leased with others"


def test_a_lease_takes_no_lower_priority_while_a_higher_one_is_due_in_other_lanes() -> None:
    each = [(9, lane, 1) for lane in range(LANES)]
    group = ordered(file_of(1, (8, 0, 1), (0, 0, 5)), file_of(2, *each))
    group.lease("a", 100)
    assert rows_of(group, "a") == [(2, 0), (2, 1)], "its share of the lanes"
    group.lease("b", 100)
    assert rows_of(group, "b") == [(2, 2), (2, 3)]
    group.settle("ack", "a")
    group.lease("c", 100)
    assert rows_of(group, "c") == [(1, row) for row in range(6)], "no lane with a 9 is free"


def test_a_lower_priority_waits_until_a_filter_has_skipped_all_that_comes_first() -> None:
    """What matches of the highest priority lies in other lanes than what a lease skips first."""
    file = file_of(1, (5, 0, 2), (5, 1, 1), (5, 3, 2), (0, 0, 2))
    group = ordered(file)
    matches = {file.path: RowRuns(array("q", [3, 7]), False)}
    grants = [group.ask(f"l{n}", 10, matches=matches) for n in range(3)]
    leased = [(r.first - file.first, r.message_count) for grant in grants for r in grant.ranges]
    assert leased == [(3, 2), (5, 2)]
    assert [grant.skipped for grant in grants] == [{"filtered": 3}, {}, {}]
    file = file_of(1, (5, 0, 1), (5, 1, 1), (5, 3, 1), (0, 0, 1))
    matches = {file.path: RowRuns(array("q", [2, 3, 4]), True)}
    rows = [seq - file.first for seq in ordered(file).lease("a", 10, matches=matches)]
    assert rows == [0, 1, 3], "what others have of the highest does not match"


def test_a_turn_of_fresh_messages_ends_before_a_lower_priority() -> None:
    """A message without a limit has failed five times, and lets others go first."""
    group = ordered(file_of(1, (9, 0, 1)), max_delivery_attempts=None)
    for n in range(8):
        if n == 5:
            group.index = group.index.extended([file_of(2, (9, 1, 1), (0, 1, 1))], 2)
        assert group.lease(f"a{n}", 1) == [sequence(1, 0)]
        group.settle("nack", f"a{n}", delay=0)
    group.rules = replace(group.rules, order="none")
    group.lease("b", 10)
    assert rows_of(group, "b") == [(2, 0)]


def test_an_extension_revives_nothing_behind_an_expired_message_and_keeps_its_count() -> None:
    """The expiry has counted the delivery of a message, and nothing takes that back."""
    group = ordered(file_of(1, (0, 0, 2), (0, 1, 1)))
    group.lease("a", 10)
    group.expire()
    before = group.ledger.range_at(0)
    second, third, none = (sequence(1, row) for row in (1, 2, 3))
    outcome = group.extend("a", seqs=[second, third, none])
    assert outcome.ranges == [(third, third)]
    assert [(first, last) for first, last, _ in outcome.lost] == [(second, second), (none, none)]
    assert rows_of(group, "a") == [(1, 2)]
    assert [r.first for name, r in group.ledger.events if name == "extended"] == [third]
    (waiting,) = [r for r in group.ledger if r.state == "available"]
    assert waiting == before._replace(last=second, message_count=2)


def test_an_extension_still_returns_what_it_did_not_revive_uncounted() -> None:
    group = ordered(file_of(1, (9, 0, 3)))  # the first slot of all
    group.lease("a", 10)
    rest = [sequence(1, 1), sequence(1, 2)]
    group.extend("a", 5 * TIMEOUT, rest)
    group.expire()
    assert rows_of(group, "a") == [(1, 1), (1, 2)]
    outcome = group.extend("a", 5 * TIMEOUT, rest[:1])
    assert (outcome.settled, outcome.ranges) == (0, [])
    back = [r for r in group.ledger if r.first > sequence(1, 0)]
    assert [(r.state, r.delivery_count) for r in back] == [("available", 0)]


def test_a_replay_returns_what_stands_behind_a_message_that_it_gives_back() -> None:
    group = ordered(file_of(1, (0, 0, 1)), file_of(2, (0, 0, 1)), max_delivery_attempts=3)
    group.lease("x", 1)
    group.settle("release", "x")
    group.ledger = Ledger.from_ranges(
        group.ledger.head, [group.ledger.range_at(0)._replace(delivery_count=1, available_at=0)]
    )
    group.lease("s/1/a", 2)
    assert rows_of(group, "s/1/a") == [(1, 0), (2, 0)]
    assert group.replay_batch("s/1/b") == 0
    assert group.ledger.held("s/1/b") == []
    counts = [(r.state, r.delivery_count) for r in group.ledger]
    assert counts == [("available", 2), ("available", 1)]


def hot_files(count: int, hot: int = 40, priority: int = 0, lane: int = 1) -> list[DataFile]:
    """Return files in which a lane has most messages, and each other lane two."""
    runs = [(priority, each, hot if each == lane else 2) for each in range(LANES)]
    return [file_of(version, *runs) for version in range(1, count + 1)]


@pytest.mark.parametrize(("size", "files"), [(33, 4), (25, 4)])
def test_a_hot_lane_does_not_fill_a_lease_while_others_have_messages(size: int, files: int) -> None:
    group = ordered(*hot_files(100, hot=size))
    group.lease("a", 200)  # of the lanes 0 and 1: half of it for the hot lane 1, in whole runs
    rows = rows_of(group, "a")
    hot = [(version, row) for version, row in rows if row >= 2]
    assert hot == [(version, row + 2) for version in range(1, files + 1) for row in range(size)]
    assert len(rows) == 200


def test_a_hot_lane_has_twice_its_share_while_others_have_messages() -> None:
    text = encode_slots(16, [(0, 10), *((lane, 1) for lane in range(1, 8))])
    files = [DataFile(sequence(v, 0), 17, f"f{v}", 10, v, slots=text) for v in range(1, 9)]
    found = ordered(*files, lanes=16).lease("a", 40)
    assert sum(seq % 2**32 < 10 for seq in found) == 10


def test_a_hot_lane_may_fill_a_lease_of_a_group_without_order() -> None:
    group = ordered(*hot_files(3), file_of(4, (1, 0, 1)), order="none")
    group.lease("a", 101)
    oldest = [(version, row) for version in (1, 2, 3) for row in range(46)]
    assert rows_of(group, "a") == [*oldest[:100], (4, 0)]


@pytest.mark.parametrize("priority", [0, 9])
def test_a_hot_lane_fills_a_lease_if_others_have_no_more(priority: int) -> None:
    group = ordered(*hot_files(10, priority=priority, lane=0))
    others = [(v, row) for v in range(1, 11) for row in (40, 41)]
    hot = [(v, row) for v in range(1, 11) for row in range(40)]
    for lease_id in ("of unread messages", "of released ones"):
        group.lease(lease_id, 300)
        assert rows_of(group, lease_id) == sorted([*others, *hot[:280]])
        group.settle("release", lease_id)
    left: list[tuple[int, int]] = []
    while group.lease("b", 300):
        left += [one for one in rows_of(group, "b") if one[1] < 40]
        group.settle("ack", "b")
    assert left == hot


def test_a_lease_with_all_of_a_hot_lane_goes_on_with_a_lower_priority() -> None:
    group = ordered(*(file_of(v, (9, 0, 40), (9, 1, 2), (0, 0, 2)) for v in range(1, 11)))
    taken = group.lease("a", 600)
    assert len(taken) == len(set(taken)) == 440


def test_messages_without_a_key_have_a_share_too_and_go_on_where_they_waited() -> None:
    """The sequences of the files of one commit have no gaps."""
    file = file_of(1, *((0, lane, 2) for lane in range(LANES)), (0, None, 40))
    firsts = range(file.first, file.first + 10 * file.rows, file.rows)
    group = ordered(*(replace(file, first=first, path=f"{first}") for first in firsts))
    keys = [first + row for first in firsts for row in range(4)]
    others = [first + row for first in firsts for row in range(8, file.rows)]
    assert group.lease("a", 300) == sorted(keys + others[:260])


def test_a_small_lease_begins_with_the_oldest_also_of_a_hot_lane() -> None:
    group = ordered(*(file_of(version, (0, 0, 1), (0, 1, 40), (0, 2, 1)) for version in (1, 2, 3)))
    for number in range(40):
        group.lease(f"{number}", 1)
        assert rows_of(group, f"{number}") == [(1, number)]
        group.settle("ack", f"{number}")
    group.lease("of three", 3)
    assert rows_of(group, "of three") == [(1, 40), (2, 0), (3, 0)]


def test_a_named_message_waits_for_an_earlier_one_of_its_key() -> None:
    group = ordered(file_of(1, (0, 0, 2), (0, 1, 2), (0, 2, 2)))
    first = sequence(1, 0)
    second = [(first + 1, first + 1)]
    assert group.lease("a", 10, intervals=second) == []
    assert group.lease("a", 10, intervals=[(first + 1, first + 2)]) == [first + 2]
    assert group.lease("b", 10, intervals=[(first, first)]) == [first]
    assert group.lease("c", 10, intervals=second) == [], "a lease holds its lane"
    group.settle(ACK, "b")
    assert group.lease("c", 10, intervals=second) == [first + 1]


def test_a_lease_of_named_messages_takes_all_lanes() -> None:
    group = ordered(file_of(1, *((0, lane, 2) for lane in range(LANES))))
    group.lease("a", 1)
    rest = [(sequence(1, 2), sequence(1, 2 * LANES - 1))]
    assert len(group.lease("b", 2 * LANES, intervals=rest)) == 2 * LANES - 2
