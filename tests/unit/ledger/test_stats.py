"""Count the messages of a group."""

from __future__ import annotations

from support.ledger_group import SECOND, Group

from spark_mq.ledger.message_index import DataFile
from spark_mq.ledger.settle import ACK
from spark_mq.ledger.stats import compute_stats
from spark_mq.util.clock import to_seconds


def age(group: Group) -> float | None:
    stats = compute_stats(group.ledger, group.index, group.rules, group.now)
    return to_seconds(stats.oldest_unsettled_age)


def test_settled_messages_do_not_make_the_oldest_message_older():
    old, new = DataFile(0, 2, "old", 20, 100 * SECOND), DataFile(2, 2, "new", 20, 900 * SECOND)
    group = Group(4, files=[old, new])
    assert age(group) == 900
    group.lease("a", 2)
    group.settle(ACK, "a", [0])
    assert age(group) == 900
    group.settle(ACK, "a", [1])
    assert age(group) == 100
    group.lease("b", 2)
    group.settle(ACK, "b")
    assert age(group) is None
