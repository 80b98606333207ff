"""Check settings that must go together, and the format of those that a queue stores."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from spark_mq.errors import UnsupportedTable
from spark_mq.util.show import show_duration
from spark_mq.util.validation import invalid


def check_lanes(lanes: int, order: str, limit: int | None) -> None:
    """Raise InvalidOption if a setting needs lanes, and the queue has none."""
    needs = {"order": None if order == "none" else order, "max_in_flight_per_key": limit}
    for name, value in needs.items():
        if value is not None and not lanes:
            why = "needs lanes: the queue has none. Create a queue with lanes=64 (--lanes 64) and "
            why += "publish the messages there."
            raise invalid(name, value, why)


def check_keys(order: str, limit: int | None, weights: Mapping[str, float] | None) -> None:
    """Raise InvalidOption if the settings do not go together."""
    if weights is not None and order != "fair":
        raise invalid("weights", dict(weights), "needs order='fair': set it too, or None")
    if limit is not None and order == "key":
        why = "does not go with order='key', where one lease at a time has a key: use None"
        raise invalid("max_in_flight_per_key", limit, why)


def check_delays(retry: object, delay: timedelta, most: timedelta) -> None:
    """Raise InvalidOption if the first delay is longer than the longest. A list has its own."""
    if delay > most and not isinstance(retry, tuple):
        why = f"is longer than max_retry_delay={show_duration(most)!r}, which would cut it: use a "
        why += "longer max_retry_delay, or a shorter retry_delay"
        raise invalid("retry_delay", show_duration(delay), why)


def check_replaces(replaces: bool, ids_count: bool) -> None:
    """Raise InvalidOption if a message can replace none, because no dedup id counts."""
    if replaces and not ids_count:
        why = "needs ids that count: set dedup_until='settled' or a dedup_window, too"
        raise invalid("dedup_replaces", replaces, why)


def wrong_format(actual: Any, known: int, path: str | None) -> UnsupportedTable:
    fix = "update spark_mq"
    if isinstance(actual, int) and actual < known:
        fix = "create a new queue with this version and publish its messages there; read the old "
        fix += "queue with the version that created it"
    place = f"the queue at {path}" if path else "the queue"
    text = f"{place} has format {actual!r}, and this version of spark_mq reads {known}: {fix}"
    return UnsupportedTable(text, path=path, features=[])
