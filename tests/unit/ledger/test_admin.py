"""Seek."""

from __future__ import annotations

from support.ledger_group import Group, seek

from spark_mq.ledger.settle import ACK, NACK


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
