"""Tell the limits of a group, which end by themselves, from what stops it."""

from __future__ import annotations

from typing import Final

__all__ = [
    "LAST_ATTEMPT",
    "MAX_IN_FLIGHT",
    "MAX_IN_FLIGHT_BYTES",
    "MAX_IN_FLIGHT_PER_KEY",
    "RATE_LIMIT",
    "is_stopped",
    "limit_in",
]

MAX_IN_FLIGHT: Final = "max_in_flight"
MAX_IN_FLIGHT_BYTES: Final = "max_in_flight_bytes"
MAX_IN_FLIGHT_PER_KEY: Final = "max_in_flight_per_key"
RATE_LIMIT: Final = "rate_limit"
LAST_ATTEMPT: Final = "last_attempt"
"""A suspect on its last attempt is alone in its worker. The group's settings do not limit that."""
_LIMITS: Final = (
    LAST_ATTEMPT,
    MAX_IN_FLIGHT,
    MAX_IN_FLIGHT_BYTES,
    MAX_IN_FLIGHT_PER_KEY,
    RATE_LIMIT,
)


def limit_in(why: str) -> str:
    """Return the limit that is a reason for no lease, such as "max_in_flight", or no text."""
    name = why.partition(":")[0]
    return name if name in _LIMITS else ""


def is_stopped(why: str) -> bool:
    """Return whether a reason for no lease is a problem, as it is unless it is a limit."""
    return bool(why) and not limit_in(why)
