"""Show all queues, one queue with its blockers, sweeps and changes, and one group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from spark_mq.errors import SparkMQError
from spark_mq.inspect import ChangeRecord, LaneInfo, QueueOverview
from spark_mq.interfaces.monitor import HOUR, RANGES
from spark_mq.interfaces.web.charts import (
    Chart,
    group_charts,
    queue_charts,
    settled_chart,
    state_bar,
)
from spark_mq.interfaces.web.view import (
    PageProblem,
    View,
    first_problems,
    health_of,
    lead_with,
    problems_of,
    render,
    unreadable,
)
from spark_mq.ledger.breaker import CLOSED
from spark_mq.ledger.budget import is_stopped, limit_in
from spark_mq.ledger.stats import GroupStats, figures_of
from spark_mq.util.show import show_age
from spark_mq.util.validation import validate_choice

LEADING_EACH: Final = 3  # problems of each queue on the first page
LEADING: Final = 10  # problems that the page of a queue leads with
MAX_CHARTS: Final = 50  # queues of the first page that have a chart
CHARTS_READ: Final = 5  # of them that one request reads
ROWS: Final = 50  # groups of one page of the table
BUSY: Final = 10  # the busiest groups whose workers are listed, and workers of each
MAX_WORKERS: Final = 20
MAX_BLOCKERS: Final = 50
MAX_PROBLEMS: Final = 200
MAX_CHANGES: Final = 200
PERIODS: Final = ("1h", "1d", "7d", "30d")
_CHANGES: Final = {"redriven": "redrive"}  # the word for a change, if its commit has another one
MAX_LEASES: Final = 50
TOP: Final = 20  # the hottest lanes of a table
_UNBLOCKS: Final = (
    ("unblock-retry", "Retry what blocks", False),
    ("unblock-dead_letter", "Dead-letter what blocks", False),
    ("unblock-drop", "Drop what blocks", True),
)
LANE_KINDS: Final = ("free", "leased", "held back")


@dataclass(frozen=True, slots=True)
class _Row:
    """A queue on the first page. Without an overview it cannot be read."""

    name: str
    problems: list[PageProblem]
    overview: QueueOverview | None = None
    worst: str | None = None  # the group with the greatest lag


def home(view: View) -> str:
    """Show what is wrong with the queues under the path, and all of them."""
    rows = [_row(view, name, overview) for name, overview in view.monitor.all().items()]
    rows.sort(key=lambda row: not row.problems)
    readable = [row.name for row in rows if row.overview is not None]
    hours = view.monitor.last_hours(readable[:MAX_CHARTS], CHARTS_READ)
    problems = [problem for row in rows for problem in first_problems(row.problems, LEADING_EACH)]
    return render(
        "home_live.html" if view.text("part") == "live" else "home.html",
        view,
        title="Queues",
        rows=rows,
        path=view.monitor.path,
        charts={name: settled_chart(hour) for name, hour in hours.items()},
        **lead_with(view, problems[:MAX_PROBLEMS], "No queue has a problem." if rows else ""),
    )


def _row(view: View, name: str, overview: QueueOverview | SparkMQError) -> _Row:
    if isinstance(overview, SparkMQError):
        return _Row(name, [unreadable(name, overview)])
    lags = {group: own.unsettled for group, own in overview.groups.items()}
    return _Row(
        name,
        problems_of(view, name, overview),
        overview=overview,
        worst=max(lags, key=lambda group: (lags[group], group), default=None),
    )


def queue_page(view: View) -> str:
    """Show one queue, or a part of its page."""
    parts: Mapping[str | None, Callable[[View], str]] = {"work": _work, "past": _past}
    part = view.text("part")
    return parts.get(part, _queue)(view)


def _queue(view: View) -> str:
    overview, search = view.overview, view.text("q")
    problems = first_problems(problems_of(view, view.name, overview), LEADING)
    number = view.number("page", most=10**9) or 0
    names = [name for name in overview.groups if search is None or search in name]
    names.sort(key=lambda name: (*_busy(overview.groups[name]), name))
    shown = names[number * ROWS : (number + 1) * ROWS]
    limits = {name: _limit(overview.groups[name]) for name in shown}
    return render(
        "queue_live.html" if view.text("part") == "live" else "queue.html",
        view,
        title=view.name,
        tab="queue",
        overview=overview,
        bar_of=state_bar,
        unswept=any(problem.check == "not_swept" for problem in problems),
        limits=limits if any(limits.values()) else {},
        span=_span(view),
        settings={
            name: setting for name, setting in asdict(overview.settings).items() if name != "group"
        },
        names=shown,
        search=search,
        page=number,
        pages=-(-len(names) // ROWS),
        searchable=len(overview.groups) > ROWS or search is not None,
        **lead_with(view, problems, "Nothing is wrong with the queue."),
    )


def _limit(stats: GroupStats) -> str:
    """Return the limit that a group has reached, which ends by itself, or no text."""
    return stats.blocked_because if limit_in(stats.blocked_because) else ""


def _busy(stats: GroupStats) -> tuple[int, ...]:
    return (-is_stopped(stats.blocked_because), -stats.unsettled)


def _work(view: View) -> str:
    groups = view.overview.groups
    busy = sorted((n for n in groups if groups[n].leased), key=lambda n: -groups[n].leased)
    workers = [
        (name, worker) for name in busy[:BUSY] for worker in view.queue.group(name).workers()[:BUSY]
    ]
    workers.sort(key=lambda pair: -pair[1].messages)
    return render(
        "queue_work.html",
        view,
        workers=workers[:MAX_WORKERS],
        busy=len(busy),
        most_busy=BUSY,
        blockers=[blocker for blocker in view.queue.blockers() if blocker.first is not None][
            :MAX_BLOCKERS
        ],
    )


def _past(view: View) -> str:
    return _charts(view, queue_charts(view.monitor.past(view.name, _span(view))))


def _group_past(view: View) -> str:
    group, _ = view.group()
    return _charts(view, group_charts(view.monitor.past(view.name, _span(view)), group.name))


def _span(view: View) -> str:
    return validate_choice("range", view.text("range") or HOUR, tuple(RANGES))


def _charts(view: View, charts: list[Chart]) -> str:
    return render("past.html", view, charts=charts, ranges=RANGES, span=_span(view))


def schedules_page(view: View) -> str:
    return render(
        "schedules.html",
        view,
        title="Schedules",
        tab="schedules",
        schedules=view.queue.schedules(),
    )


def batches_page(view: View) -> str:
    return render(
        "batches.html", view, title="Batches", tab="batches", batches=view.queue.batches()
    )


def sweeps_page(view: View) -> str:
    """Show what is wrong, and what waits for a sweep."""
    health = health_of(view, view.overview)
    return render(
        "sweeps.html",
        view,
        title="Sweeps and health",
        tab="sweeps",
        overview=view.overview,
        health=health,
        problems=health.problems[:MAX_PROBLEMS],
        routed=view.number("routed"),
    )


def changes_page(view: View) -> str:
    asked = view.text("since")
    since = asked if asked in PERIODS else "1d"
    changes = view.queue.changes(MAX_CHANGES, since=since)
    return render(
        "changes.html",
        view,
        title="Changes",
        tab="changes",
        changes=[(change, _words(change), change.group or "") for change in changes],
        since=since,
        periods=PERIODS,
        redriven=view.number("redriven"),
    )


def _words(change: ChangeRecord) -> str:
    """Return a change in the glossary's words. A commit may hold several operations."""
    names = change.operation.split("+")
    return ", ".join(_CHANGES.get(name, name.replace("_", " ")) for name in names)


