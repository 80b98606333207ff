"""Report the state of groups as gauges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from spark_mq.telemetry.conventions import Destination
from spark_mq.telemetry.reporter import meter_provider

__all__ = ["MESSAGES", "report_gauges"]

MESSAGES: Final = "spark_mq.messages"
OLDEST_AGE: Final = "spark_mq.oldest_unsettled_age"
BLOCKED: Final = "spark_mq.blocked"

_known: dict[int, tuple[Any, tuple[Any, Any, Any]]] = {}


def report_gauges(
    destination: Destination, stats: Mapping[str, Any], states: Iterable[str]
) -> None:
    """Set the gauges of a group: messages by state, oldest age, and whether it is blocked."""
    provider = meter_provider()
    if provider is None:
        return
    messages, age, blocked = _gauges(provider)
    attributes = destination.attributes()
    for state in states:
        messages.set(stats.get(state) or 0, {**attributes, "spark_mq.state": state})
    age.set(stats.get("oldest_unsettled_age") or 0.0, attributes)
    blocked.set(int(bool(stats.get("blocked_because"))), attributes)


def _gauges(provider: Any) -> tuple[Any, Any, Any]:
    known = _known.get(id(provider))
    if known is None or known[0] is not provider:
        meter = provider.get_meter("spark_mq")
        gauges = (
            meter.create_gauge(MESSAGES, "{message}", "Messages of a group by state."),
            meter.create_gauge(OLDEST_AGE, "s", "Age of the first unsettled message."),
            meter.create_gauge(BLOCKED, "1", "1 if the group leases nothing."),
        )
        _known.clear()
        known = _known[id(provider)] = (provider, gauges)
    return known[1]
