"""Show all queues, one queue with its blockers, sweeps and changes, and one group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from spark_mq.errors import SparkMQError
from spark_mq.inspect import STATE_NAMES, ChangeRecord, Health, LaneInfo, QueueOverview
from spark_mq.inspect.health import check_health
from spark_mq.ledger.stats import GroupStats, figures_of, state_figures
from spark_mq.util.show import show_age
from spark_mq.web.render import href, render
from spark_mq.web.view import View

__all__ = [
    "batches_page",
    "changes_page",
    "figures",
    "group_page",
    "health_of",
    "home",
    "queue_page",
    "schedules_page",
    "state_bar",
    "sweeps_page",
]

ROWS: Final = 50  # groups of one page of the table
BUSY: Final = 10  # the busiest groups whose workers are listed, and workers of each
MAX_WORKERS: Final = 20
MAX_BLOCKERS: Final = 50
MAX_PROBLEMS: Final = 200
MAX_CHANGES: Final = 200
PERIODS: Final = ("1h", "1d", "7d", "30d")
_STATES: Final = state_figures(GroupStats)
_PAST: Final = ("published", "leased", "acked", "failed")
_CHANGES: Final = {"redriven": "redrive"}  # the word for a change, if its commit has another one
MAX_LEASES: Final = 50
TOP: Final = 20  # the hottest lanes of a table, or the commonest keys
_UNBLOCKS: Final = (
    ("unblock-retry", "Retry what blocks", False),
    ("unblock-dead_letter", "Dead-letter what blocks", False),
    ("unblock-drop", "Drop what blocks", True),
)
LANE_KINDS: Final = ("free", "leased", "held back")


class BriefHealth(NamedTuple):
    """The health of a queue in a few words."""

    text: str
    kind: str  # "good", "warn" or "bad"


@dataclass(frozen=True, slots=True)
class BarPart:
    """A state in a bar of 100 units."""

    name: str
    count: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class StateBar:
    """The messages of some groups by state."""

    parts: list[BarPart]
    total: int
    width: float


@dataclass(frozen=True, slots=True)
class _Row:
    """A queue on the first page, or why it cannot be read."""

    name: str
    error: str = ""
    overview: QueueOverview | None = None
    health: BriefHealth | None = None
    unsettled: int = 0
    oldest: Any = None


def home(view: View) -> str:
    """Show all queues under the path."""
    rows = [_row(view, name, one) for name, one in view.overviews.all().items()]
    template = "home_live.html" if view.text("part") == "live" else "home.html"
    return render(template, view, title="Queues", rows=rows, path=view.overviews.path)


def _row(view: View, name: str, one: QueueOverview | SparkMQError) -> _Row:
    if isinstance(one, SparkMQError):
        return _Row(name, str(one) or type(one).__name__)
    stats = one.groups.values()
    return _Row(
        name,
        overview=one,
        health=_brief_health(view, one),
        unsettled=sum(one.unsettled for one in stats),
        oldest=_oldest(own.oldest_unsettled_age for own in stats),
    )


def _oldest(ages: Iterable[Any]) -> Any:
    return max((age for age in ages if age is not None), default=None)


def health_of(view: View, overview: QueueOverview) -> Health:
    """Return a queue's health under the server's limits."""
    limits = view.health
    return check_health(
        overview,
        datetime.now(UTC),
        max_unswept=limits.max_unswept,
        max_age=limits.max_age,
        max_dead=limits.max_dead,
    )


def _brief_health(view: View, overview: QueueOverview) -> BriefHealth:
    checks = Counter(one.check.replace("_", " ") for one in health_of(view, overview).problems)
    if not checks:
        return BriefHealth("healthy", "good")
    text = ", ".join(one if number == 1 else f"{number} {one}" for one, number in checks.items())
    return BriefHealth(text, "bad" if "unreadable" in checks else "warn")


def state_bar(stats: Iterable[GroupStats]) -> StateBar:
    """Return the messages of some groups by state. Few among many stay visible."""
    counts: Counter[str] = Counter()
    for one in stats:
        counts.update({name: getattr(one, name) for name in _STATES})
    total, at, parts = counts.total(), 0.0, list[BarPart]()
    for name in _STATES:
        width = round(max(100 * counts[name] / total, 0.6), 2) if counts[name] else 0.0
        parts.append(BarPart(name, counts[name], round(at, 2), width))
        at += width
    return StateBar(parts, total, round(max(at, 100), 2))


def queue_page(view: View) -> str:
    """Show one queue, or a part of its page."""
    parts: Mapping[str | None, Callable[[View], str]] = {"work": _work, "past": _past}
    part = view.text("part")
    return parts.get(part, _queue)(view)


def _queue(view: View) -> str:
    overview = view.overview
    stats, search = list(overview.groups.values()), view.text("q")
    number = view.number("page", most=10**9) or 0
    names = [name for name in overview.groups if search is None or search in name]
    names.sort(key=lambda name: (*_busy(overview.groups[name]), name))
    return render(
        "queue_live.html" if view.text("part") == "live" else "queue.html",
        view,
        title=view.name,
        tab="queue",
        overview=overview,
        health=_brief_health(view, overview),
        oldest_unsettled=_oldest(one.oldest_unsettled_age for one in stats),
        oldest_lease=_oldest(one.oldest_lease_age for one in stats),
        bar=state_bar(stats),
        names=names[number * ROWS : (number + 1) * ROWS],
        search=search,
        page=number,
        pages=-(-len(names) // ROWS),
        searchable=len(overview.groups) > ROWS or search is not None,
    )


def _busy(stats: GroupStats) -> tuple[int, ...]:
    return (-bool(stats.blocked_because), -stats.unsettled)


def _work(view: View) -> str:
    groups = view.overview.groups
    busy = sorted((n for n in groups if groups[n].leased), key=lambda n: -groups[n].leased)
    workers = [
        (name, one) for name in busy[:BUSY] for one in view.queue.group(name).workers()[:BUSY]
    ]
    workers.sort(key=lambda pair: -pair[1].messages)
    return render(
        "queue_work.html",
        view,
        workers=workers[:MAX_WORKERS],
        busy=len(busy),
        most_busy=BUSY,
        blockers=view.queue.blockers()[:MAX_BLOCKERS],
    )


def _past(view: View) -> str:
    """Show the sums of the last hour, from the history."""
    rows = view.queue.throughput(since="1h", every="1m").to_pylist()
    return render(
        "queue_past.html", view, sums={name: sum(row[name] for row in rows) for name in _PAST}
    )


def schedules_page(view: View) -> str:
    """Show the schedules with their next and last instants."""
    return render(
        "schedules.html",
        view,
        title="Schedules",
        tab="schedules",
        schedules=view.queue.schedules(),
    )


def batches_page(view: View) -> str:
    """Show the message batches with how much of them is settled."""
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
    """Show what people changed."""
    asked = view.text("since")
    since = asked if asked in PERIODS else "1d"
    changes = view.queue.changes(MAX_CHANGES, since=since)
    return render(
        "changes.html",
        view,
        title="Changes",
        tab="changes",
        changes=[(one, _words(one), one.group or "") for one in changes],
        since=since,
        periods=PERIODS,
        redriven=view.number("redriven"),
    )


def _words(change: ChangeRecord) -> str:
    """Return a change in the glossary's words. A commit may hold several operations."""
    names = change.operation.split("+")
    return ", ".join(_CHANGES.get(one, one.replace("_", " ")) for one in names)


