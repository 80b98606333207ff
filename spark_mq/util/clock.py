"""The clock of a queue, and the form in which users give durations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

__all__ = ["Clock", "Duration", "system_clock"]

Clock = Callable[[], datetime]
"""Returns the present as an aware datetime."""

Duration = float | int | str | timedelta
"""Seconds, a timedelta, or text such as "30s", "5m" and "7d"."""


def system_clock() -> datetime:
    """Return the time of this machine."""
    return datetime.now(UTC)
