"""Show the statistics of a group in the progress of a stream."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from spark_mq.ledger.stats import GroupStats, figures_of
from spark_mq.operations.group_ledger import GroupLedger

__all__ = ["show_progress"]


def show_progress(ledger: GroupLedger, stats: GroupStats) -> dict[str, Any]:
    """Return the figures of a group that progress shows, with its queue and name."""
    place = {"source": "spark_mq", "queue": ledger.queue_path, "group": ledger.name}
    names = (name for name, one in figures_of(type(stats)).items() if one.progress)
    return place | {name: _plain(getattr(stats, name)) for name in names}


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value