class LaneCell(NamedTuple):
    """A lane with messages in the strip of all lanes."""

    lane: int
    kind: str  # one of LANE_KINDS
    opacity: str
    text: str


def group_page(view: View) -> str:
    """Show one group, a part of its page, or one of its lanes."""
    parts: Mapping[str | None, Callable[[View], str]] = {"notable": _notable, "lanes": _lanes}
    if (part := view.text("part")) in parts:
        return parts[part](view)
    if part != "live" and (lane := view.number("lane")) is not None:
        return _lane(view, lane)
    return _whole(view)


def _whole(view: View) -> str:
    group, stats = view.group()
    return render(
        "group_live.html" if view.text("part") == "live" else "group.html",
        view,
        title=f"Group {group.name}",
        tab="queue",
        name=group.name,
        actions=_actions(stats) if view.allow_changes else [],
        stats=stats,
        figures=figures(stats),
        order=group.settings.order,
        bar=state_bar([stats]),
        state_names=STATE_NAMES,
        leases=group.leases(),
        workers=group.workers(),
        errors=group.last_errors(10),
        most=MAX_LEASES,
        settings=asdict(group.settings),
    )


def figures(stats: GroupStats) -> list[tuple[str, Any]]:
    """Return the figures that the page of a group names."""
    shown = [(one, getattr(stats, name)) for name, one in figures_of(type(stats)).items()]
    return [
        (one.fact, show_age(value) if one.unit == "s" else value)
        for one, value in shown
        if one.fact
    ]


def _actions(stats: GroupStats) -> list[tuple[str, str, bool]]:
    """Return the changes that fit a group, with the text of each button, and if it is red."""
    paused = bool(stats.blocked_because) and not stats.blocked
    found = [(do, do.capitalize(), False) for do in ("resume" if paused else "pause", "seek")]
    found.append(("configure", "Configure", False))
    return [*found, *_UNBLOCKS] if stats.blocked else found


def _notable(view: View) -> str:
    group, _ = view.group()
    found = {"Slowest": group.slowest(5), "Most failing": group.most_failing(5)}
    return render("group_notable.html", view, found=found)


def _lanes(view: View) -> str:
    """Show a group's priorities and lanes, which are empty if it has neither."""
    group, _ = view.group()
    lanes = group.lanes(None)
    numbered = [one for one in lanes if one.lane is not None]
    return render(
        "group_lanes.html",
        view,
        name=group.name,
        priorities=group.priorities(),
        number=view.overview.settings.lanes,
        by_key=group.settings.order == "key",
        lanes=lanes,
        held_back=sum(_kind(one) == "held back" for one in lanes),
        strip=_strip(numbered),
        kinds=[(kind, sum(_kind(one) == kind for one in numbered)) for kind in LANE_KINDS],
        top=TOP,
    )


def _strip(numbered: list[LaneInfo]) -> list[LaneCell]:
    most = max((one.messages for one in numbered), default=0)
    return [
        LaneCell(
            one.lane or 0,
            _kind(one),
            f"{0.25 + 0.75 * one.messages / most:.2f}",
            f"lane {one.lane}, {one.messages:,}" + (f": {one.because}" if one.because else ""),
        )
        for one in numbered
        if one.messages
    ]


def _kind(one: LaneInfo) -> str:
    if one.held_by in ("lease", "limit"):
        return "leased"
    return "held back" if one.held_back else "free"


def _lane(view: View, lane: int) -> str:
    """Show the commonest keys of a lane."""
    group, _ = view.group()
    return render(
        "lane.html",
        view,
        title=f"Lane {lane} of group {group.name}",
        tab="queue",
        crumbs=[(f"Group {group.name}", href("group", view.name, group=group.name))],
        name=group.name,
        keys=group.hot_keys(lane, TOP),
    )
