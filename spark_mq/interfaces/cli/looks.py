"""Look at a queue, or at all queues below a path, again and again, with rates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import SparkMQError
from spark_mq.inspect.health import check_health
from spark_mq.inspect.overview import QueueOverview
from spark_mq.interfaces.cli.output import Column, Part, Rows
from spark_mq.interfaces.cli.queues import group_rows
from spark_mq.interfaces.cli.workers import worker_cells
from spark_mq.queue import Queue
from spark_mq.util.show import show_bars, show_count, show_number, show_short, show_time

__all__ = ["Looks", "QueueLooks", "QueuesLooks"]

_QUEUES: Final[list[Column]] = [
    ("QUEUE", "name"), ("READY", "ready"), ("DELAYED", "delayed"), ("LEASED", "leased"),
    ("DEAD", "dead"), ("LETTERS", "dead_letters"), ("ACKED/S", "acked_per_second"),
    ("LATELY", "lately"), ("PUBLISHED/S", "published_per_second"),
    ("OLDEST", "oldest_unsettled_age"),
    ("GROUPS", "groups"), ("PROBLEM", "problem"),
]  # fmt: skip
_TABLES: Final[Mapping[str, list[Column]]] = {
    "groups": [
        ("GROUP", "group"), ("READY", "ready"), ("DELAYED", "delayed"), ("LEASED", "leased"),
        ("DEAD", "dead"), ("BLOCKED", "blocked"), ("ACKED/S", "acked_per_second"),
        ("DEAD/S", "dead_per_second"), ("LATELY", "lately"),
        ("OLDEST", "oldest_unsettled_age"), ("LEASE", "oldest_lease_age"),
        ("BLOCKED BECAUSE", "blocked_because"),
    ],
    "workers": [
        ("WORKER", "worker_id"), ("GROUP", "group"), ("STATE", "state"), ("LEASES", "leases"),
        ("MESSAGES", "messages"), ("OLDEST", "oldest_lease_age"), ("SEEN", "seen_age"),
    ],
    "held_lanes": [
        ("HELD LANE", "lane"), ("GROUP", "group"), ("MESSAGES", "messages"), ("SHARE", "share"),
        ("AGE", "head_age"), ("HELD BACK", "held_back"), ("BECAUSE", "because"),
    ],
    "errors": [
        ("LAST ERROR", "error"), ("GROUP", "group"), ("STATE", "state"), ("MESSAGES", "messages"),
    ],
}  # fmt: skip
_DETAILED: Final = 10  # the busiest groups, whose workers and errors a refresh reads
_KEPT: Final = 20  # rates in the chart of a row
_SEARCHED_EACH: Final = 30.0  # seconds until new queues are looked for


class Looks(Protocol):
    """Looks at one thing again and again. Rates are those since the look before."""

    title: str

    def refresh(self) -> dict[str, Any]:
        """Return the data of a view."""

    def parts(self, frame: Mapping[str, Any]) -> Iterator[Part]:
        """Yield the lines and tables of a view."""

    def opened(self, row: Mapping[str, Any]) -> Looks | None:
        """Return what the row of the first table stands for, or None if it has no own view."""


@dataclass
class _Rates:
    """The rates of a queue between two looks, and the last ones of each group."""

    before: tuple[float, QueueOverview] | None = None
    lately: dict[str, deque[float]] = field(default_factory=dict)

    def next(self, overview: QueueOverview) -> dict[str, dict[str, Any]]:
        """Return the rates by group, those of the queue under "". The first look has none."""
        now, before = time.monotonic(), self.before
        self.before = (now, overview)
        if before is None:
            return {}
        seconds, earlier = max(1e-9, now - before[0]), before[1]
        found: dict[str, dict[str, Any]] = {}
        for name, stats in overview.groups.items():
            if name in earlier.groups:
                old = earlier.groups[name]
                found[name] = {
                    "acked_per_second": (stats.acked - old.acked) / seconds,
                    "dead_per_second": (stats.dead_lettered - old.dead_lettered) / seconds,
                }
        found[""] = {
            "published_per_second": (overview.published - earlier.published) / seconds,
            "acked_per_second": sum(own["acked_per_second"] for own in found.values()),
        }
        for name, own in found.items():
            kept = self.lately.setdefault(name, deque(maxlen=_KEPT))
            kept.append(own["acked_per_second"])
            own["lately"] = list(kept)
        return found


class QueueLooks:
    """Looks at a queue with its groups, workers, held lanes and errors."""

    def __init__(self, queue: Queue, groups: int) -> None:
        self.title = queue.path
        self._queue, self._groups, self._rates = queue, groups, _Rates()

    def opened(self, row: Mapping[str, Any]) -> Looks | None:
        return None

    def refresh(self) -> dict[str, Any]:
        """Return one view, for which only changes since the last one are read."""
        overview = self._queue.describe()
        rates = self._rates.next(overview)
        busiest = group_rows(overview.groups, max(self._groups, _DETAILED))
        rows = [
            {
                **row,
                **rates.get(row["group"], {}),
                "isolation": overview.groups[row["group"]].isolation,
            }
            for row in busiest
        ]
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
        for name, columns in _TABLES.items():
            if frame[name]:
                yield ""
                yield Rows(frame[name], columns, _cells)

    def _held_lanes(self, names: list[str]) -> list[dict[str, Any]]:
        """Return the lane that holds back most messages in each ordered group."""
        found = []
        for name in names:
            group = self._queue.group(name)
            if group.settings.order == "key":
                hottest = max(group.lanes(None), key=lambda one: one.held_back, default=None)
                if hottest is not None and hottest.held_back:
                    found.append({"group": name, **asdict(hottest)})
        return found

    def _details(self, names: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        workers, errors = [], []
        for name in names:
            group = self._queue.group(name)
            workers += [
                worker_cells({"group": name, **asdict(one)}) for one in group.workers()[:10]
            ]
            errors += [{"group": name, **asdict(one)} for one in group.last_errors(3)]
        workers.sort(key=lambda row: -row["messages"])
        return workers[:10], errors[:10]


class QueuesLooks:
    """Looks at all queues below a path. Those with a problem come first."""

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, str],
        groups: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self._root = root, absolute_path(root).rstrip("/")
        self._options, self._groups, self._clock = storage_options, groups, clock
        self._found: tuple[float, list[str]] | None = None
        self._queues: dict[str, tuple[Queue, _Rates]] = {}

    def paths(self) -> list[str]:
        """Return the paths of the queues, as of a search in the last 30 s."""
        now = self._clock()
        if self._found is None or now - self._found[0] >= _SEARCHED_EACH:
            self._found = now, Queue.find_all(self.title, storage_options=self._options)
        return self._found[1]

    def opened(self, row: Mapping[str, Any]) -> Looks | None:
        known = self._queues.get(row["queue"])
        return None if known is None else QueueLooks(known[0], self._groups)

    def refresh(self) -> dict[str, Any]:
        rows = [self._row(path) for path in self.paths()]
        rows.sort(key=lambda row: (not row["problem"], row["queue"]))
        return {"path": self.title, "at": datetime.now(UTC), "queues": rows}

    def parts(self, frame: Mapping[str, Any]) -> Iterator[Part]:
        rows = frame["queues"]
        troubled = sum(bool(row["problem"]) for row in rows)
        yield f"{frame['path']}  {show_time(frame['at'])}"
        yield f"queues {show_number(len(rows))}  with a problem {show_number(troubled)}"
        yield ""
        yield Rows(rows, _QUEUES, _cells)

    def _row(self, path: str) -> dict[str, Any]:
        name = path.removeprefix(self._root + "/")
        row: dict[str, Any] = {"queue": path, "name": name, "problem": None}
        try:
            if path not in self._queues:
                opened = Queue.open(path, storage_options=self._options)
                self._queues[path] = opened, _Rates()
            queue, rates = self._queues[path]
            overview = queue.describe()
        except SparkMQError as error:
            return {**row, "problem": str(error)}
        stats = overview.groups.values()
        ages = [one.oldest_unsettled_age for one in stats if one.oldest_unsettled_age is not None]
        return {
            **row,
            **rates.next(overview).get("", {}),
            **{
                state: sum(getattr(one, state) for one in stats)
                for state in ("ready", "delayed", "leased", "dead", "blocked")
            },
            "published": overview.published,
            "dead_letters": overview.dead_letters,
            "groups": len(overview.groups),
            "oldest_unsettled_age": max(ages, default=None),
            "problem": _problem(overview),
        }


def _cells(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row for people, with its last rates as bars."""
    return {**row, "lately": show_bars(row["lately"])} if row.get("lately") else row


def _problem(overview: QueueOverview) -> str | None:
    """Return the first reason why a queue is unhealthy, or None."""
    problems = check_health(overview, datetime.now(UTC)).problems
    return problems[0].text if problems else None
