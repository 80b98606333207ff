"""Show a queue and a group in a notebook."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import SparkMQError
from spark_mq.inspect.lanes import list_lanes, list_priorities
from spark_mq.inspect.leases import list_leases
from spark_mq.inspect.overview import groups_html
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.util.html import object_html, rows_html

__all__ = ["NOTEBOOK_ERRORS", "QueueStats", "failed_html", "group_html"]

NOTEBOOK_ERRORS: Final = (SparkMQError, *STORE_ERRORS)
_LANE_COLUMNS: Final = (
    "lane", "messages", "share", "ready", "leased", "head", "head_age", "held_back", "because",
)  # fmt: skip


class QueueStats(dict[str, Any]):
    """The counts of a queue, a dict with a table for notebooks."""

    def _repr_html_(self) -> str:
        counts = {name: value for name, value in self.items() if name != "groups"}
        return object_html(counts, "Queue") + groups_html(self["groups"])


def group_html(group: GroupLedger) -> str:
    stats = group.stats()
    facts = {"queue": group.queue_path, **asdict(stats)}
    leases = rows_html(list_leases(group), title="Leases")
    return object_html(facts, f"Group {group.name}") + leases + _lanes_html(group)


def _lanes_html(group: GroupLedger) -> str:
    priorities, lanes = list_priorities(group), list_lanes(group, 10, "messages")
    shown = rows_html(priorities, title="Priorities") if len(priorities) > 1 else ""
    return shown + (rows_html(lanes, _LANE_COLUMNS, "Hottest lanes") if lanes else "")


def failed_html(title: str, error: BaseException) -> str:
    return object_html({"cannot be read": error}, title)
