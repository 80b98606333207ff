"""Charts of what was published and settled, as drawn."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from spark_mq.interfaces.monitor import RANGES, Past
from spark_mq.interfaces.web.charts import Chart, group_charts, queue_charts, settled_chart
from spark_mq.testing import memory_queue

COLUMNS = memory_queue().throughput().schema
UNTIL = datetime(2026, 1, 31, 12, 30, 20, tzinfo=UTC)


def past(*counts: tuple[int, str | None, dict[str, int]], span: str = "1h", **known: Any) -> Past:
    """A past up to UNTIL with the counts of groups, by minutes before it."""
    rows = [
        {
            **{field.name: 0 for field in COLUMNS},
            "at": UNTIL.replace(second=0) - timedelta(minutes=minutes),
            "consumer_group": group,
            **own,
        }
        for minutes, group, own in counts
    ]
    since = {"publishes_since": UNTIL - timedelta(days=90), "events_since": UNTIL - timedelta(90)}
    return Past(span, UNTIL, pa.Table.from_pylist(rows, schema=COLUMNS), **{**since, **known})


def bars(chart: Chart) -> list[tuple[str, int, float, float]]:
    """The bars of a chart as drawn: the series, the place, the bottom and the top, upwards."""
    found = []
    for one in chart.series:
        for x, low, high in re.findall(r"M([0-9.]+) ([0-9.]+)V([0-9.]+)h.8V[0-9.]+z", one.path):
            found.append((one.name, int(float(x)), 40 - float(low), 40 - float(high)))
    return found


def test_a_chart_has_a_bar_for_each_interval_with_events() -> None:
    chart = settled_chart(
        past(
            (60, "g", {"acked": 99}), (59, "g", {"acked": 1}), (2, "g", {"acked": 2, "dropped": 1}),
            (2, "h", {"expired": 1}), (0, "g", {"acked": 2}),
        )
    )  # fmt: skip
    assert (chart.total, chart.most) == (7, 4), "an hour ago is before the first bar"
    assert bars(chart) == [
        ("settled", 0, 0, 10),
        ("settled", 58 - 1, 0, 40),
        ("settled", 59, 0, 20),
    ]
    assert len(chart.intervals) == 60
    assert chart.intervals[0].text == "2026-01-31 11:31 to 11:32: settled 1"
    assert chart.intervals[1].text == "2026-01-31 11:32 to 11:33: none"
    assert chart.intervals[-1].text == "2026-01-31 12:30 so far: settled 2"
    assert bars(settled_chart(past())) == []


def test_a_chart_does_not_show_zeros_for_times_of_which_nothing_is_known() -> None:
    born = UNTIL - timedelta(minutes=10)
    chart = settled_chart(past((5, "g", {"acked": 1}), events_since=born))
    assert (chart.unknown, chart.known_from) == (49, born.replace(second=0))
    assert [one.x for one in chart.intervals] == list(range(49, 60))
    published, settled = queue_charts(past(publishes_since=born))
    assert (published.unknown, settled.unknown) == (49, 0)
    later = settled_chart(past(events_since=UNTIL + timedelta(hours=1)))
    assert (later.unknown, later.intervals) == (60, [])


@pytest.mark.parametrize("span", RANGES)
def test_a_chart_of_each_range_ends_now_and_has_four_ticks(span: str) -> None:
    chart = settled_chart(past((0, "g", {"acked": 1}), span=span))
    assert bars(chart) == [("settled", chart.width - 1, 0, 40)]
    first, *_, last = chart.ticks
    assert len(chart.ticks) == 4
    assert last > UNTIL
    assert chart.width <= 100
    hours = {"1h": 1, "6h": 6, "24h": 24, "7d": 168}[span]
    assert last - first == timedelta(hours=hours)


def test_the_charts_of_a_queue_have_its_busiest_groups_on_each_other() -> None:
    groups = [(5, f"g{number}", {"acked": 10 - number}) for number in range(7)]
    published, settled = queue_charts(past((5, None, {"published": 3}), *groups))
    assert bars(published) == [("published", 54, 0, 40)]
    assert [one.name for one in settled.series] == [*(f"g{n}" for n in range(5)), "other groups"]
    assert settled.series[-1].total == 5 + 4
    drawn = bars(settled)
    assert all(above[2] == pytest.approx(low[3], abs=0.05) for low, above in pairwise(drawn))
    assert drawn[-1][3] == 40
    ends, failed = group_charts(past((5, "g", {"acked": 2, "expired": 1, "failed": 4})), "g")
    assert [(one.name, one.total) for one in ends.series] == [("acked", 2), ("expired", 1)]
    assert (failed.total, failed.title) == (4, "Failed")
    assert [one.total for one in group_charts(past((5, "g", {"acked": 2})), "h")] == [0, 0]
