"""Find rows of ``history/`` by the statistics of its files."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.actions import AddFile
from spark_mq.storage.history_store import Filters

__all__ = ["history_statistics", "matching_rows", "may_match"]


def history_statistics(rows: pa.Table) -> str:
    """Return the statistics of a file with the bounds for searches."""
    lowest, highest = pc.min(rows["first"]).as_py(), pc.max(rows["last"]).as_py()
    latest = pc.max(rows["committed_at"]).as_py()
    most: dict[str, Any] = {} if latest is None else {"committed_at": _rounded_up(latest)}
    stats: dict[str, Any] = {"numRecords": rows.num_rows, "maxValues": most}
    if lowest is not None:
        stats["minValues"] = {"first": lowest}
        most["last"] = highest
    return json.dumps(stats)


def _rounded_up(at: datetime) -> str:
    """Return an instant rounded up to milliseconds, the unit of Delta's statistics."""
    later = at + timedelta(milliseconds=1)
    return later.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{later.microsecond // 1000:03}Z"


def may_match(file: AddFile, filters: Filters) -> bool:
    """Return whether a file may have rows that match, by its day and its statistics."""
    # Another operator leaves nothing out.
    wanted = {(name, operator): value for name, operator, value in filters}
    since = wanted.get(("committed_at", ">="))
    if since is not None and (file.partition.get("day") or "") < since.date().isoformat():
        return False
    stats = json.loads(file.stats or "{}")
    most = stats.get("maxValues", {})
    latest = most.get("committed_at")
    if since is not None and latest is not None and datetime.fromisoformat(latest) < since:
        return False
    low, high = stats.get("minValues", {}).get("first"), most.get("last")
    if low is None or high is None:
        return True
    return bool(
        low <= wanted.get(("first", "<="), low) and wanted.get(("last", ">="), high) <= high
    )


def matching_rows(rows: pa.Table, filters: Filters) -> pa.Table:
    compare = {"=": pc.equal, "<=": pc.less_equal, ">=": pc.greater_equal}
    for name, operator, value in filters:
        rows = rows.filter(compare[operator](rows[name], value))
    return rows
