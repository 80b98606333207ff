"""Show the statistics of a group in the progress of a stream."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from spark_mq.ledger.stats import GroupStats
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.util.clock import to_seconds

__all__ = ["show_progress"]

_SHOWN: Final = (
    *("ready", "delayed", "leased", "dead", "blocked"),
    *("oldest_unsettled_age", "blocked_because", "breaker"),
)


def show_progress(ledger: GroupLedger, stats: GroupStats) -> dict[str, Any]:
    """Return a group's stats with its queue and name."""
    found = asdict(stats)
    found["oldest_unsettled_age"] = to_seconds(found["oldest_unsettled_age"])
    place = {"source": "spark_mq", "queue": ledger.queue_path, "group": ledger.name}
    return place | {name: found[name] for name in _SHOWN}
