"""Show queues live with ``spark-mq top``: one queue, or all queues below a path."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.live_render import LiveRender
from rich.table import Table
from rich.text import Text

from spark_mq.errors import SparkMQError
from spark_mq.inspect.health import HealthLimits, check_health
from spark_mq.inspect.overview import QueueOverview
from spark_mq.interfaces.cli.command import Invocation, command, option
from spark_mq.interfaces.cli.output import (
    Column,
    Pages,
    Part,
    Rows,
    columns,
    make_table,
    track,
)
from spark_mq.interfaces.cli.queues import group_rows
from spark_mq.interfaces.cli.workers import worker_cells
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.queue import Queue
from spark_mq.util.clock import SECOND
from spark_mq.util.show import (
    printable,
    show_bars,
    show_count,
    show_number,
    show_short,
    show_time,
)
from spark_mq.util.signals import taking_signals
from spark_mq.util.validation import validate_duration

_QUEUES: Final = columns(
    "name ready delayed leased dead dead_letters acked_per_second lately published_per_second "
    "oldest_unsettled_age groups problem",
    name="QUEUE", dead_letters="LETTERS",
)  # fmt: skip
_TABLES: Final[Mapping[str, list[Column]]] = {
    "groups": columns(
        "group ready delayed leased dead blocked acked_per_second dead_per_second lately "
        "oldest_unsettled_age oldest_lease_age blocked_because",
        oldest_lease_age="LEASE",
    ),
    "workers": columns("worker_id group state leases messages oldest_lease_age seen_age"),
    "held_lanes": columns("lane group messages share head_age held_back because", lane="HELD LANE"),
    "errors": columns("error group state messages", error="LAST ERROR"),
}
_DETAILED: Final = 10  # the busiest groups, whose workers and errors a refresh reads
_KEPT: Final = 20  # rates in the chart of a row


@command("top")
def top(
    ctx: Invocation,
    interval: str = option("How often to refresh.", default="2s"),
    count: int | None = option("End after this many refreshes.", min=1),
    groups: int = option("Groups to show, the busiest.", min=1, default=20),
) -> Pages | None:
    """Show a live view of a queue, or of all queues below a path, until q or Ctrl-C.

    In a pipe it prints one view, with the rates of one interval.
    """
    place = ctx.queue_or_folder()
    view: View = QueueView(place, groups) if isinstance(place, Queue) else FolderView(place)
    pause = validate_duration("--interval", interval) / SECOND
    if count is None and not ctx.json:
        if sys.stdout.isatty() and sys.stdin.isatty():
            _show_live(view, pause)
            return None
        view.refresh()  # the rates of the view that is printed count from here
        time.sleep(pause)
        count = 1
    return Pages(_frames(view, pause, count), view.parts)


def _frames(view: View, pause: float, count: int | None) -> Iterator[dict[str, Any]]:
    yield view.refresh()
    while count is None or count > 1:
        time.sleep(pause)
        yield view.refresh()
        count = None if count is None else count - 1


def _show_live(view: View, pause: float) -> None:
    """Show a view on the whole terminal until the user presses q, or a signal comes."""
    console = Console()

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), taking_signals(interrupt, signal.SIGTERM, signal.SIGINT):
        with track("reading"):
            parts = list(view.parts(view.refresh()))
        live = Live(_screen(console, parts), console=console, screen=True)
        with _single_keys() as terminal:
            try:  # a signal may come while the view opens, so `with` would be too late
                live.start(refresh=True)
                while _waits(terminal, pause):
                    try:
                        parts, problem = list(view.parts(view.refresh())), ""
                    except (SparkMQError, OSError) as error:
                        problem = f"the last refresh failed: {error}"
                    live.update(_screen(console, parts, problem), refresh=True)
            finally:
                live.stop()


def _screen(console: Console, parts: list[Part], problem: str = "") -> LiveRender:
    """Return a view for the terminal, of which the lines that don't fit become an ellipsis."""
    lines: list[Table | Text] = [Text("q ends, any other key refreshes", style="dim")]
    lines += [Text(printable(problem), style="red")] if problem else []
    for part in parts:
        if isinstance(part, Rows):
            lines.append(make_table(part, console))
        else:
            lines.append(Text(printable(str(part))))
    return LiveRender(Group(*lines), vertical_overflow="ellipsis")


