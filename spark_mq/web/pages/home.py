"""Show all queues under the path, on the first page."""

from __future__ import annotations

from spark_mq.errors import SparkMQError
from spark_mq.inspect import QueueOverview
from spark_mq.util.markup import Child, Html, el
from spark_mq.util.show import show_age
from spark_mq.web.layout import href, page, table, when
from spark_mq.web.view import View

__all__ = ["home"]

_HEADINGS = (
    "Queue", "Published", "Groups", "Unsettled", "Dead letters", "Oldest", "Last publish", "State",
)  # fmt: skip


def home(view: View) -> Html:
    """Show the queues, or only their live part.

    The request decides.
    """
    live = _live(view)
    return live if view.text("part") == "live" else page("Queues", live)


def _live(view: View) -> Html:
    found = view.looks.all()
    place = el("p", f"{len(found)} queues under ", el("bdi", view.looks.path), class_="note")
    rows = [_row(view, name, one) for name, one in found.items()]
    empty = "There is no queue. `spark-mq queue create PATH` creates one."
    return el(
        "section",
        place,
        table(_HEADINGS, rows, empty=empty),
        hx_get="/?part=live",
        hx_trigger="every 5s",
        hx_swap="outerHTML",
    )


def _row(view: View, name: str, one: QueueOverview | SparkMQError) -> list[Child]:
    link = el("a", name, href=href("queue", name))
    if isinstance(one, SparkMQError):
        return [link, *[None] * 6, el("span", str(one), class_="bad")]
    groups = one.groups.values()
    ages = [g.oldest_unsettled_age for g in groups if g.oldest_unsettled_age is not None]
    return [
        link,
        one.published,
        len(one.groups) + len(one.damaged),
        sum(g.ready + g.delayed + g.in_flight + g.dead + g.blocked + g.routing for g in groups),
        one.dead_letters,
        show_age(max(ages, default=None)),
        when(one.last_published_at, view.now),
        _state(name, one),
    ]


def _state(name: str, one: QueueOverview) -> Html:
    stopped = sum(bool(stats.blocked_because) for stats in one.groups.values())
    if one.damaged:
        return el("a", f"{len(one.damaged)} damaged", href=href("sweeps", name), class_="bad")
    if stopped:
        return el("a", f"{stopped} stopped", href=href("sweeps", name), class_="warn")
    return el("span", "ok", class_="good")
