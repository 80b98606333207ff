"""A figure of a group is one field. All that show statistics show it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.ledger_group import Group

from spark_mq import GroupStats, Queue
from spark_mq.integrations.prometheus import exposition
from spark_mq.interfaces.cli.queues import group_columns, group_rows
from spark_mq.ledger.ranges import LEASED
from spark_mq.ledger.stats import Metric, documented, facts_of, figure, figures_of, state_figures
from spark_mq.streaming.source import show_progress


@documented
@dataclass(frozen=True, slots=True)
class MoreStats(GroupStats):
    """The statistics with a new figure."""

    pieces: int = figure(
        lambda facts: facts.sum(LEASED).ranges,
        "Ranges under a lease.",
        "ranges",
        metric=Metric("spark_mq_leased_ranges", "gauge", "Ranges under a lease."),
        heading="PIECES",
        fact="Leased ranges",
        progress=True,
    )


@pytest.fixture
def more() -> MoreStats:
    group = Group(9)
    group.lease("a", 2)
    group.lease("b", 2)
    return MoreStats.of(facts_of(group.ledger, group.index, group.rules, group.now))


def test_a_new_figure_is_in_every_view(more: MoreStats, queue: Queue) -> None:
    assert (more.pieces, more.leased, more.ready) == (2, 4, 5)
    assert more.to_arrow()["pieces"].to_pylist() == [2]
    groups = {"g": more}
    place: Any = SimpleNamespace(queue_path="/q", name="g")
    assert show_progress(place, more)["pieces"] == 2
    assert ("PIECES", "pieces") in group_columns(MoreStats)
    assert group_rows(groups, 1)[0]["pieces"] == 2
    overview = replace(queue.describe(), groups=groups)
    assert ">pieces<" in overview._repr_html_()
    text = exposition({queue.path: overview}).decode()
    assert "# HELP spark_mq_leased_ranges Ranges under a lease.\n" in text
    assert f'spark_mq_leased_ranges{{queue="{queue.path}",group="g"}} 2\n' in text
    assert "pieces\n    Ranges under a lease." in (MoreStats.__doc__ or "")


def test_a_new_figure_is_on_the_page_of_a_group(more: MoreStats) -> None:
    pytest.importorskip("starlette")
    from spark_mq.interfaces.web.queue_pages import figures

    assert ("Leased ranges", 2) in figures(more)


def test_each_field_of_the_statistics_is_a_figure(more: MoreStats) -> None:
    assert [one.name for one in fields(GroupStats)] == list(figures_of(GroupStats))
    assert more.unsettled == sum(getattr(more, name) for name in state_figures(MoreStats))


def test_a_listener_has_what_progress_shows() -> None:
    pytest.importorskip("pyspark")
    from spark_mq.spark import StreamProgress

    shown = {name for name, one in figures_of(GroupStats).items() if one.progress}
    assert shown <= {one.name for one in fields(StreamProgress)}
