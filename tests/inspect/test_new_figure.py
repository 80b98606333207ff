"""A figure of a group is one field. All that show statistics show it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from support.commands import in_this_process
from support.drivers import Runner
from support.handles import lease
from support.queues import Make

from spark_mq import GroupStats, Queue
from spark_mq.integrations.prometheus import exposition
from spark_mq.ledger.ranges import LEASED
from spark_mq.ledger.stats import GroupFacts, Metric, documented, figure, figures_of, state_figures


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
def queue(delta_queue: Make, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue of nine messages, two leases, and these statistics in the place of the usual."""

    def of(facts: GroupFacts) -> MoreStats:
        return MoreStats(**{name: one.fold(facts) for name, one in figures_of(MoreStats).items()})

    monkeypatch.setattr(GroupStats, "of", of)
    queue = delta_queue()
    queue.publish([str(n) for n in range(9)])
    for _ in range(2):
        lease(queue, 2, "g")
    return queue


def test_a_new_figure_is_in_every_view(queue: Queue) -> None:
    stats, overview = queue.group("g").stats(), queue.describe()
    assert (stats.leased, stats.ready) == (4, 5)
    assert stats.unsettled == sum(getattr(stats, name) for name in state_figures(MoreStats))
    assert stats.to_arrow()["pieces"].to_pylist() == [2]
    assert ">pieces<" in overview._repr_html_()
    text = exposition({queue.path: overview}).decode()
    assert "# HELP spark_mq_leased_ranges Ranges under a lease.\n" in text
    assert f'spark_mq_leased_ranges{{queue="{queue.path}",group="g"}} 2\n' in text
    assert "pieces\n    Ranges under a lease." in (MoreStats.__doc__ or "")


def test_a_command_prints_a_new_figure_and_each_heading(
    queue: Queue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, words = in_this_process(tmp_path, capsys), ("queue", "describe", queue.path, "groups")
    assert run(*words, "-o", "json").row["pieces"] == 2
    head, *_ = run(*words, COLUMNS="500").out.splitlines()
    headings = [one.heading for one in figures_of(GroupStats).values() if one.heading]
    assert re.split("  +", head.strip()) == ["GROUP", *headings]


def test_a_new_figure_is_on_the_page_of_a_group(queue: Queue) -> None:
    pytest.importorskip("starlette")
    from support.forms import client_of

    page = client_of(queue.path).get("/group/queue", params={"group": "g"}).text
    assert "Leased ranges" in page


def test_each_field_of_the_statistics_is_a_figure() -> None:
    assert [one.name for one in fields(GroupStats)] == list(figures_of(GroupStats))


def test_progress_shows_a_new_figure_and_a_listener_has_each(queue: Queue) -> None:
    runner = Runner(queue)
    assert runner.offer()
    shown = runner.source.progress()
    assert shown["pieces"] == 2
    pytest.importorskip("pyspark")
    from spark_mq.spark import StreamProgress

    assert shown.keys() - {"source", "pieces"} <= {one.name for one in fields(StreamProgress)}