def group_page(view: View) -> str:
    """Show one group, or a part of its page."""
    parts: Mapping[str | None, Callable[[View], str]] = {
        "notable": _notable, "lanes": _lanes, "past": _group_past,
    }  # fmt: skip
    if (part := view.text("part")) in parts:
        return parts[part](view)
    return _whole(view)


def _whole(view: View) -> str:
    group, stats = view.group()
    own = [
        problem
        for problem in problems_of(view, view.name, view.overview)
        if problem.group == group.name
    ]
    problems = [replace(problem, address="") for problem in own]
    return render(
        "group_live.html" if view.text("part") == "live" else "group.html",
        view,
        title=f"Group {group.name}",
        tab="queue",
        name=group.name,
        actions=_actions(stats) if view.allow_changes else [],
        stats=stats,
        figures=figures(stats),
        limit_of=_limit,
        bar=state_bar(stats),
        leases=group.leases(),
        workers=group.workers(),
        errors=group.last_errors(10),
        most=MAX_LEASES,
        span=_span(view),
        settings=asdict(group.settings),
        **lead_with(view, problems, "Nothing is wrong with the group."),
    )


def figures(stats: GroupStats) -> list[tuple[str, Any]]:
    """Return the figures that the page of a group names."""
    shown = {name: figure for name, figure in figures_of(type(stats)).items() if figure.fact}
    if is_stopped(stats.blocked_because):  # a problem says it
        del shown["breaker"]
    values = {name: getattr(stats, name) for name in shown}
    return [
        (figure.fact, show_age(values[name]) if figure.unit == "s" else values[name])
        for name, figure in shown.items()
    ]


def _actions(stats: GroupStats) -> list[tuple[str, str, bool]]:
    change = "pause" if stats.breaker == CLOSED else "resume"
    actions = [(do, do.capitalize(), False) for do in (change, "seek", "configure")]
    return [*actions, *_UNBLOCKS] if stats.blocked else actions


def _notable(view: View) -> str:
    group, _ = view.group()
    notable = {"Slowest": group.slowest(5), "Most failing": group.most_failing(5)}
    return render("group_notable.html", view, found=notable)


def _lanes(view: View) -> str:
    group, _ = view.group()
    ordered = group.settings.order != "none"
    lanes = group.lanes(None) if ordered else []
    numbered = [lane for lane in lanes if lane.lane is not None]
    return render(
        "group_lanes.html",
        view,
        name=group.name,
        priorities=group.priorities(),
        number=ordered and view.overview.settings.lanes,
        lanes=lanes,
        held_back=sum(_kind(lane) == "held back" for lane in lanes),
        strip=[(lane, _kind(lane)) for lane in numbered if lane.messages],
        kinds=[(kind, sum(_kind(lane) == kind for lane in numbered)) for kind in LANE_KINDS],
        top=TOP,
    )


def _kind(lane: LaneInfo) -> str:
    if lane.held_by in ("lease", "limit"):
        return "leased"
    return "held back" if lane.held_back else "free"
