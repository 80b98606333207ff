"""Show one group with its states, leases, lanes, workers, errors and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from spark_mq.inspect import STATE_NAMES, LaneInfo
from spark_mq.ledger.stats import GroupStats, figures_of
from spark_mq.util.show import show_age
from spark_mq.web.queue_pages import state_bar
from spark_mq.web.render import render
from spark_mq.web.view import View

__all__ = ["figures", "group_page"]

MAX_LEASES: Final = 50
TOP: Final = 20  # the hottest lanes of a table, or the commonest keys
LANE_KINDS: Final = ("free", "leased", "held back")


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
    return _group(view)


def _group(view: View) -> str:
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


def _actions(stats: GroupStats) -> list[tuple[str, str]]:
    """Return the changes that fit a group, each with the text of its button."""
    paused = bool(stats.blocked_because) and not stats.blocked
    names = ["resume" if paused else "pause", "seek", "configure"]
    names += [f"unblock-{to}" for to in ("retry", "dead_letter", "drop")] if stats.blocked else []
    return [(do, do.replace("-", ": ").replace("_", "-").capitalize()) for do in names]


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
    if one.held_by == "lease":
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
        name=group.name,
        keys=group.hot_keys(lane, TOP),
    )
