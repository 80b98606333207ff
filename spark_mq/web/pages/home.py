"""Show all queues under the path, on the first page."""

from __future__ import annotations

from spark_mq.errors import SparkMQError
from spark_mq.inspect import QueueOverview
from spark_mq.util.markup import Child, Html, el
from spark_mq.util.show import show_age
from spark_mq.web.layout import href, number_of, page, table, when
from spark_mq.web.pages.sweeps import health_link
from spark_mq.web.view import View

__all__ = ["home"]

_HEADINGS = (
    "Queue", "Health", "Unsettled", "Dead letters", "Oldest", "Published", "Last publish", "Groups",
)  # fmt: skip


def home(view: View) -> Html:
    live = _live(view)
    return live if view.text("part") == "live" else page("Queues", live)


def _live(view: View) -> Html:
    found = view.looks.all()
    place = el(
        "p", f"{number_of(len(found), 'queue')} under ", el("bdi", view.looks.path), class_="note"
    )
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
        return [link, el("span", str(one), class_="bad"), *[None] * 6]
    groups = one.groups.values()
    ages = [g.oldest_unsettled_age for g in groups if g.oldest_unsettled_age is not None]
    return [
        link,
        health_link(view, name, one),
        sum(g.ready + g.delayed + g.leased + g.dead + g.blocked + g.transferring for g in groups),
        one.dead_letters,
        show_age(max(ages, default=None)),
        one.published,
        when(one.last_published_at, view.now),
        len(one.groups) + len(one.damaged),
    ]
