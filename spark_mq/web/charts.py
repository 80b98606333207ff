"""Draw charts as inline SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from spark_mq.util.markup import Html, el, join

__all__ = ["LaneCell", "Series", "lane_strip", "line_chart", "nice_age", "state_bar"]

WIDTH: Final = 420
HEIGHT: Final = 150
_LEFT: Final = 54
_RIGHT: Final = 6
_TOP: Final = 10
_BOTTOM: Final = 22
MAX_POINTS: Final = 400  # of a line. More are thinned out


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]  # seconds since 1970, and values
    colour: int  # 1 to 4. Lines of the same meaning have the same in every chart


def line_chart(
    title: str,
    series: Sequence[Series],
    show: Callable[[float], str],
    *,
    scale: Callable[[float], float] | None = None,
    total: str | None = None,
) -> Html:
    """Return a chart of at most four lines over time, with a legend.

    ``scale`` returns the top of the scale for the largest value. The legend has the sums of the
    lines after the text ``total``, or without it their last values.
    """
    head = el("h3", title)
    times = [at for one in series for at, _ in one.points]
    if not times or max(times) == min(times):
        note = el("p", "The page looks every 5 seconds. A line needs three looks.", class_="note")
        return el("figure", head, note, class_="chart")
    low, high = min(times), max(times)
    top = (scale or _nice)(max(value for one in series for _, value in one.points))
    shown = [(one, _summed(one, show) if total else _last(one, show)) for one in series]
    label = ", ".join(f"{one.name} {value}" for one, value in shown)
    picture = el(
        "svg",
        _grid(low, high, top, show),
        [_line(one, low, high, top) for one in series],
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}: {total or ''} {label}",
    )
    return el("figure", head, picture, _legend(shown, total), class_="chart")


def _legend(shown: Sequence[tuple[Series, str]], total: str | None) -> Html:
    items = [
        el("li", el("b", class_=f"dot s{one.colour}"), one.name, " ", el("strong", value))
        for one, value in shown
    ]
    return el("ul", el("li", total) if total else None, items, class_="legend")


def _last(one: Series, show: Callable[[float], str]) -> str:
    return show(one.points[-1][1]) if one.points else "-"


def _summed(one: Series, show: Callable[[float], str]) -> str:
    return show(sum(value for _, value in one.points))


def _line(one: Series, low: float, high: float, top: float) -> Html:
    step = max(1, -(-len(one.points) // MAX_POINTS))
    points = [*one.points[:-1:step], *one.points[-1:]]
    path = " ".join(f"{_x(at, low, high):.1f},{_y(value, top):.1f}" for at, value in points)
    return el("polyline", points=path, class_=f"line s{one.colour}")


def _grid(low: float, high: float, top: float, show: Callable[[float], str]) -> Html:
    parts = []
    for value in (0.0, top / 2, top):
        y = _y(value, top)
        parts.append(el("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        parts.append(el("text", show(value), x=_LEFT - 5, y=f"{y + 4:.1f}", class_="right"))
    base = HEIGHT - 5
    parts.append(el("text", _clock(low), x=_LEFT, y=base))
    parts.append(el("text", _clock(high), x=WIDTH - _RIGHT, y=base, class_="right"))
    return el("g", parts, class_="grid")


def _x(at: float, low: float, high: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * (at - low) / (high - low)


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / top


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}Z"


def _nice(value: float) -> float:
    """Return a round number that is not smaller, for the top of a scale."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power < value:
        power *= 10
    while power / 10 >= value:
        power /= 10
    return next(power * part for part in (0.2, 0.5, 1.0) if power * part >= value)


def nice_age(value: float) -> float:
    """Return a round age in seconds that is not smaller, for the top of a scale."""
    day = 86_400
    steps = (2, 10, 20, 60, 120, 600, 1200, 3600, 7200, day / 4, day / 2, day)
    return next((float(one) for one in steps if one >= value), _nice(value / day) * day)


@dataclass(frozen=True, slots=True)
class LaneCell:
    lane: int
    messages: int
    kind: str  # one of LANE_KINDS
    text: str


LANE_KINDS: Final = ("free", "leased", "held back")


def lane_strip(number: int, cells: Sequence[LaneCell]) -> Html:
    """Return a strip with a place for each lane, which is darker with more messages."""
    most = max((one.messages for one in cells), default=0)
    if not most:
        return el("p", "No lane has messages.", class_="note")
    parts = [
        el("rect", el("title", one.text), x=one.lane, y=0, width=1, height=4,
           class_=f"lane-{one.kind.replace(' ', '-')}",
           fill_opacity=f"{0.25 + 0.75 * one.messages / most:.2f}")
        for one in cells if one.messages
    ]  # fmt: skip
    counts = [(kind, sum(one.kind == kind for one in cells)) for kind in LANE_KINDS]
    shown = ", ".join(f"{n:,} {kind}" for kind, n in counts)
    strip = el(
        "svg",
        join(*parts),
        viewBox=f"0 0 {number} 4",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"Lanes: {shown}",
        class_="bar lanes",
    )
    names = [
        el("li", el("b", class_=f"dot {kind.replace(' ', '-')}"), kind, " ", el("strong", f"{n:,}"))
        for kind, n in counts
    ]
    return join(strip, el("ul", names, class_="legend lane-kinds"))


def state_bar(counts: Sequence[tuple[str, int]]) -> Html:
    """Return a bar with a part for each state, as wide as its share of the messages."""
    total = sum(count for _, count in counts)
    if not total:
        return el("p", "No message waits.", class_="note")
    parts, at = [], 0.0
    for name, count in counts:
        width = 100 * count / total
        if count:
            width = max(width, 0.6)  # so that a few messages among many can be seen
            title = el("title", f"{name}: {count:,}")
            parts.append(el("rect", title, x=f"{at:.2f}", y=0, width=f"{width:.2f}", height=4,
                            class_=f"state-{name.replace(' ', '-')}"))  # fmt: skip
            at += width
    shown = ", ".join(f"{count:,} {name}" for name, count in counts)
    bar = el(
        "svg",
        join(*parts),
        viewBox=f"0 0 {max(at, 100):.2f} 4",
        preserveAspectRatio="none",
        role="img",
        aria_label=shown,
        class_="bar",
    )
    names = [
        el("li", el("b", class_=f"dot {name.replace(' ', '-')}"), name, " ", el("strong", f"{n:,}"))
        for name, n in counts
    ]
    return join(bar, el("ul", names, class_="legend states"))
