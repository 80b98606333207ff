"""Show one queue with its states, rates, ages, groups, workers and blockers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from spark_mq.inspect import QueueOverview
from spark_mq.ledger.stats import GroupStats
from spark_mq.util.markup import Child, Html, el, join
from spark_mq.util.show import show_age
from spark_mq.web.charts import Series, line_chart, nice_age, state_bar
from spark_mq.web.layout import count, facts, field, href, lazy, page, size, table, when
from spark_mq.web.looks import Sample
from spark_mq.web.pages.sweeps import health_link
from spark_mq.web.view import View

__all__ = ["charts", "lag_of", "queue_page", "states_of"]

ROWS: Final = 50  # groups of one page of the table
BUSY: Final = 10  # the busiest groups whose workers are listed, and workers of each
MAX_BLOCKERS: Final = 50
_COLOURS: Final = {"published": 1, "acked": 2, "dead-lettered": 3, "failed": 3, "leased": 4}
_HEADINGS: Final = (
    "Group", "Lag", "Ready", "Delayed", "Leased", "Dead", "Acked", "Oldest", "Oldest lease",
    "Stopped because",
)  # fmt: skip


def queue_page(view: View) -> Html:
    part = view.text("part")
    if part == "live":
        return _live(view)
    if part == "work":
        return _work(view)
    if part == "past":
        return _past(view)
    return page(
        view.name,
        _live(view),
        el("h2", "Workers and blockers"),
        lazy(href("queue", view.name, part="work"), every="10s"),
        el("h2", "The last hour"),
        lazy(href("queue", view.name, part="past"), text="Reading the history…"),
        queue=view.name,
        view="queue",
    )


def _live(view: View) -> Html:
    overview = view.overview
    search, number = view.text("q"), view.number("page", most=10**9) or 0
    again = href("queue", view.name, part="live", q=search, page=number or None)
    return el(
        "section",
        _sizes(view, overview),
        state_bar(states_of(list(overview.groups.values()))),
        charts(view.looks.samples(view.name), published=True),
        el("h2", f"Groups ({count(len(overview.groups))})"),
        _damaged(overview),
        _groups(view, overview, search, number),
        hx_get=again,
        hx_trigger="every 5s",
        hx_swap="outerHTML",
    )


def _sizes(view: View, overview: QueueOverview) -> Html:
    sweeps = overview.sweeps
    return facts([
        ("Health", health_link(view, view.name, overview)),
        ("Published", overview.published),
        ("Retained", f"{count(overview.retained)} ({size(overview.retained_bytes)})"),
        ("Last publish", when(overview.last_published_at, view.now)),
        ("Dead letters", overview.dead_letters),
        ("Last sweep", when(sweeps.last_change_at, view.now)),
        ("Commits that wait for a sweep", sweeps.unarchived_commits),
        ("Lanes", overview.settings.lanes or "none"),
    ])  # fmt: skip


def states_of(stats: Sequence[GroupStats]) -> list[tuple[str, int]]:
    """Count the messages of some groups in each state."""
    names = ("ready", "delayed", "leased", "dead", "blocked", "transferring")
    return [(name.replace("_", " "), sum(getattr(one, name) for one in stats)) for name in names]


def charts(samples: Sequence[Sample], *, published: bool) -> Html:
    names = ["published"] if published else []
    rates = [_rate(samples, name) for name in (*names, "acked", "dead")]
    ages = [
        Series("oldest unsettled", [(one.at, one.age) for one in samples], 1),
        Series("oldest lease", [(one.at, one.lease_age) for one in samples], 4),
    ]
    return el(
        "div",
        line_chart("Messages a second", rates, _short),
        line_chart("Ages", ages, show_age, scale=nice_age),
        class_="charts",
    )


def _short(value: float) -> str:
    """Return a number with few digits."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rate(samples: Sequence[Sample], name: str) -> Series:
    """Return the growth of a counter, at least 0, because a seek can make it smaller."""
    points = [
        (after.at, max(0, getattr(after, name) - getattr(before, name)) / (after.at - before.at))
        for before, after in pairwise(samples)
        if after.at > before.at
    ]
    name = "dead-lettered" if name == "dead" else name
    return Series(name, points, _COLOURS[name])


def _damaged(overview: QueueOverview) -> Child:
    return [
        el("p", el("b", name), f": {why}", class_="bad") for name, why in overview.damaged.items()
    ]


