"""Show a live view of a queue with ``spark-mq top``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import Group as Stack
from rich.live import Live
from rich.text import Text

from spark_mq.cli.lanes import lane_rows
from spark_mq.cli.options import Output, OutputFormat, QueuePath, StorageOptions, open_queue, option
from spark_mq.cli.output import Column, emit, json_line, make_table, show_age, show_time
from spark_mq.cli.queues import group_rows
from spark_mq.util.clock import SECOND
from spark_mq.util.show import printable
from spark_mq.util.validation import validate_duration

__all__ = ["register"]

_GROUPS: Final[list[Column]] = [
    ("GROUP", "group"), ("READY", "ready"), ("DELAYED", "delayed"), ("LEASED", "leased"),
    ("DEAD", "dead"), ("BLOCKED", "blocked"), ("ACKED/S", "acked_per_second"),
    ("DEAD/S", "dead_per_second"), ("OLDEST", "oldest"), ("LEASE", "lease"),
    ("BLOCKED BECAUSE", "blocked_because"),
]  # fmt: skip
_WORKERS: Final[list[Column]] = [
    ("WORKER", "worker_id"), ("GROUP", "group"), ("LEASES", "leases"), ("MESSAGES", "messages"),
    ("OLDEST", "oldest"),
]  # fmt: skip
_ERRORS: Final[list[Column]] = [
    ("LAST ERROR", "error"), ("GROUP", "group"), ("STATE", "state"), ("MESSAGES", "messages"),
]  # fmt: skip
_LANES: Final[list[Column]] = [
    ("HELD LANE", "lane"), ("GROUP", "group"), ("MESSAGES", "messages"), ("SHARE", "share"),
    ("AGE", "age"), ("HELD BACK", "held_back"), ("BECAUSE", "because"),
]  # fmt: skip
_DETAILED: Final = 10  # the busiest groups, whose workers and errors a refresh reads


def register(app: typer.Typer) -> None:
    app.command()(top)


def top(
    queue: QueuePath,
    interval: Annotated[str, option("--interval", help="How often to refresh.")] = "2s",
    count: Annotated[
        int | None, option("--count", min=1, help="End after so many refreshes.")
    ] = None,
    groups: Annotated[int, option("--groups", min=1, help="Groups to show, the busiest.")] = 20,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Show a live view of a queue until Ctrl-C. In a pipe it prints one view, after two looks."""
    opened = open_queue(queue, storage_option)
    pause = validate_duration("--interval", interval) / SECOND
    live = sys.stdout.isatty() and output is OutputFormat.table
    left = count if count is not None else None if live or output is OutputFormat.json else 1
    view = _View(opened, groups)
    if live:
        _run_live(view, pause, left)
        return
    if count is None and output is OutputFormat.table:
        view.refresh()  # the rates of the view that is printed come from this one
        time.sleep(pause)
    while left is None or left > 0:
        frame = view.refresh()
        if output is OutputFormat.json:
            print(json_line(frame), flush=True)
        else:
            _print(frame, output)
        left = None if left is None else left - 1
        if left != 0:
            time.sleep(pause)


def _run_live(view: _View, pause: float, left: int | None) -> None:
    with Live(_drawn(view.refresh()), screen=True, auto_refresh=False) as screen:
        while left is None or left > 1:
            time.sleep(pause)
            screen.update(_drawn(view.refresh()), refresh=True)
            left = None if left is None else left - 1


class _View:
    """Makes the data of each refresh, with rates since the one before."""

    def __init__(self, queue: Any, groups: int) -> None:
        self._queue = queue
        self._groups = groups
        self._before: tuple[float, Any] | None = None

    def refresh(self) -> dict[str, Any]:
        """Return one view, for which only changes since the last one are read."""
        overview = self._queue.describe()
        now = time.monotonic()
        rates = self._rates(overview, now)
        busiest = group_rows(overview.groups, max(self._groups, _DETAILED))
        rows = [{**row, **rates.get(row["group"], {})} for row in busiest]
        self._before = (now, overview)
        detailed = [row["group"] for row in rows[:_DETAILED]]
        workers, errors = self._details(detailed)
        return {
            "queue": overview.path,
            "at": datetime.now(UTC),
            "published": overview.published,
            "published_per_second": rates.get("", {}).get("published_per_second"),
            "dead_letters": overview.dead_letters,
            "last_sweep": overview.sweeps.last_change_at,
            "commits_waiting": overview.sweeps.unarchived_commits,
            "group_count": len(overview.groups),
            "damaged": dict(overview.damaged),
            "groups": rows[: self._groups],
            "workers": workers,
            "held_lanes": self._held_lanes(detailed),
            "errors": errors,
        }

    def _held_lanes(self, names: list[str]) -> list[dict[str, Any]]:
        """Return the lane that holds back most messages in each ordered group."""
        found = []
        for name in names:
            group = self._queue.group(name)
            if group.settings.order == "key":
                hottest = max(group.lanes(None), key=_held_back, default=None)
                if hottest is not None and hottest.held_back:
                    found.append({"group": name, **lane_rows([hottest])[0]})
        return found

    def _rates(self, overview: Any, now: float) -> dict[str, dict[str, float]]:
        if self._before is None:
            return {}
        seconds = max(1e-9, now - self._before[0])
        before = self._before[1]

        def rate(name: str, after: Any, earlier: Any) -> float:
            return float(getattr(after, name) - getattr(earlier, name)) / seconds

        found = {
            name: {
                "acked_per_second": rate("acked", stats, before.groups[name]),
                "dead_per_second": rate("dead_lettered", stats, before.groups[name]),
            }
            for name, stats in overview.groups.items()
            if name in before.groups
        }
        found[""] = {"published_per_second": rate("published", overview, before)}
        return found

    def _details(self, names: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        workers, errors, now = [], [], datetime.now(UTC)
        for name in names:
            group = self._queue.group(name)
            for worker in group.workers()[:10]:
                age = max(0.0, (now - worker.since).total_seconds())
                workers.append({"group": name, **asdict(worker), "oldest": show_age(age)})
            errors += [{"group": name, **asdict(one)} for one in group.last_errors(3)]
        workers.sort(key=lambda row: -row["messages"])
        return workers[:10], errors[:10]


def _held_back(lane: Any) -> int:
    return int(lane.held_back)


def _title(frame: Mapping[str, Any]) -> str:
    rate = frame["published_per_second"]
    speed = "" if rate is None else f" ({rate:,.0f}/s)"
    return (
        f"{printable(frame['queue'])}  {show_time(frame['at'])}\n"
        f"published {frame['published']:,}{speed}  dead letters {frame['dead_letters']}  "
        f"groups {frame['group_count']}  last sweep {show_time(frame['last_sweep'])}, "
        f"{frame['commits_waiting']} commits wait"
    )


def _sections(frame: Mapping[str, Any]) -> list[tuple[list[dict[str, Any]], list[Column]]]:
    names = (
        ("groups", _GROUPS),
        ("workers", _WORKERS),
        ("held_lanes", _LANES),
        ("errors", _ERRORS),
    )
    named = [(frame[name], columns) for name, columns in names]
    return [(rows, columns) for rows, columns in named if rows]


def _print(frame: Mapping[str, Any], output: OutputFormat) -> None:
    print(_title(frame))
    for rows, columns in _sections(frame):
        print()
        emit(rows, columns, output)
    sys.stdout.flush()


def _drawn(frame: Mapping[str, Any]) -> Stack:
    parts: list[Any] = [Text(_title(frame))]
    for rows, columns in _sections(frame):
        parts += [Text(""), make_table(rows, columns)]
    return Stack(*parts)
