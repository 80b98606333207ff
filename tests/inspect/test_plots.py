"""What the plots of a queue draw: the data of their lines and bars, and their texts.

Both are approved in plots.txt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.approved import assert_approved

from spark_mq import ConsumerGroup, Message, Queue
from spark_mq.testing import ManualClock, memory_queue

pytest.importorskip("matplotlib")

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.dates import num2date

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plt.switch_backend("agg")
    # The plots are in UTC, also where the settings name another zone.
    monkeypatch.setitem(mpl.rcParams, "timezone", "America/New_York")
    yield
    plt.close("all")


def settle(group: ConsumerGroup, count: int) -> None:
    group.lease("w", max_messages=count).ack()


def show(number: float) -> str:
    """A number of an axis: an instant of this day, or a count."""
    if number < 10_000:
        return f"{round(number, 6):g}"
    return f"{num2date(number, UTC):%H:%M:%S}".removesuffix(":00")


def drawn(axes: Any) -> str:
    """The texts of a plot, the points of its lines, and the bars of each row. ``-`` is a gap."""
    rows = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    lines = [axes.get_title("left"), f"x: {axes.get_xlabel()}", f"y: {axes.get_ylabel()}"]
    lines += [f"rows from the top: {', '.join(rows)}"] if axes.yaxis_inverted() else []
    for line in axes.lines:
        points = zip(line.get_xdata(), line.get_ydata(), strict=True)
        shown = [f"{show(x)} {'-' if math.isnan(y) else show(y)}" for x, y in points]
        label = "without a label" if line.get_label().startswith("_child") else line.get_label()
        lines.append(f"line {label}: {', '.join(shown)}")
    for container in axes.containers:
        for bar in container:
            start, end = bar.get_x(), bar.get_x() + bar.get_width()
            row = rows[round(bar.get_y() + bar.get_height() / 2)]
            lines.append(f"bar {container.get_label()}, row {row}: {show(start)} to {show(end)}")
    lines += [f"text {text.get_text().strip()!r}" for text in axes.texts]
    if (legend := axes.get_legend()) is not None:
        lines.append(f"legend: {', '.join(text.get_text() for text in legend.get_texts())}")
    return "\n".join(lines)


def of_a_busy_hour(clock: ManualClock, queue: Queue) -> Iterator[Any]:
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
    yield axes
    axes.figure.canvas.draw()
    ticks = " ".join(label.get_text() for label in axes.get_xticklabels())
    assert "12:0" in ticks  # and not 07:0 of New York
    yield queue.plot.throughput(every="2m", group="billing")


def of_ages_in_minutes(clock: ManualClock, queue: Queue) -> Iterator[Any]:
    group = queue.group("billing")
    queue.publish(["a"] * 18)
    clock.advance(60)
    queue.publish(["b"] * 4)
    clock.advance(60)
    settle(group, 20)  # 18 of an age of 2 minutes, and 2 of one
    clock.advance(8 * 60)
    settle(group, 1)
    yield queue.plot.ages()


def of_a_range_with_few_messages(clock: ManualClock, queue: Queue) -> Iterator[Any]:
    """The quantiles count messages and not ranges."""
    queue.publish(["old"])
    clock.advance(50)
    queue.publish(["new"] * 10)
    clock.advance(10)
    settle(queue.group("g"), 11)
    yield queue.plot.ages(group="g")


def of_trimmed_messages(clock: ManualClock, queue: Queue) -> Iterator[Any]:
    queue.configure(retention="1m")
    queue.publish(["a"] * 10)
    clock.advance(20)
    settle(queue.group("g"), 10)
    yield queue.plot.ages()
    clock.advance(600)
    queue.sweep()
    assert not queue.peek()
    yield queue.plot.ages()


def of_lanes(clock: ManualClock, _: Queue) -> Iterator[Any]:
    queue = memory_queue(clock, lanes=8, order="key")
    queue.publish([Message("x", key="a")] * 5 + [Message("x", key="c")] * 3)
    queue.group("billing").lease("w", max_messages=2)
    yield queue.plot.lanes("billing")
    yield queue.plot.lanes("billing", top=1)


def of_a_life(clock: ManualClock, queue: Queue) -> Iterator[Any]:
    """The lease of no length has no bar. Group audit still has the message."""
    queue.publish([Message("a", message_id="order-1")])
    clock.advance(60)
    lease = queue.group("billing").lease("w")
    clock.advance(30)
    lease.nack(error="no", delay="1m")
    clock.advance(120)
    settle(queue.group("billing"), 1)
    queue.group("audit").lease("w")
    clock.advance(60)
    yield queue.plot.life(message_id="order-1")


def of_an_expired_lease_and_a_redrive(clock: ManualClock, queue: Queue) -> Iterator[Any]:
    (sequence,) = queue.publish(["a"]).sequences
    queue.group("g").lease("w", visibility_timeout="1m")
    clock.advance(600)
    yield queue.plot.life(sequence)
    queue.group("g").lease("w").reject(error="no")
    queue.sweep()
    queue.redrive()
    yield queue.plot.life(sequence)


def of_nothing(_: ManualClock, queue: Queue) -> Iterator[Any]:
    yield queue.plot.throughput()
    yield queue.plot.ages(since="2h")
    (sequence,) = queue.publish("a").sequences
    queue.group("g").ensure()
    yield queue.plot.lanes("g")
    yield queue.plot.life(sequence)


def of_many_groups(_: ManualClock, queue: Queue) -> Iterator[Any]:
    """Ten with the most messages stay."""
    queue.publish(["a"] * 30)
    for number in range(12):
        settle(queue.group(f"g{number:02}"), number + 1)
    yield queue.plot.throughput()


SCENES: tuple[Callable[[ManualClock, Queue], Iterator[Any]], ...] = (
    of_a_busy_hour, of_ages_in_minutes, of_a_range_with_few_messages, of_trimmed_messages,
    of_lanes, of_a_life, of_an_expired_lease_and_a_redrive, of_nothing, of_many_groups,
)  # fmt: skip


def test_plots_are_as_they_were_approved() -> None:
    texts = []
    for scene in SCENES:
        clock = ManualClock(NOON)
        queue = memory_queue(clock, visibility_timeout="1h")
        title = scene.__name__.replace("_", " ")
        texts += [(f"{title} {n}", drawn(axes)) for n, axes in enumerate(scene(clock, queue), 1)]
    assert_approved(Path(__file__).parent / "plots.txt", texts)


def test_names_begin_no_formula_and_stay_in_the_legend(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "a$b_$")
    queue.publish(["a"] * 2)
    settle(queue.group("_g"), 1)
    axes = queue.plot.throughput()
    axes.figure.canvas.draw()  # raises for a bad formula
    assert axes.get_title("left") == r"Throughput: a\$b_\$, all groups"
    assert axes.get_legend().get_texts()[1].get_text() == "settled by _g"


def test_a_plot_is_drawn_into_given_axes() -> None:
    queue = memory_queue()
    queue.publish(["a"])
    settle(queue.group("g"), 1)
    figure, both = plt.subplots(2)
    assert queue.plot.throughput(ax=both[0]) is both[0]
    assert queue.plot.ages(ax=both[1]) is both[1]
    assert plt.get_fignums() == [figure.number]