def _groups(view: View, overview: QueueOverview, search: str | None, number: int) -> Html:
    names = [name for name in overview.groups if search is None or search in name]
    names.sort(key=lambda name: (*_busy(overview.groups[name]), name))
    pages = -(-len(names) // ROWS)
    shown = names[number * ROWS : (number + 1) * ROWS]
    rows = [_row(view, name, overview.groups[name]) for name in shown]
    empty = "No group has this in its name." if search else "A group's first lease creates it."
    return join(
        _search(view, search) if len(overview.groups) > ROWS or search else None,
        table(_HEADINGS, rows, empty=empty),
        _turn(view, search, number, pages) if pages > 1 else None,
    )


def _busy(stats: GroupStats) -> tuple[int, ...]:
    return (-bool(stats.blocked_because), -lag_of(stats))


def lag_of(stats: GroupStats) -> int:
    """Count the messages that a group has not settled."""
    return sum(number for _, number in states_of([stats]))


def _row(view: View, name: str, stats: GroupStats) -> list[Child]:
    return [
        el("a", name, href=href("group", view.name, group=name)),
        lag_of(stats), stats.ready, stats.delayed, stats.leased, stats.dead, stats.acked,
        show_age(stats.oldest_unsettled_age), show_age(stats.oldest_lease_age),
        el("span", stats.blocked_because, class_="warn"),
    ]  # fmt: skip


def _search(view: View, search: str | None) -> Html:
    """Return a search form that keeps its text when htmx refreshes the live part."""
    return el(
        "form",
        field("Name contains", "q", search),
        el("button", "Search"),
        action=href("queue", view.name),
        class_="row",
        id="search",
        hx_preserve=True,
    )


def _turn(view: View, search: str | None, number: int, pages: int) -> Html:
    def link(text: str, to: int) -> Child:
        inside = 0 <= to < pages
        return el("a", text, href=href("queue", view.name, q=search, page=to)) if inside else None

    middle = f"Page {number + 1} of {pages}"
    return el("p", link("Previous", number - 1), middle, link("Next", number + 1), class_="turn")


def _work(view: View) -> Html:
    groups = view.overview.groups
    busy = sorted((n for n in groups if groups[n].leased), key=lambda n: -groups[n].leased)
    workers: list[tuple[int, list[Child]]] = []
    for name in busy[:BUSY]:
        for one in view.queue.group(name).workers()[:BUSY]:
            link = el("a", name, href=href("group", view.name, group=name))
            row: list[Child] = [
                one.worker_id,
                link,
                one.leases,
                one.messages,
                when(one.since, view.now),
            ]
            workers.append((one.messages, row))
    workers.sort(key=lambda pair: -pair[0])
    headings = ("Worker", "Group", "Leases", "Messages", "Oldest lease since")
    empty = "No worker holds a message."
    return join(
        table(headings, [row for _, row in workers[:20]], empty=empty),
        _of_busiest(len(busy)),
        el("h3", "What blocks"),
        _blockers(view),
    )


def _of_busiest(groups: int) -> Child:
    text = f"Workers of the {BUSY} busiest of {count(groups)} groups."
    return el("p", text, class_="note") if groups > BUSY else None


def _blockers(view: View) -> Html:
    rows: list[list[Child]] = [
        [
            el("a", one.group, href=href("group", view.name, group=one.group)),
            one.blocks,
            one.because,
            None if one.first is None else _message(view, one.first),
            one.messages,
            one.worker_id or "",
            when(one.since, view.now),
            one.error or "",
        ]
        for one in view.queue.blockers()[:MAX_BLOCKERS]
    ]
    headings = ("Group", "Blocks", "Because", "Message", "Wait", "Worker", "Since", "Error")
    return table(headings, rows, empty="Nothing blocks.")


def _message(view: View, sequence: int) -> Html:
    return el("a", str(sequence), href=href("message", view.name, sequence=sequence))


def _past(view: View) -> Html:
    """Return a chart of the last hour, from the history."""
    names = ("published", "leased", "acked", "failed")
    sums: dict[int, dict[str, int]] = {}
    for row in view.queue.throughput(since="1h", every="1m").to_pylist():
        own = sums.setdefault(int(row["at"].timestamp()), dict.fromkeys(names, 0))
        for name in names:
            own[name] += row[name]
    last = int(view.now.timestamp()) // 60 * 60
    minutes = range(last - 3600, last + 60, 60)
    nothing = dict.fromkeys(names, 0)
    series = [
        Series(name, [(at, sums.get(at, nothing)[name]) for at in minutes], _COLOURS[name])
        for name in names
    ]
    chart = line_chart("Messages a minute", series, _short, total="In this hour:")
    return el("div", chart, class_="charts")
