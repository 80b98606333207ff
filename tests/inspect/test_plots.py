"""What the plots of a queue draw: the data of their lines and bars, and their texts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_mq import ConsumerGroup, Message, Queue
from spark_mq.testing import ManualClock, memory_queue

pytest.importorskip("matplotlib")

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.dates import date2num, num2date

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plt.switch_backend("agg")
    # The plots are in UTC, also where the settings name another zone.
    monkeypatch.setitem(mpl.rcParams, "timezone", "America/New_York")
    yield
    plt.close("all")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def queue(clock: ManualClock) -> Queue:
    return memory_queue(clock, visibility_timeout="1h")


def settle(group: ConsumerGroup, count: int) -> None:
    lease = group.lease("w", max_messages=count)
    lease.ack()


def points(axes: Any, label: str) -> list[tuple[datetime, float | None]]:
    """Return the points of a line. None is a gap."""
    (line,) = [one for one in axes.lines if one.get_label() == label]
    return [
        (num2date(x), None if math.isnan(y) else round(float(y), 6))
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def bars(axes: Any) -> dict[str, list[tuple[float, float, float]]]:
    """Return the place, start and width of each bar by label."""
    return {
        container.get_label(): [
            (round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width())
            for bar in container
        ]
        for container in axes.containers
    }


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def at(minutes: float) -> datetime:
    return NOON + minutes * MINUTE


def test_throughput_has_rates_and_gaps(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["a"] * 120)
    clock.advance(60)
    settle(queue.group("billing"), 30)
    clock.advance(60)
    settle(queue.group("billing"), 60)
    clock.advance(3 * 60)
    settle(queue.group("billing"), 15)
    settle(queue.group("audit"), 12)
    clock.advance(60)
    axes = queue.plot.throughput()
    assert points(axes, "published") == [(at(0), 2.0)]
    assert points(axes, "settled by billing") == [
        (at(1), 0.5), (at(2), 1.0), (at(3), None), (at(5), 0.25),
    ]  # fmt: skip
    assert points(axes, "settled by audit") == [(at(5), 0.2)]
    assert legend(axes) == ["published", "settled by audit", "settled by billing"]
    assert axes.get_ylabel() == "messages per second, in intervals of 1m"
    assert axes.get_xlabel() == "time (UTC)"
    assert axes.get_title("left") == "Throughput: memory, all groups"
    axes.figure.canvas.draw()
    shown = " ".join(label.get_text() for label in axes.get_xticklabels())
    assert "12:0" in shown  # and not 07:0 of New York

    own = queue.plot.throughput(every="2m", group="billing")
    assert points(own, "settled by billing") == [(at(0), 0.25), (at(2), 0.5), (at(4), 0.125)]
    assert own.get_title("left") == "Throughput: memory, group billing"


def test_ages_are_those_of_messages_when_they_were_settled(
    queue: Queue, clock: ManualClock
) -> None:
    group = queue.group("billing")
    queue.publish(["a"] * 18)
    clock.advance(60)
    queue.publish(["b"] * 4)
    clock.advance(60)
    settle(group, 20)  # 18 of an age of 2 minutes, and 2 of one
    clock.advance(8 * 60)
    settle(group, 1)
    axes = queue.plot.ages()
    assert points(axes, "median, billing") == [(at(2), 2.0), (at(3), None), (at(10), 9.0)]
    assert points(axes, "95th percentile, billing")[0] == (at(2), 2.0)
    assert points(axes, "oldest unsettled now, billing") == [(at(10), 9.0)]
    assert axes.get_ylabel() == "age in minutes, in intervals of 1m"
    assert axes.get_title("left") == "Ages when settled: memory, all groups"


def test_quantiles_count_messages_and_not_ranges(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["old"])
    clock.advance(50)
    queue.publish(["new"] * 10)
    clock.advance(10)
    settle(queue.group("g"), 11)
    axes = queue.plot.ages(group="g")
    assert points(axes, "median, g") == [(at(1), 10.0)]
    assert points(axes, "95th percentile, g") == [(at(1), 60.0)]
    assert axes.get_ylabel().startswith("age in seconds")
    assert axes.get_title("left") == "Ages when settled: memory, group g"


def test_ages_of_trimmed_messages_remain(clock: ManualClock) -> None:
    queue = memory_queue(clock, retention="1m")
    queue.publish(["a"] * 10)
    clock.advance(20)
    settle(queue.group("g"), 10)
    before = points(queue.plot.ages(), "median, g")
    clock.advance(600)
    queue.sweep()
    assert not queue.peek()
    assert points(queue.plot.ages(), "median, g") == before == [(at(0), 20.0)]


def test_lanes_have_bars_by_state_and_name_what_holds_them() -> None:
    queue = memory_queue(lanes=8, order="key")
    queue.publish([Message("x", key="a")] * 5 + [Message("x", key="c")] * 3)
    group = queue.group("billing")
    lease = group.lease("w", max_messages=2)
    assert lease is not None
    axes = queue.plot.lanes("billing")
    lanes = group.lanes()
    drawn = bars(axes)
    assert [width for _, _, width in drawn["leased"]] == [one.leased for one in lanes]
    assert [width for _, _, width in drawn["ready"]] == [one.ready for one in lanes]
    # A bar begins where the one of the state before it ends.
    assert [start for _, start, _ in drawn["leased"]] == [one.ready for one in lanes]
    assert "delayed" not in drawn
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        str(one.lane) for one in lanes
    ]
    assert [text.strip() for text in texts(axes)] == [one.held_by for one in lanes]
    assert "lease" in [one.held_by for one in lanes]
    assert axes.yaxis_inverted()  # the hottest lane comes first
    assert axes.get_xlabel() == "unsettled messages"
    assert axes.get_title("left") == "Lanes: memory, group billing"
    assert len(bars(queue.plot.lanes("billing", top=1))["ready"]) == 1


def test_life_has_a_row_for_each_group_and_bars_of_states(queue: Queue, clock: ManualClock) -> None:
    queue.publish([Message("a", message_id="order-1")])
    clock.advance(60)
    lease = queue.group("billing").lease("w")
    clock.advance(30)
    lease.nack(error="no", delay="1m")
    clock.advance(120)
    settle(queue.group("billing"), 1)
    assert queue.group("audit").lease("w") is not None
    clock.advance(60)
    axes = queue.plot.life(message_id="order-1")

    def bar(row: int, start: float, minutes: float) -> tuple[Any, ...]:
        width = date2num(at(start + minutes)) - date2num(at(start))
        return row, pytest.approx(date2num(at(start))), pytest.approx(width)

    drawn = bars(axes)
    assert drawn["leased"] == [bar(0, 1, 0.5), bar(1, 3.5, 1)]  # audit still has it
    assert drawn["available"] == [bar(0, 1.5, 2)]
    assert set(drawn) == {"leased", "available"}  # the lease of no length has none
    assert [label.get_text() for label in axes.get_yticklabels()] == ["billing", "audit"]
    assert texts(axes) == ["leased", "nacked", "leased\nacked", "leased"]
    (published,) = [line for line in axes.lines if line.get_label() == "published"]
    assert published.get_xdata()[0] == date2num(NOON)
    sequence = queue.find(message_id="order-1")[0]
    assert axes.get_title("left") == f"Message {sequence}: memory, all groups"


def test_life_draws_no_lease_that_has_expired_and_follows_redrives(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish(["a"])
    lease = queue.group("g").lease("w", visibility_timeout="1m")
    clock.advance(600)
    sequence = lease.messages[0].sequence
    assert bars(queue.plot.life(sequence)) == {}
    again = queue.group("g").lease("w")
    again.reject(error="no")
    queue.sweep()
    queue.redrive()
    rows = [label.get_text() for label in queue.plot.life(sequence).get_yticklabels()]
    copy = queue.trace(sequence).later[0].sequence
    assert rows == [f"g\n{sequence}", f"g\n{copy}"]


def test_a_plot_of_nothing_says_so(queue: Queue) -> None:
    assert texts(queue.plot.throughput()) == ["nothing happened in the last 1h"]
    assert texts(queue.plot.ages(since="2h")) == ["nothing happened in the last 2h"]
    queue.publish("a")
    queue.group("g").ensure()
    assert texts(queue.plot.lanes("g")) == ["no lane has unsettled messages"]
    assert texts(queue.plot.life(queue.find(message_id=None) or queue.peek()[0].sequence)) == [
        "no group has leased it"
    ]


def test_names_begin_no_formula_and_stay_in_the_legend(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "a$b_$")
    queue.publish(["a"] * 2)
    settle(queue.group("_g"), 1)
    axes = queue.plot.throughput()
    axes.figure.canvas.draw()  # raises for a bad formula
    assert axes.get_title("left") == r"Throughput: a\$b_\$, all groups"
    assert legend(axes)[1:] == ["settled by _g"]


def test_many_groups_leave_the_ten_with_the_most_messages(queue: Queue) -> None:
    queue.publish(["a"] * 30)
    for number in range(12):
        settle(queue.group(f"g{number:02}"), number + 1)
    axes = queue.plot.throughput()
    assert legend(axes) == ["published", *(f"settled by g{number:02}" for number in range(2, 12))]
    assert axes.get_title("left") == "Throughput: memory, 10 of 12 groups"


def test_a_plot_is_drawn_into_given_axes(queue: Queue) -> None:
    queue.publish(["a"])
    settle(queue.group("g"), 1)
    figure, both = plt.subplots(2)
    assert queue.plot.throughput(ax=both[0]) is both[0]
    assert queue.plot.ages(ax=both[1]) is both[1]
    assert plt.get_fignums() == [figure.number]