@contextmanager
def _single_keys() -> Iterator[int]:
    """Let the terminal pass on each key at once, and yield its descriptor."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _waits(terminal: int, pause: float) -> bool:
    """Wait for a pause or a key. Return False for q, or if the terminal is gone."""
    if not select.select([terminal], [], [], pause)[0]:
        return True
    keys = os.read(terminal, 1024)
    return bool(keys) and b"q" not in keys.lower()


@dataclass
class _Rates:
    """The rates of a queue since its overview before, and the last ones of each group."""

    before: tuple[float, QueueOverview] | None = None
    lately: dict[str, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEPT))
    )

    def next(self, overview: QueueOverview) -> dict[str, dict[str, Any]]:
        """Return the rates by group, those of the queue under "". At first there are none."""
        now, before = time.monotonic(), self.before
        self.before = (now, overview)
        if before is None:
            return {}
        seconds, earlier = max(1e-9, now - before[0]), before[1]
        rates: dict[str, dict[str, Any]] = {}
        for name, stats in overview.groups.items():
            if old := earlier.groups.get(name):
                rates[name] = {
                    "acked_per_second": (stats.acked - old.acked) / seconds,
                    "dead_per_second": (stats.dead_lettered - old.dead_lettered) / seconds,
                }
        rates[""] = {
            "published_per_second": (overview.published - earlier.published) / seconds,
            "acked_per_second": sum(own["acked_per_second"] for own in rates.values()),
        }
        for name, own in rates.items():
            self.lately[name].append(own["acked_per_second"])
            own["lately"] = list(self.lately[name])
        return rates


class QueueView:
    """Shows a queue with its groups, workers, held lanes and errors."""

    def __init__(self, queue: Queue, groups: int) -> None:
        self._queue, self._groups, self._rates = queue, groups, _Rates()

    def refresh(self) -> dict[str, Any]:
        """Return the data of a view, for which only changes since the last one are read."""
        overview = self._queue.describe()
        rates = self._rates.next(overview)
        rows = [
            {
                **row,
                **rates.get(row["group"], {}),
                "isolation": overview.groups[row["group"]].isolation,
            }
            for row in group_rows(overview.groups, max(self._groups, _DETAILED))
        ]
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
            **self._details([row["group"] for row in rows[:_DETAILED]]),
        }

    def _details(self, groups: list[str]) -> dict[str, list[dict[str, Any]]]:
        workers, lanes, errors = [], [], []
        for group in map(self._queue.group, groups):
            named = {"group": group.name}
            workers += [
                worker_cells({**named, **asdict(worker)}) for worker in group.workers()[:10]
            ]
            errors += [{**named, **asdict(error)} for error in group.last_errors(3)]
            if group.settings.order == "key":
                hottest = max(group.lanes(None), key=lambda lane: lane.held_back, default=None)
                if hottest is not None and hottest.held_back:
                    lanes.append({**named, **asdict(hottest)})
        workers.sort(key=lambda row: -row["messages"])
        return {"workers": workers[:10], "held_lanes": lanes, "errors": errors[:10]}

    def parts(self, frame: Mapping[str, Any]) -> Iterator[Part]:
        rate, known = frame["published_per_second"], frame["dead_letters"]
        letters = "unknown" if known is None else show_number(known)
        speed = "" if rate is None else f" ({show_short(rate)}/s)"
        yield f"{frame['queue']}  {show_time(frame['at'])}"
        yield (
            f"published {show_number(frame['published'])}{speed}  dead letters {letters}  "
            f"groups {show_number(frame['group_count'])}  "
            f"last sweep {show_time(frame['last_sweep'])}, "
            f"{show_count(frame['commits_waiting'], 'commit')} waiting"
        )
        for name, why in frame["damaged"].items():
            yield f"group {name} is damaged: {why}"
        for row in frame["groups"]:
            if row["isolation"]:
                yield f"group {row['group']}: {row['isolation']}"
        for name, shown in _TABLES.items():
            if frame[name]:
                yield ""
                yield Rows(frame[name], shown, _cells)


class FolderView:
    """Shows all queues below a path. Those with a problem come first."""

    def __init__(self, monitor: QueueMonitor) -> None:
        self._monitor = monitor
        self._rates: dict[str, _Rates] = defaultdict(_Rates)

    def refresh(self) -> dict[str, Any]:
        paths = self._monitor.queues()
        rows = [
            {"queue": paths[name], "name": name, **self._figures(name, overview)}
            for name, overview in self._monitor.all().items()
        ]
        rows.sort(key=lambda row: (not row["problem"], row["queue"]))
        return {"path": self._monitor.path, "at": datetime.now(UTC), "queues": rows}

    def parts(self, frame: Mapping[str, Any]) -> Iterator[Part]:
        rows = frame["queues"]
        troubled = sum(bool(row["problem"]) for row in rows)
        yield f"{frame['path']}  {show_time(frame['at'])}"
        yield f"queues {show_number(len(rows))}  with a problem {show_number(troubled)}"
        yield ""
        yield Rows(rows, _QUEUES, _cells)

    def _figures(self, name: str, overview: QueueOverview | SparkMQError) -> dict[str, Any]:
        if isinstance(overview, SparkMQError):
            return {"problem": str(overview)}
        groups = overview.groups.values()
        problems = check_health(overview, datetime.now(UTC), HealthLimits()).problems
        return {
            **self._rates[name].next(overview).get("", {}),
            **{
                state: sum(getattr(stats, state) for stats in groups)
                for state in ("ready", "delayed", "leased", "dead", "blocked")
            },
            "published": overview.published,
            "dead_letters": overview.dead_letters,
            "groups": len(overview.groups),
            "oldest_unsettled_age": overview.oldest_unsettled_age,
            "problem": problems[0].text if problems else None,
        }


View = QueueView | FolderView


def _cells(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row, "lately": show_bars(row["lately"])} if row.get("lately") else row
