"""The checker finds what is wrong in a history, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.checker import check

START = datetime(2026, 1, 1, tzinfo=UTC)
SKEW = timedelta(seconds=1)
Rows = list[dict[str, Any]]


def row(version: int, event: str, lease: str = "a", at: int = 0, **more: Any) -> dict[str, Any]:
    now = START + timedelta(seconds=at)
    return {
        "version": version, "ordinal": 0, "consumer_group": "g", "event": event,
        "state": "available", "first": 0, "last": 1, "lease_id": lease, "delivery_count": 1,
        "leased_at": now, "expires_at": None, "available_at": None, "committed_at": now, **more,
    }  # fmt: skip


def good() -> Rows:
    """Leased, run out after 60 s, leased again by another, acked."""
    return [
        row(1, "leased", state="leased"),
        row(2, "lease_expired", at=62, available_at=START + timedelta(seconds=60)),
        row(2, "leased", "b", state="leased", delivery_count=2, at=62),
        row(3, "acked", "b", state="settled", delivery_count=2, at=63),
    ]


def wrong(rows: Rows) -> list[str]:
    return check([0, 1], rows, skew=SKEW, drained=["g"]).wrong


def test_nothing_is_wrong_with_a_good_history() -> None:
    assert wrong(good()) == []


def without(at: int) -> Callable[[Rows], Rows]:
    return lambda rows: rows[:at] + rows[at + 1 :]


def changed(at: int, **given: Any) -> Callable[[Rows], Rows]:
    return lambda rows: [{**r, **given} if n == at else r for n, r in enumerate(rows)]


@pytest.mark.parametrize(
    ("doctored", "complaint"),
    [
        (without(1), "but a holds it"),
        (without(3), "ended 0 times"),
        (lambda rows: [*rows, row(4, "acked", "b", state="settled")], "had ended"),
        (changed(2, delivery_count=1), "counted 1, delivered 2 times"),
        (changed(3, lease_id="a"), "but b holds it"),
        (changed(3, last=0), "message 1 ended 0 times"),
        (changed(1, committed_at=START + timedelta(seconds=60.5)), "before its deadline"),
        (changed(2, leased_at=START + timedelta(seconds=60.5)), "ran until"),
        (changed(3, event="forgotten"), "nobody knows"),
        (lambda rows: [row(1, "acked", "z", state="settled")], "but nobody holds it"),
    ],
)
def test_what_is_wrong_is_found(doctored: Callable[[Rows], Rows], complaint: str) -> None:
    assert any(complaint in one for one in wrong(doctored(good())))


def test_a_late_ack_counts() -> None:
    assert wrong([*good()[:2], row(3, "acked", state="settled", at=63)]) == []
