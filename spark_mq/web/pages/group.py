"""Show one group with its states, leases, workers, errors and settings."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from spark_mq.inspect import STATE_NAMES
from spark_mq.ledger.stats import GroupStats
from spark_mq.util.markup import Child, Html, el, join
from spark_mq.util.show import show_age, show_duration, show_took
from spark_mq.web.charts import state_bar
from spark_mq.web.layout import button, count, facts, href, lazy, page, table, when
from spark_mq.web.pages.lanes import lane_page, lanes_part
from spark_mq.web.pages.queue import charts, lag_of, states_of
from spark_mq.web.view import View

__all__ = ["group_page", "show_setting"]

MAX_LEASES: Final = 50


def group_page(view: View) -> Html:
    part = view.text("part")
    if part == "live":
        return _live(view)
    if part == "notable":
        return _notable(view)
    if part == "lanes":
        return lanes_part(view)
    if (lane := view.number("lane")) is not None:
        return lane_page(view, lane)
    group, stats = view.group()
    name = group.name
    return page(
        f"Group {name}",
        _buttons(view, name, stats),
        _live(view),
        lazy(href("group", view.name, group=name, part="lanes"), every="10s"),
        el("h2", "Slowest and most failing messages of the last day"),
        lazy(href("group", view.name, group=name, part="notable"), text="Reading the history…"),
        el("h2", "Settings"),
        facts((key, show_setting(value)) for key, value in asdict(group.settings).items()),
        queue=view.name,
        view="queue",
    )


def _live(view: View) -> Html:
    group, stats = view.group()
    stopped = el("p", f"Leases nothing: {stats.blocked_because}", class_="warn")
    return el(
        "section",
        stopped if stats.blocked_because else None,
        facts([
            ("Lag", lag_of(stats)),
            ("Acked", stats.acked),
            ("Dead-lettered", _letters(view, stats)),
            ("Dropped, skipped, expired, lost",
             count(stats.dropped + stats.skipped + stats.expired + stats.lost)),
            ("Oldest unsettled", show_age(stats.oldest_unsettled_age)),
            ("Oldest lease", show_age(stats.oldest_lease_age)),
            ("Breaker", stats.breaker),
            ("Order", "by key" if group.settings.order == "key" else "none"),
            ("Ledger ranges", stats.ledger_ranges),
        ]),
        state_bar(states_of([stats])),
        _states(view, group.name),
        charts(view.looks.samples(view.name, group.name), published=False),
        el("h2", "Leases"),
        _leases(view),
        el("h2", "Workers"),
        _workers(view),
        el("h2", "Last errors"),
        _errors(view),
        hx_get=href("group", view.name, group=group.name, part="live"),
        hx_trigger="every 5s",
        hx_swap="outerHTML",
    )  # fmt: skip


def _letters(view: View, stats: GroupStats) -> Child:
    if not stats.dead_lettered:
        return 0
    return el("a", count(stats.dead_lettered), href=href("letters", view.name))


def _buttons(view: View, name: str, stats: GroupStats) -> Child:
    if not view.allow_changes:
        return None
    paused = bool(stats.blocked_because) and not stats.blocked
    names = ["resume" if paused else "pause", "seek", "configure"]
    names += [f"unblock-{to}" for to in ("retry", "dead_letter", "drop")] if stats.blocked else []
    links = [
        button(do.replace("-", ": ").replace("_", "-").capitalize(),
               href("change", view.name, do=do, group=name))
        for do in names
    ]  # fmt: skip
    return el("p", links, class_="buttons")


def _states(view: View, name: str) -> Html:
    links = [
        el("a", state, href=href("messages", view.name, group=name, state=state))
        for state in STATE_NAMES
    ]
    return el("p", "Messages: ", links, class_="turn")


def _leases(view: View) -> Html:
    group, _ = view.group()
    found = group.leases()
    rows: list[list[Child]] = [
        [
            one.worker_id, one.messages, f"{count(one.messages)} of {count(one.size)}",
            when(one.since, view.now),
            el("span", when(one.until, view.now), class_="warn" if one.expired else None),
            [_interval(view, *pair) for pair in one.positions[:3]],
            el("code", one.lease_id),
        ]
        for one in found[:MAX_LEASES]
    ]  # fmt: skip
    headings = ("Worker", "Messages", "Left", "Since", "Until", "Sequences", "Lease")
    more = len(found) - MAX_LEASES
    note = el("p", f"{count(more)} younger leases are not shown.", class_="note")
    return join(table(headings, rows, empty="No lease."), note if more > 0 else None)


def _interval(view: View, first: int, last: int) -> Html:
    text = f"{first}" if first == last else f"{first} to {last}"
    return el("a", text, " ", href=href("message", view.name, sequence=first))


def _workers(view: View) -> Html:
    group, _ = view.group()
    rows: list[list[Child]] = [
        [one.worker_id, one.leases, one.messages, when(one.since, view.now),
         when(one.until, view.now)]
        for one in group.workers()[:MAX_LEASES]
    ]  # fmt: skip
    headings = ("Worker", "Leases", "Messages", "Since", "Next deadline")
    return table(headings, rows, empty="No worker.")


def _errors(view: View) -> Html:
    group, _ = view.group()
    rows: list[list[Child]] = [
        [one.error, one.state, one.messages,
         el("a", str(one.first), href=href("message", view.name, sequence=one.first)),
         when(one.at, view.now)]
        for one in group.last_errors(10)
    ]  # fmt: skip
    return table(
        ("Error", "State", "Messages", "First", "Last seen"),
        rows,
        empty="No unsettled message has an error.",
    )


def _notable(view: View) -> Html:
    group, _ = view.group()
    parts: list[Child] = []
    for title, found in (("Slowest", group.slowest(5)), ("Most failing", group.most_failing(5))):
        rows: list[list[Child]] = [
            [el("a", str(one.first), href=href("message", view.name, sequence=one.first)),
             one.messages, show_took(one.duration), one.delivery_count, one.failure_count,
             one.state, one.worker_id or "", one.error or ""]
            for one in found
        ]  # fmt: skip
        headings = ("First", "Messages", "Took", "Deliveries", "Failures", "State", "Worker",
                    "Error")  # fmt: skip
        parts += [el("h3", title), table(headings, rows)]
    return join(parts)


def show_setting(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, timedelta):
        return show_duration(value)
    return count(value) if type(value) is int else str(value)
