"""Show the sweeps, the health and the changes of a queue."""

from __future__ import annotations

from collections import Counter
from typing import Final

from spark_mq.inspect import ChangeRecord, Health, QueueOverview
from spark_mq.inspect.overview import check_health
from spark_mq.util.markup import Child, Html, el, join
from spark_mq.util.validation import RESERVED_PREFIX
from spark_mq.web.layout import button, count, facts, field, href, number_of, page, table, when
from spark_mq.web.view import View

__all__ = ["changes_page", "health_link", "health_of", "sweeps_page"]

MAX_PROBLEMS: Final = 200
MAX_CHANGES: Final = 200
_CHANGES: Final = {"redriven": "redrive"}  # the word for a change, if its commit has another one
PERIODS: Final = ("1h", "1d", "7d", "30d")


def health_of(view: View, overview: QueueOverview) -> Health:
    """Return a queue's health under the server's limits."""
    limits = view.health
    return check_health(
        overview,
        view.now,
        max_unswept=limits.max_unswept,
        max_age=limits.max_age,
        max_dead=limits.max_dead,
    )


def health_link(view: View, name: str, overview: QueueOverview) -> Html:
    """Return a queue's health in brief, with a link to its problems."""
    checks = Counter(one.check.replace("_", " ") for one in health_of(view, overview).problems)
    if not checks:
        return el("a", "healthy", href=href("sweeps", name), class_="good")
    text = ", ".join(one if number == 1 else f"{number} {one}" for one, number in checks.items())
    kind = "bad" if "unreadable" in checks else "warn"
    return el("a", text, href=href("sweeps", name), class_=kind)


def sweeps_page(view: View) -> Html:
    overview = view.overview
    health, sweeps = health_of(view, overview), overview.sweeps
    rows: list[list[Child]] = [
        [one.check.replace("_", " "), one.group or "", el("span", one.text, class_="bad")]
        for one in health.problems[:MAX_PROBLEMS]
    ]
    word = el("span", "The queue is healthy.", class_="good")
    if not health.healthy:
        text = f"The queue has {number_of(len(health.problems), 'problem')}."
        word = el("span", text, class_="bad")
    sweep = button("Sweep now", href("change", view.name, do="sweep"))
    return page(
        "Sweeps and health",
        _swept(view),
        el("p", word, class_="result"),
        table(("Problem", "Group", "Reason"), rows, empty="Nothing is wrong."),
        el("h2", "Sweeps"),
        facts([
            ("Last change by a sweep", when(sweeps.last_change_at, view.now)),
            ("Oldest commit that waits", when(sweeps.waiting_since, view.now)),
            ("Commits of leases/ that wait", sweeps.unarchived_commits),
            ("Commits of messages/ that wait", sweeps.unindexed_commits),
            ("Trim horizon", _sequence(overview.horizon)),
            ("Last sequence", _sequence(overview.tail)),
        ]),
        el("p", sweep, class_="buttons") if view.allow_changes else None,
        queue=view.name,
        view="sweeps",
    )  # fmt: skip


def _sequence(number: int) -> str:
    return str(number) if number >= 0 else "-"


def _swept(view: View) -> Child:
    """Return what a sweep from this page did, or None without one."""
    if (routed := view.number("routed")) is None:
        return None
    text = f"The sweep is done. It routed {number_of(routed, 'dead message')}."
    return el("p", text, class_="result good")


def _words(operation: str) -> str:
    """Return a change in the glossary's words. A commit may hold several operations."""
    return ", ".join(_CHANGES.get(one, one.replace("_", " ")) for one in operation.split("+"))


def _group(change: ChangeRecord) -> str:
    """Return the group of a change, but not the reserved one of all redrives."""
    name = change.group or ""
    return "" if name.startswith(RESERVED_PREFIX) else name


def changes_page(view: View) -> Html:
    asked = view.text("since")
    since = asked if asked in PERIODS else "1d"
    rows: list[list[Child]] = [
        [
            when(one.at, view.now), _words(one.operation), _group(one), one.user or "",
            one.detail or "", count(one.messages) if one.messages else "",
            "dead-letter queue" if one.in_dead_letters else "queue",
        ]
        for one in view.queue.changes(MAX_CHANGES, since=since)
    ]  # fmt: skip
    form = el(
        "form",
        field("Since", "since", since, options=PERIODS),
        el("button", "Show"),
        action=href("changes", view.name),
        class_="row",
    )
    headings = ("Time", "Change", "Group", "User", "Detail", "Messages", "Made in")
    return page(
        "Changes",
        _done(view),
        join(form, table(headings, rows, empty="Nobody changed anything in this time.")),
        queue=view.name,
        view="changes",
    )


def _done(view: View) -> Child:
    """Return what a change from this page did, or None without one."""
    if (redriven := view.number("redriven")) is not None:
        text = f"Redriven: {number_of(redriven, 'dead letter')}."
        return el("p", text, class_="result good" if redriven else "result warn")
    return el("p", "Done.", class_="result good") if view.text("done") else None
