"""Seek, and the change of messages by their owner."""

from __future__ import annotations

from support.ledger_group import Group, freeze, seek

from spark_mq.ledger.interventions import DISCARD, Intervene
from spark_mq.ledger.settle import ACK, NACK, REJECT


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


def test_nobody_changes_what_a_sweep_copies_and_a_seek_moves_the_rest():
    group = Group()
    group.lease("a", 8)
    group.settle(REJECT, "a", [2, 5])
    freeze(group)
    held = group.run(Intervene(DISCARD, [(2, 2)])).held
    assert held == [(2, 2, "a sweep or redrive copies it")], "not even for its owner"
    seek(group, 4)
    assert group.states() == "SSTSATUUUU"
    seek(group, 7)
    assert group.states() == "SSTSSTSUUU"
    assert (group.ledger.head.settled_count, group.ledger.count()) == (2, 5)


def test_a_seek_to_the_last_message_of_a_lease_is_noted_for_that_message():
    group = Group()
    group.lease("a", 8)
    seek(group, 7)
    fenced = [(r.first, r.last, r.lease_id) for kind, r in group.ledger.events if kind == "fenced"]
    assert fenced == [(7, 7, "a")]
