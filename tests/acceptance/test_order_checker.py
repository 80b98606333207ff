"""The checker of orders finds what is wrong in a history, and nothing in a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.order_checker import Slot, check_order, check_order_of_queue, keys_of

from spark_mq import Message, Queue

KEYS: dict[int, Slot] = {0: ("a", 0), 1: ("b", 0), 2: ("a", 0), 3: ("a", 9)}
Rows = list[dict[str, Any]]


def row(version: int, state: str, first: int, last: int, lease: str | None = "x") -> dict[str, Any]:
    return {
        "version": version, "consumer_group": "g", "event": "some", "state": state,
        "first": first, "last": last, "lease_id": lease,
    }  # fmt: skip


def wrong(rows: Rows) -> list[str]:
    return check_order(KEYS, rows, ["g"]).wrong


@pytest.mark.parametrize(
    "rows",
    [
        [row(1, "leased", 0, 3), row(2, "settled", 0, 3)],
        [row(1, "leased", 0, 0), row(1, "leased", 1, 1, "y")],
        [row(1, "leased", 0, 0), row(2, "dead", 0, 0), row(2, "leased", 2, 2, "y")],
        # Another order within one version is no mistake: only its end counts.
        [row(1, "leased", 2, 2), row(1, "leased", 0, 0)],
        [row(1, "leased", 3, 3), row(2, "settled", 3, 3), row(3, "leased", 0, 0, "y")],
    ],
)
def test_a_good_history_has_nothing_wrong(rows: Rows) -> None:
    assert wrong(rows) == []


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([row(1, "leased", 0, 0), row(2, "leased", 3, 3, "y")], "['x', 'y'] hold key 'a'"),
        ([row(1, "leased", 2, 2)], "x holds 2 of key 'a' before 0"),
        ([row(1, "leased", 0, 2), row(2, "available", 0, 0)], "x holds 2 of key 'a' before 0"),
        ([row(1, "leased", 0, 2), row(2, "blocked", 0, 0)], "x holds 2 of key 'a' before 0"),
    ],
)
def test_a_broken_order_is_found(rows: Rows, complaint: str) -> None:
    assert [one for one in wrong(rows) if complaint in one]


@pytest.mark.parametrize("order", ["key", "none"])
def test_an_unordered_group_breaks_the_order_and_an_ordered_one_does_not(
    order: str, tmp_path: Path
) -> None:
    queue = Queue.create(tmp_path / "q", lanes=4, durable=False)
    group = queue.group("g")
    group.configure(order=order)
    published = [Message(str(n), key=f"k{n % 3}", priority=n // 9) for n in range(12)]
    sequences = [seq for at in (0, 6) for seq in queue.publish(published[at : at + 6]).sequences]
    slots = [(message.key, message.priority) for message in published]
    assert keys_of(queue.path) == dict(zip(sequences, slots, strict=True))
    leases = [group.lease(f"w{n}", max_messages=2) for n in range(6)]
    assert leases[0] is not None
    leases[0].nack()
    queue.sweep()
    found = check_order_of_queue(queue.path, ["g"])
    assert found.counts["holds"] >= 2
    assert bool(found.wrong) == (order == "none")
