"""How a message ended, by its events. No storage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spark_mq import MessageOutcome
from spark_mq.ledger.log_fingerprints import REWOUND
from spark_mq.operations.history import outcomes_in

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Row = dict[str, Any]


def events(*given: Row) -> list[Row]:
    """Rows of history in order, one second apart, with defaults."""
    blank = {
        "consumer_group": "g", "outcome": None, "delivery_count": 1, "failure_count": 0,
        "reason": None, "error": None, "batch_size": None,
    }  # fmt: skip
    return [
        {**blank, "committed_at": START + timedelta(seconds=at), **row}
        for at, row in enumerate(given)
    ]


def acked(**more: Any) -> Row:
    return {"event": "acked", "outcome": "acked", **more}


def test_a_message_without_an_end_has_no_outcome() -> None:
    assert outcomes_in([]) == ()
    assert outcomes_in(events({"event": "leased"}, {"event": "nacked", "error": "no"})) == ()


def test_an_outcome_has_the_time_the_counts_and_why() -> None:
    rejected = {"event": "rejected", "reason": "rejected", "error": "no", "failure_count": 1}
    routed = {**rejected, "event": "routed", "outcome": "dead_lettered", "delivery_count": 2}
    (end,) = outcomes_in(events({"event": "leased"}, rejected, routed))
    assert end == MessageOutcome(
        "g", "dead_lettered", START + timedelta(seconds=2), 2, 1, "rejected", "no"
    )
    assert str(end) == "dead_lettered  reason: rejected  error: no"


def test_each_group_has_its_own_outcome() -> None:
    dropped = {"event": "discarded", "outcome": "dropped", "consumer_group": "a"}
    other = {"event": "leased", "consumer_group": "h"}
    found = outcomes_in(events(acked(), dropped, other))
    assert [(one.group, one.outcome) for one in found] == [("a", "dropped"), ("g", "acked")]


@pytest.mark.parametrize("undoing", ["seek", REWOUND])
def test_a_message_made_unread_again_has_only_its_last_outcome(undoing: str) -> None:
    again = {"event": undoing}
    assert outcomes_in(events(acked(), again)) == ()
    assert outcomes_in(events(acked(), {**again, "consumer_group": "h"})) != ()
    skipped = {"event": "skipped", "outcome": "skipped"}
    assert [one.outcome for one in outcomes_in(events(acked(), again, skipped))] == ["skipped"]


def test_the_failure_of_a_batch_is_not_the_messages_own() -> None:
    failed = {"event": "rejected", "error": "bad", "batch_size": 1_000}
    routed = {"event": "routed", "outcome": "dead_lettered", "error": "bad", "reason": "rejected"}
    (end,) = outcomes_in(events(failed, routed))
    assert (end.error, end.batch_error, end.batch_size) == (None, "bad", 1_000)
    assert str(end) == "dead_lettered  reason: rejected  error: its batch of 1,000 failed: bad"
    own = {"event": "nacked", "error": "bad"}
    (end,) = outcomes_in(events(failed, own, routed))
    assert (end.error, end.batch_error, end.batch_size) == ("bad", None, None)
    (end,) = outcomes_in(events(failed, {**routed, "error": "by the owner"}))
    assert (end.error, end.batch_size) == ("by the owner", None)


def test_an_earlier_failure_is_not_why_a_message_was_acked() -> None:
    (end,) = outcomes_in(events({"event": "nacked", "error": "once"}, acked(error="once")))
    assert (end.error, str(end)) == ("once", "acked")
