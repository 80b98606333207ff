"""Errors keep their data."""

from __future__ import annotations

import pickle

from spark_mq.errors import LeaseLost


def test_errors_travel_between_processes_with_their_data():
    error = pickle.loads(pickle.dumps(LeaseLost("gone", lease_id="a", lost=[(1, 2, "unread")])))
    assert (type(error), str(error), error.lease_id, error.lost) == (
        LeaseLost,
        "gone",
        "a",
        [(1, 2, "unread")],
    )
