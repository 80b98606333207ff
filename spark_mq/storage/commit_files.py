"""Choose the files of ``commits/`` to read, merge and rewrite."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.actions import AddFile
from spark_mq.delta.state import TableState
from spark_mq.storage.commit_rows import MARK, mark_rows
from spark_mq.util.clock import to_datetime
from spark_mq.util.columns import sort_rows

__all__ = [
    "count_small",
    "kept",
    "last_in",
    "latest_marks",
    "small_files",
    "stale_files",
    "stats",
    "unique",
]

# So many files with fewer rows and bytes than the following are merged.
SMALL_FILES: Final = 16
LARGE_ROWS: Final = 100_000
LARGE_BYTES: Final = 4 * 2**20
_MAX_SEQUENCE: Final = 2**63 - 1


def kept(rows: pa.Table, forgotten_to: int, keep_since: int) -> pa.Table:
    """Return the rows without those of forgotten files from before a time."""
    times = pc.fill_null(rows["committed_at"].cast(pa.int64()), 0)
    needed = pc.greater(pc.fill_null(rows["last"], _MAX_SEQUENCE), forgotten_to)
    return rows.filter(pc.or_(needed, pc.greater_equal(times, keep_since)))


def latest_marks(rows: pa.Table) -> pa.Table:
    """Return the rows, with only the latest number of each app."""
    is_mark = pc.equal(rows["kind"], MARK)
    marks = rows.filter(is_mark)
    latest = {app: (number, at) for app, number, at in _in_order(marks)}
    if len(latest) == marks.num_rows:
        return rows
    kept = mark_rows((app, number, at) for app, (number, at) in latest.items())
    whole = pa.concat_tables([rows.filter(pc.invert(is_mark)), kept])
    return sort_rows(whole, "version", "first")


def _in_order(marks: pa.Table) -> Iterator[tuple[str, int, int]]:
    names = ("app", "number", "version")
    ordered = sort_rows(marks, "version")
    columns = [ordered[name].to_pylist() for name in names]
    return zip(*columns, strict=True)


def stats(rows: pa.Table) -> str:
    """Return a file's statistics, with its last sequence and commit time."""
    files = rows.filter(pc.not_equal(rows["kind"], MARK))
    last = pc.max(pc.fill_null(files["last"], _MAX_SEQUENCE)).as_py()
    at = pc.max(files["committed_at"]).as_py()
    most = {} if last is None else {"last": last}
    most |= {} if at is None else {"committed_at": _later_millisecond(at).isoformat()}
    return json.dumps({"numRecords": rows.num_rows, "maxValues": most})


def _later_millisecond(at: datetime) -> datetime:
    """Round a time up to a millisecond, the unit of Delta's statistics."""
    return at + timedelta(microseconds=-at.microsecond % 1000)


def _most(file: AddFile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.stats or "{}").get("maxValues") or {}
    return found


def last_in(file: AddFile) -> int:
    """Return an upper bound of the sequences in a file of rows."""
    last = _most(file).get("last")
    return last if isinstance(last, int) else _MAX_SEQUENCE


def stale_files(state: TableState, forgotten_to: int, keep_since: int) -> list[AddFile]:
    """Return the large files of which all rows are forgotten and old."""
    before = to_datetime(max(0, keep_since))
    return [
        file
        for file in state.files()
        if not _is_small(file)
        and last_in(file) <= forgotten_to
        and (at := _most(file).get("committed_at")) is not None
        and datetime.fromisoformat(at) < before
    ]


def unique(files: list[AddFile]) -> list[AddFile]:
    return list({file.path: file for file in files}.values())


def small_files(state: TableState) -> list[AddFile]:
    """Return small files to merge, if there are too many. Their rows fit in memory."""
    small = sorted((file for file in state.files() if _is_small(file)), key=lambda f: f.modified)
    if len(small) < SMALL_FILES:
        return []
    rows = list(accumulate(file.rows or 0 for file in small))
    return small[: max(2, bisect_right(rows, LARGE_ROWS))]


def count_small(state: TableState) -> int:
    return sum(_is_small(file) for file in state.files())


def _is_small(file: AddFile) -> bool:
    return (file.rows or 0) < LARGE_ROWS and file.size < LARGE_BYTES
