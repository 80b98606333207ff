"""Seek."""

from __future__ import annotations

from support.having import having
from support.ledger_group import Group, dead_ones, freeze, freeze_dead, seek

from spark_mq.ledger.interventions import SettleRouted
from spark_mq.ledger.message_index import DataFile, sequence
from spark_mq.ledger.ranges import AVAILABLE, TRANSFERRING
from spark_mq.ledger.settle import ACK, NACK, REJECT

# -- seek


def test_a_seek_skips_all_before_and_makes_unread_all_after():
    group = Group()
    group.lease("a", 8)
    group.settle(ACK, "a", [0, 6])
    group.settle(NACK, "a", [1])
    seek(group, 5)
    assert group.states() == "SSSSSUUUUU"
    assert group.ledger.head.counters == {"acked": 2, "skipped": 4}
    assert group.settle(ACK, "a", [7]).lost == [(7, 7, "unread")], "its leases are fenced"
    assert group.lease("b", 100) == [5, 6, 7, 8, 9]
    assert group.at(5).delivery_count == 1


def test_a_seek_to_the_last_message_of_a_lease_is_noted_for_that_message():
    group = Group()
    group.lease("a", 8)
    seek(group, 7)
    fenced = [(r.first, r.last, r.lease_id) for kind, r in group.ledger.events if kind == "fenced"]
    assert fenced == [(7, 7, "a")]


def test_a_seek_back_makes_settled_messages_unread_again():
    group = Group()
    group.lease("a", 8)
    group.settle(ACK, "a")
    seek(group, 2)
    assert group.states() == "SSUUUUUUUU"
    assert group.ledger.head == having(start_sequence=1, settled_count=2)
    assert "skipped" not in group.ledger.head.counters


def test_a_seek_counts_what_it_skips_where_a_settled_range_straddles_its_target():
    group = Group()
    group.lease("a", 8)
    group.settle(ACK, "a", [2, 3, 4, 5])
    seek(group, 4)
    assert group.ledger.head.counters == {"acked": 4, "skipped": 2}


def test_a_seek_leaves_routing_alone():
    group = dead_ones()
    freeze_dead(group, "r1", 2)
    seek(group, 2)
    assert group.states() == "STATUUUUUU", "what lies between is due since ever"
    assert group.ledger.head.counters == {"skipped": 1}
    assert group.lease("b", 3) == [2, 4, 5]
    seek(group, 9)
    assert group.states() == "STSTSSSSSU"
    total = group.run(SettleRouted("r1", "routed"))
    assert (total, group.ledger.head.start_sequence, len(group.ledger)) == (2, 8, 0)


def test_a_seek_leaves_no_range_that_begins_or_ends_in_a_gap():
    group = Group(files=[DataFile(0, 2, "a", 2, 0), DataFile(sequence(2, 0), 2, "b", 2, 0)])
    group.lease("a", 4)
    group.settle(REJECT, "a", [1])
    freeze(group)
    seek(group, sequence(1, 0))
    assert [(r.first, r.state) for r in group.ledger] == [(1, TRANSFERRING)]
    group.settle(REJECT, "a")
    group.lease("b", 4)
    group.settle(REJECT, "b", [sequence(2, 1)])
    freeze(group)
    seek(group, 0)
    assert [(r.first, r.last, r.state, r.message_count) for r in group.ledger] == [
        (0, 0, AVAILABLE, 1),
        (1, 1, TRANSFERRING, 1),
        (sequence(2, 0), sequence(2, 0), AVAILABLE, 1),
        (sequence(2, 1), sequence(2, 1), TRANSFERRING, 1),
    ]
