"""Show the priorities and lanes of a group, and a lane's keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_mq.group import ConsumerGroup
from spark_mq.inspect import LaneInfo, PriorityInfo
from spark_mq.util.markup import Child, Html, el, join
from spark_mq.util.show import show_age
from spark_mq.web.charts import LaneCell, lane_strip
from spark_mq.web.layout import count, href, page, table
from spark_mq.web.view import View

__all__ = ["lane_page", "lanes_part"]

TOP: Final = 20  # the hottest lanes of a table, or the commonest keys


def lanes_part(view: View) -> Html:
    """Return a group's priorities and lanes, which are empty if it has neither."""
    group, _ = view.group()
    priorities, lanes = group.priorities(), group.lanes(None)
    return join(
        _priorities(priorities) if len(priorities) > 1 else None,
        _lanes(view, group, lanes) if view.overview.settings.lanes else None,
    )


def _priorities(priorities: Sequence[PriorityInfo]) -> Html:
    rows: list[list[Child]] = [
        [one.priority, one.ready, one.delayed, one.leased, one.dead, one.blocked,
         show_age(one.oldest_age)]
        for one in priorities
    ]  # fmt: skip
    headings = ("Priority", "Ready", "Delayed", "Leased", "Dead", "Blocked", "Oldest")
    return join(el("h2", "Priorities"), table(headings, rows))


def _lanes(view: View, group: ConsumerGroup, lanes: Sequence[LaneInfo]) -> Html:
    number = view.overview.settings.lanes
    if group.settings.order == "key":
        held = [one for one in lanes if _kind(one) == "held back"]
        text = f"Held back: {count(len(held))}."
    else:
        text = "The group has no order, so nothing holds its lanes back."
    cells = [_cell(one) for one in lanes if one.lane is not None]
    more = len(lanes) - TOP
    note = f"The {TOP} of {count(len(lanes))} lanes with most messages." if more > 0 else None
    return join(
        el("h2", f"Lanes ({count(number)})"),
        el("p", text, class_="note"),
        lane_strip(number, cells),
        _table(view, lanes[:TOP]),
        el("p", note, class_="note") if note else None,
    )


def _kind(one: LaneInfo) -> str:
    if one.held_by == "lease":
        return "leased"
    return "held back" if one.held_back else "free"


def _cell(one: LaneInfo) -> LaneCell:
    because = f": {one.because}" if one.because else ""
    return LaneCell(
        one.lane or 0, one.messages, _kind(one), f"lane {one.lane}, {one.messages:,}{because}"
    )


def _table(view: View, lanes: Sequence[LaneInfo]) -> Html:
    rows: list[list[Child]] = [
        [
            _lane_link(view, one), one.messages, f"{one.share:.1%}", one.ready, one.delayed,
            one.leased, one.dead, _message_link(view, one.head), show_age(one.head_age),
            one.held_back, one.because,
        ]
        for one in lanes
    ]  # fmt: skip
    headings = (
        "Lane", "Messages", "Share", "Ready", "Delayed", "Leased", "Dead", "First", "Age",
        "Held back", "Because",
    )  # fmt: skip
    return table(headings, rows, empty="No lane has messages.")


def _lane_link(view: View, one: LaneInfo) -> Child:
    if one.lane is None:
        return "no key"
    address = href("group", view.name, group=view.text("group"), lane=one.lane)
    return el("a", str(one.lane), href=address)


def _message_link(view: View, sequence: int | None) -> Child:
    if sequence is None:
        return "-"
    return el("a", str(sequence), href=href("message", view.name, sequence=sequence))


def lane_page(view: View, lane: int) -> Html:
    group, _ = view.group()
    found = group.hot_keys(lane, TOP)
    rows: list[list[Child]] = [
        [_key_link(view, one.key), one.messages, f"{one.share:.1%}"] for one in found
    ]
    note = "The keys of its first 10,000 unsettled messages."
    back = href("group", view.name, group=group.name)
    return page(
        f"Lane {lane} of group {group.name}",
        el("p", note, class_="note"),
        table(("Key", "Messages", "Share"), rows, empty="The lane has no messages."),
        el("p", el("a", "Back to the group", href=back), class_="turn"),
        queue=view.name,
        view="queue",
    )


def _key_link(view: View, key: str | None) -> Child:
    group = view.text("group")
    return el("a", el("bdi", key or ""), href=href("messages", view.name, group=group, key=key))
