"""Watch a queue: ``top``, ``throughput``, ``changes`` and ``check``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from rich.console import Group as Stack
from rich.live import Live
from rich.text import Text

from spark_mq.cli.command import Given, command, option
from spark_mq.cli.messages import lane_cells
from spark_mq.cli.output import FAILED, Column, Pages, Part, Rows, make_table
from spark_mq.cli.queues import group_rows
from spark_mq.queue import Queue
from spark_mq.util.clock import SECOND
from spark_mq.util.show import printable, show_age, show_time
from spark_mq.util.validation import validate_duration

__all__ = ["MaxAge", "MaxDead", "MaxUnswept", "View", "parse_limit"]

_TOP_COLUMNS: Final[Mapping[str, list[Column]]] = {
    "groups": [
        ("GROUP", "group"), ("READY", "ready"), ("DELAYED", "delayed"), ("LEASED", "leased"),
        ("DEAD", "dead"), ("BLOCKED", "blocked"), ("ACKED/S", "acked_per_second"),
        ("DEAD/S", "dead_per_second"), ("OLDEST", "oldest"), ("LEASE", "lease"),
        ("BLOCKED BECAUSE", "blocked_because"),
    ],
    "workers": [
        ("WORKER", "worker_id"), ("GROUP", "group"), ("LEASES", "leases"),
        ("MESSAGES", "messages"), ("OLDEST", "oldest"),
    ],
    "held_lanes": [
        ("HELD LANE", "lane"), ("GROUP", "group"), ("MESSAGES", "messages"), ("SHARE", "share"),
        ("AGE", "age"), ("HELD BACK", "held_back"), ("BECAUSE", "because"),
    ],
    "errors": [
        ("LAST ERROR", "error"), ("GROUP", "group"), ("STATE", "state"), ("MESSAGES", "messages"),
    ],
}  # fmt: skip
_THROUGHPUT_COLUMNS: Final[list[Column]] = [
    ("AT", "at"), ("GROUP", "consumer_group"), ("PUBLISHED", "published"), ("LEASED", "leased"),
    ("FAILED", "failed"), ("ACKED", "acked"), ("DEAD LETTERED", "dead_lettered"),
    ("DROPPED", "dropped"), ("EXPIRED", "expired"), ("PUBLISHED/S", "published_per_second"),
    ("SETTLED/S", "settled_per_second"),
]  # fmt: skip
_CHANGE_COLUMNS: Final[list[Column]] = [
    ("AT", "at"), ("CHANGE", "operation"), ("GROUP", "group"), ("USER", "user"),
    ("MESSAGES", "messages"), ("DETAIL", "detail"),
]  # fmt: skip
_CHECK_COLUMNS: Final[list[Column]] = [("CHECK", "check"), ("GROUP", "group"), ("REASON", "text")]
_DETAILED: Final = 10  # the busiest groups, whose workers and errors a refresh reads

MaxUnswept = Annotated[str, option("How long work may wait for a sweep, or none.")]
MaxAge = Annotated[str | None, option("The greatest age of an unsettled message.")]
MaxDead = Annotated[int | None, option("The most dead messages and dead letters.", min=0)]
_OnlyGroup = Annotated[str | None, option("Only this group.", "-g")]


@command("top")
def top(
    on: Given,
    interval: Annotated[str, option("How often to refresh.")] = "2s",
    count: Annotated[int | None, option("End after so many refreshes.", min=1)] = None,
    groups: Annotated[int, option("Groups to show, the busiest.", min=1)] = 20,
) -> Pages | None:
    """Show a live view of a queue until Ctrl-C. In a pipe it prints one view, after two looks."""
    view = View(on.queue, groups)
    pause = validate_duration("--interval", interval) / SECOND
    if sys.stdout.isatty() and not on.json:
        frames = _frames(view, pause, count)
        with Live(_drawn(next(frames)), screen=True, auto_refresh=False) as screen:
            for frame in frames:
                screen.update(_drawn(frame), refresh=True)
        return None
    if count is None and not on.json:
        view.refresh()  # the rates of the view that is printed come from this one
        time.sleep(pause)
        count = 1
    return Pages(_frames(view, pause, count), _parts)


def _frames(view: View, pause: float, count: int | None) -> Iterator[dict[str, Any]]:
    """Yield a view now and after each pause, so many in all."""
    yield view.refresh()
    while count is None or count > 1:
        time.sleep(pause)
        yield view.refresh()
        count = None if count is None else count - 1


class View:
    """Makes the data of each refresh, with rates since the one before."""

    def __init__(self, queue: Queue, groups: int) -> None:
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
                hottest = max(group.lanes(None), key=lambda one: one.held_back, default=None)
                if hottest is not None and hottest.held_back:
                    found.append({"group": name, **lane_cells(hottest)})
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


def _parts(frame: Mapping[str, Any]) -> Iterator[Part]:
    rate = frame["published_per_second"]
    speed = "" if rate is None else f" ({rate:,.0f}/s)"
    yield f"{frame['queue']}  {show_time(frame['at'])}"
    yield (
        f"published {frame['published']:,}{speed}  dead letters {frame['dead_letters']}  "
        f"groups {frame['group_count']}  last sweep {show_time(frame['last_sweep'])}, "
        f"{frame['commits_waiting']} commits wait"
    )
    for name, columns in _TOP_COLUMNS.items():
        if frame[name]:
            yield ""
            yield Rows(frame[name], columns)


def _drawn(frame: Mapping[str, Any]) -> Stack:
    parts = [
        make_table(part.for_people(), part.columns)
        if isinstance(part, Rows)
        else Text(printable(str(part)))
        for part in _parts(frame)
    ]
    return Stack(*parts)


@command("throughput")
def throughput(
    on: Given,
    since: Annotated[str, option("How far to look back.")] = "1h",
    every: Annotated[str, option("The length of an interval.")] = "1m",
    group: _OnlyGroup = None,
) -> Rows:
    """Show the throughput of a queue in each interval.

    It counts messages that were published, leased, failed and settled. The rates are those of
    publishes, and of messages that were acked, dead-lettered, dropped or expired.
    """
    if group is not None:
        on.existing_group(group)
    found = on.queue.throughput(since=since, every=every, group=group)
    return Rows(found.to_pylist(), _THROUGHPUT_COLUMNS)


@command("changes")
def changes(
    on: Given,
    since: Annotated[str, option("How far to look back.")] = "1d",
    limit: Annotated[int, option("The most changes.", "-n", min=1)] = 100,
    group: _OnlyGroup = None,
) -> Rows:
    """Show the changes that people made, the newest first.

    These are settings, pauses, seeks, redrives and changes of single messages, each with its user.
    """
    if group is not None:
        on.existing_group(group)
    return Rows(on.queue.changes(limit, since=since, group=group), _CHANGE_COLUMNS)


def parse_limit(text: str) -> str | None:
    """Return a limit, or None for "none"."""
    return None if text.lower() == "none" else text


@command("check")
def check(
    on: Given, max_unswept: MaxUnswept = "1h", max_age: MaxAge = None, max_dead: MaxDead = None
) -> Pages:
    """Exit with 1 and a reason if the queue is unhealthy.

    It is unhealthy if it was not swept in time, a group leases nothing, a ledger cannot be read, or
    a limit is exceeded.
    """
    health = on.queue.health(
        max_unswept=parse_limit(max_unswept), max_age=max_age, max_dead=max_dead
    )
    on.exit_code = 0 if health.healthy else FAILED
    return Pages(
        [health], lambda _: ["healthy" if health.healthy else Rows(health.problems, _CHECK_COLUMNS)]
    )
