"""Draw a queue with matplotlib: its throughput, ages and lanes, and the life of a message."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.inspect.activity import ENDS, MAX_BUCKETS, throughput
from spark_mq.inspect.lanes import list_lanes
from spark_mq.inspect.leases import locate
from spark_mq.inspect.peek import named_sequences
from spark_mq.inspect.stats import StatsReader
from spark_mq.ledger.states import (
    AVAILABLE,
    BLOCKED,
    DEAD,
    DELAYED,
    LEASED,
    READY,
    TRANSFERRING,
)
from spark_mq.operations.context import QueueContext, group_not_found
from spark_mq.operations.history import read_history
from spark_mq.operations.trace import Trace, TraceEvent, trace
from spark_mq.util.clock import SECOND, Duration, to_datetime
from spark_mq.util.loading import load_library
from spark_mq.util.show import printable, show_duration, show_number
from spark_mq.util.validation import validate_count, validate_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Ages = dict[datetime, list[tuple[float, int]]]  # seconds and messages, by interval

_COLUMNS: Final = ("committed_at", "consumer_group", "outcome", "first", "last")

_MAX_GROUPS: Final = 10  # of one plot: more colours look alike
_MAX_NAME: Final = 40  # characters of a name that others chose
_GREY: Final = "#566273"
_COLOURS: Final = {
    READY: "#2563c9",
    DELAYED: "#8fb3ea",
    AVAILABLE: "#8fb3ea",
    LEASED: "#15803d",
    BLOCKED: "#c27803",
    DEAD: "#b3141f",
    TRANSFERRING: "#7e3fbf",
}
"""The colours of states on the web page."""
_PARTS: Final = ((0.5, "median", "-"), (0.95, "95th percentile", "--"))
_UNITS: Final = (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0), ("seconds", 1.0))


class QueuePlots:
    """Draw the views of a queue with matplotlib, which is the extra ``plot``.

    Each method draws into ``ax``, by default into a new figure, and returns its ``Axes``. Times are
    in UTC. A line has a gap where nothing happened. A plot over time has the 10 groups with the
    most messages.
    """

    def __init__(self, context: QueueContext) -> None:
        self._context = context

    def throughput(
        self,
        *,
        since: Duration = "1h",
        every: Duration = "1m",
        group: str | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw how many messages were published, and settled by each group, per second.

        The parameters are those of :meth:`spark_mq.Queue.throughput`. Raises GroupNotFound without
        such a group.
        """
        rates: dict[str | None, dict[datetime, float]] = defaultdict(dict)
        messages: Counter[str] = Counter()
        rows = throughput(self._context, since=since, every=every, group=group)
        for row in rows.to_pylist():
            name, what = row["consumer_group"], "settled"
            if name is None:
                what = "published"
            else:
                messages[name] += sum(row[end] for end in ENDS)
            rates[name][row["at"]] = row[f"{what}_per_second"]
        names = self._busiest(group, messages)
        axes, length = _new_axes(ax), _timedelta("every", every)
        _line(axes, rates[None], length, label="published", colour=_GREY)
        for colour, name in enumerate(names):
            label = f"settled by {_text(name)}"
            _line(axes, rates[name], length, label=label, colour=f"C{colour}")
        axes.set_ylabel(f"messages per second, in intervals of {show_duration(length)}")
        self._finish(axes, "Throughput", _show_drawn(group, names, messages), since)
        return axes

    def ages(
        self,
        *,
        since: Duration = "1h",
        every: Duration = "1m",
        group: str | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the ages at which each group settled messages: median and 95th percentile.

        An age counts from the commit that published the message. A cross is the age of a group's
        oldest unsettled message now. The parameters are those of :meth:`spark_mq.Queue.throughput`.
        Raises GroupNotFound without such a group.
        """
        by_group = _settled_ages(self._context, since, every, group)
        messages: Counter[str] = Counter()
        oldest: dict[str, float] = {}
        for name, stats in StatsReader(self._context).read().items():
            if group in (None, name) and stats.oldest_unsettled_age is not None:
                oldest[name] = stats.oldest_unsettled_age.total_seconds()
                messages[name] = 0
        for name, ages in by_group.items():
            messages[name] = sum(map(_count_messages, ages.values()))
        names = self._busiest(group, messages)
        lines = [
            (
                name,
                label,
                style,
                {at: _age_of_part(some, part) for at, some in by_group[name].items()},
            )
            for name in names
            if name in by_group
            for part, label, style in _PARTS
        ]
        greatest = max([*oldest.values(), *(age for *_, line in lines for age in line.values())],
                       default=0.0)  # fmt: skip
        unit, seconds = next((unit for unit in _UNITS if greatest >= 2 * unit[1]), _UNITS[-1])
        axes, length = _new_axes(ax), _timedelta("every", every)
        colours = {name: f"C{number}" for number, name in enumerate(names)}
        for name, part, style, line in lines:
            scaled = {at: age / seconds for at, age in line.items()}
            label, colour = f"{part}, {_text(name)}", colours[name]
            _line(axes, scaled, length, label=label, colour=colour, style=style)
        for name in sorted(oldest.keys() & colours.keys()):
            now = {to_datetime(self._context.now()): oldest[name] / seconds}
            label, colour = f"oldest unsettled now, {_text(name)}", colours[name]
            _line(axes, now, length, label=label, colour=colour, style="", marker="x")
        axes.set_ylabel(f"age in {unit}, in intervals of {show_duration(length)}")
        self._finish(axes, "Ages when settled", _show_drawn(group, names, messages), since)
        return axes

    def lanes(
        self, group: str, *, top: int = 20, by: str = "messages", ax: Axes | None = None
    ) -> Axes:
        """Draw the messages by state in the lanes of a group, with what holds a lane back.

        The parameters are those of :meth:`spark_mq.ConsumerGroup.lanes`, with 1 to 100 lanes.
        Raises GroupNotFound if there is no such group.
        """
        ledger = self._context.group(group)
        ledger.require_group()
        lanes = list_lanes(ledger, validate_count("top", top, most=100), by)
        axes, places, ends = _new_axes(ax), range(len(lanes)), [0] * len(lanes)
        for state in (READY, DELAYED, LEASED, BLOCKED, DEAD):
            counts = [getattr(lane, state) for lane in lanes]
            if any(counts):
                axes.barh(places, counts, left=ends, color=_COLOURS[state], label=state)
                ends = [end + count for end, count in zip(ends, counts, strict=True)]
        for place, lane in enumerate(lanes):
            axes.annotate(f" {lane.held_by}", (ends[place], place), va="center", color=_GREY)
        axes.set_yticks(
            places, ["no key" if lane.lane is None else str(lane.lane) for lane in lanes]
        )
        axes.set_ylabel("lane")
        axes.set_xlabel("unsettled messages")
        axes.locator_params(axis="x", integer=True)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * max(ends, default=1))
        self._title(axes, "Lanes", f"group {_text(group)}")
        _legend(axes, bool(lanes), "no lane has unsettled messages")
        return axes

    def life(
        self,
        sequence: int | None = None,
        *,
        message_id: str | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the events of a message, and its states between them, in a row for each group.

        The rows of its redrives follow. There is no bar where the state is not known. The message
        is that with the sequence, or the newest one with the id. Raises InvalidOption if there is
        none, or unless exactly one of the two is given.
        """
        (asked,) = named_sequences(self._context, sequence, {"message_id": message_id})
        chain = trace(self._context, asked).chain()
        number = _dates().date2num
        axes, rows = _new_axes(ax), list[str]()
        axes.axvline(number(chain[0].published_at), color=_GREY, linestyle=":", label="published")
        bars: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
        for life in chain:
            for group in dict.fromkeys(event.group for event in life.events):
                events = [event for event in life.events if event.group == group]
                times = [number(event.at) for event in events]
                end = self._end(life, events[-1])
                for event, start, stop in zip(events, times, [*times[1:], end], strict=True):
                    if stop is not None and stop > start and event.state in _COLOURS:
                        bars[event.state].append((len(rows), start, stop - start))
                _events(axes, len(rows), events, times)
                rows.append(_text(group) + (f"\n{life.sequence}" if len(chain) > 1 else ""))
        for state, some in bars.items():
            places, starts, widths = zip(*some, strict=True)
            axes.barh(places, widths, 0.3, left=starts, color=_COLOURS[state], label=state)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylabel("group")
        axes.set_ylim(max(len(rows), 1) - 0.4, -0.9)
        axes.margins(x=0.15)
        self._title(axes, f"Message {asked}", "all groups")
        _time_axis(axes)
        _legend(axes, bool(rows), "no group has leased it")
        return axes

    def _end(self, life: Trace, last: TraceEvent) -> float | None:
        """Return the present if a message is still in the state of its last event, or None."""
        places = locate(self._context, life.sequence, life.outcomes)
        states = [place.state for place in places if place.group == last.group]
        due = (READY, DELAYED) if last.state == AVAILABLE else (last.state,)
        if not set(due) & set(states):
            return None
        now = to_datetime(self._context.now())
        return float(_dates().date2num(now))

    def _busiest(self, group: str | None, messages: Mapping[str, int]) -> list[str]:
        """Return the groups to draw. Raise GroupNotFound for one without ledger and history."""
        if group is not None and group not in {*messages, *self._context.ledgers.groups()}:
            raise group_not_found(self._context, group)
        ordered = sorted(messages, key=lambda name: (-messages[name], name))
        return sorted(ordered[:_MAX_GROUPS])

    def _title(self, axes: Axes, what: str, groups: str) -> None:
        axes.set_title(f"{what}: {_text(self._context.name)}, {groups}", loc="left")

    def _finish(self, axes: Axes, what: str, groups: str, since: Duration) -> None:
        self._title(axes, what, groups)
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
        _time_axis(axes)
        span = show_duration(_timedelta("since", since))
        _legend(axes, bool(axes.lines), f"nothing happened in the last {span}")


def _timedelta(name: str, given: Duration) -> timedelta:
    return timedelta(microseconds=validate_duration(name, given))


def _new_axes(ax: Axes | None) -> Axes:
    """Return the given axes, or those of a new figure, which a notebook shows by itself."""
    if ax is not None:
        return ax
    pyplot: Any = load_library("matplotlib.pyplot", "queue.plot", "plot")
    axes: Axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")[1]
    return axes


def _dates() -> Any:
    return load_library("matplotlib.dates", "queue.plot", "plot")


def _time_axis(axes: Axes) -> None:
    dates = _dates()
    locator = dates.AutoDateLocator(tz=UTC)  # not the zone of matplotlib's settings
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel("time (UTC)")


def _legend(axes: Axes, anything: bool, nothing: str) -> None:
    """Name what is drawn, or say that there is nothing."""
    if anything:
        axes.legend(fontsize="small")
    else:
        axes.text(0.5, 0.5, nothing, transform=axes.transAxes, ha="center", va="center")


def _line(
    axes: Axes,
    values: Mapping[datetime, float],
    every: timedelta,
    *,
    label: str,
    colour: str,
    style: str = "-",
    marker: str = ".",
) -> None:
    """Draw values at the starts of intervals. The line ends before an interval without a value."""
    if not values:
        return
    dates = _dates()
    points: list[tuple[datetime, float]] = []
    for at, value in sorted(values.items()):
        if points and at - points[-1][0] > every:
            points.append((points[-1][0] + every, math.nan))
        points.append((at, value))
    times, shown = zip(*points, strict=True)
    axes.plot(
        dates.date2num(times), shown, marker=marker, linestyle=style, color=colour, label=label
    )


def _events(axes: Axes, row: int, events: list[TraceEvent], times: list[float]) -> None:
    texts: dict[float, list[str]] = defaultdict(list)
    for event, at in zip(events, times, strict=True):
        ended = event.outcome not in (None, event.event)
        texts[at].append(f"{event.event}: {event.outcome}" if ended else event.event)
    axes.plot(list(texts), [row] * len(texts), "o", color="#1b2430", markersize=4)
    for at, some in texts.items():
        axes.annotate("\n".join(some), (at, row), xytext=(0, 10), textcoords="offset points",
                      fontsize="small", rotation=15)  # fmt: skip


def _text(name: str) -> str:
    """Return a name that others chose. A dollar in it begins no formula."""
    shown = printable(name)
    return (shown if len(shown) <= _MAX_NAME else shown[:_MAX_NAME] + "…").replace("$", r"\$")


def _show_drawn(group: str | None, drawn: Collection[str], all_groups: Collection[str]) -> str:
    if group is not None:
        return f"group {_text(group)}"
    if len(drawn) == len(all_groups):
        return "all groups"
    return f"{len(drawn)} of {show_number(len(all_groups))} groups"


def _settled_ages(
    context: QueueContext, since: Duration, every: Duration, group: str | None
) -> dict[str, _Ages]:
    """Return the ages of settled messages by group, from the commits that published them."""
    span, length = validate_duration("since", since), validate_duration("every", every)
    validate_count("since/every", -(-span // length), most=MAX_BUCKETS)
    start = (context.now() - span) // length * length
    rows = read_history(context, group=group, since=start, columns=_COLUMNS)
    rows = rows.filter(pc.is_in(rows["outcome"], value_set=pa.array(ENDS)))
    by_group: dict[str, _Ages] = {}
    if not rows.num_rows:
        return by_group
    index = context.messages.full_index(pc.min(rows["first"]).as_py())
    names = ("committed_at", "consumer_group", "first", "last")
    rows = rows.set_column(0, "committed_at", rows["committed_at"].cast(pa.int64()))
    for at, name, first, last in zip(*(rows[column].to_pylist() for column in names), strict=True):
        some = by_group.setdefault(name, defaultdict(list))[to_datetime(at // length * length)]
        for piece in index.slices(first, last):
            some.append((max(0, at - piece.committed_at) / SECOND, piece.rows))
    return by_group


def _age_of_part(ages: Sequence[tuple[float, int]], part: float) -> float:
    """Return the least age that a part of the messages does not exceed, such as 0.5 of them."""
    left = math.ceil(part * _count_messages(ages))
    for age, count in sorted(ages):
        left -= count
        if left <= 0:
            return age
    return math.nan


def _count_messages(ages: Iterable[tuple[float, int]]) -> int:
    return sum(count for _, count in ages)
