"""The notebook runs from top to bottom, and shows what it says it shows."""

from __future__ import annotations

import ast
import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from spark_mq import Queue

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "explore_queue.ipynb"
PLOTS = 4

Shown = dict[str, tuple[Any, str]]
"""What each cell ended with, and what it printed, by its source."""


def code_cells() -> list[Any]:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


@pytest.fixture
def run(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[[Queue | None], Shown]]:
    """Return a function that runs the cells in the session of the other tests, without a kernel.

    What the notebook changes in the session is undone.
    """
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)  # not beside conf/: its settings are for a session of its own
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run_cells(queue: Queue | None) -> Shown:
        monkeypatch.delenv("SPARK_MQ_QUEUE", raising=False)
        if queue is not None:
            monkeypatch.setenv("SPARK_MQ_QUEUE", queue.path)
        names: dict[str, Any] = {"__name__": "__main__"}
        shown: Shown = {}
        for cell in code_cells():
            tree, last = ast.parse(cell.source), None
            if isinstance(tree.body[-1], ast.Expr):
                last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, str(NOTEBOOK), "exec"), names)
            found = None if last is None else eval(compile(last, str(NOTEBOOK), "eval"), names)
            shown[cell.source] = found, capsys.readouterr().out
        return shown

    yield run_cells
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)
    spark.sparkContext.setLogLevel("OFF")
    plt.close("all")


def of(shown: Shown, word: str) -> tuple[Any, str]:
    """Return what the one cell whose source has `word` ended with, and what it printed."""
    (found,) = [one for source, one in shown.items() if word in source]
    return found


def test_the_notebook_is_stored_without_outputs_and_is_short() -> None:
    cells = code_cells()
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert sum(cell.source.count("\n") + 1 for cell in cells) <= 100


@pytest.mark.slow
def test_the_notebook_shows_the_busiest_group(run: Callable[..., Shown]) -> None:
    shown = run(None)
    group = of(shown, "deliveries, default=None")[0]
    assert group.name == "billing"
    assert "orders" in of(shown, "make_sample")[0]._repr_html_()
    for word, title in (("plot.throughput", "all groups"), ("plot.ages", "group billing")):
        axes = of(shown, word)[0]
        assert axes.get_title("left").endswith(f"orders, {title}")
        assert any(line.get_label() != "published" for line in axes.lines)
    (held,) = of(shown, "leases()")[0]
    assert held.worker_id == "worker-2"
    assert [one.error for one in of(shown, "queue.failures()")[0]] == ["no such customer"]
    assert [one.error for one in of(shown, "most_failing(5")[0]] == ["payment service timed out"]
    states = of(shown, "GROUP BY state")[1].replace(" ", "")
    for state, count in (("dead_lettered", 1), ("leased", held.messages)):
        assert f"|{state}|{count}|" in states
    assert "|available|" in states
    assert '{"order": ' in of(shown, "GROUP BY state")[1]  # no bytes
    stored = of(shown, "DESCRIBE HISTORY")[1]
    assert all(word in stored for word in ("header", "create group", "lease", "worker-2"))


@pytest.mark.slow
def test_the_notebook_runs_on_a_queue_that_lacks_what_it_shows(
    run: Callable[..., Shown], tmp_path: Path
) -> None:
    empty, dead = Queue.create(tmp_path / "empty"), Queue.create(tmp_path / "dead")
    dead.publish(["a", b"\xff"])
    lease = dead.group("g").lease("w", max_messages=2)
    lease.reject([lease.messages[0].sequence], error="no")
    shown = run(empty)
    assert of(shown, "deliveries, default=None") == (None, "no group has leased yet\n")
    assert list(of(shown, "queue.failures()")[0]) == []
    shown = run(dead)
    assert of(shown, "deliveries, default=None")[0].name == "g"
    assert "dead" in of(shown, "GROUP BY state")[1]


@pytest.mark.slow
def test_a_kernel_shows_tables_and_plots_and_no_lines_of_ivy() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    ).execute()
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    html = "".join(str(o.get("data", {}).get("text/html", "")) for o in outputs)
    assert "<th" in html
    assert "worker-2" in html
    plots = [o.data["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert len(plots) == PLOTS
    for plot in plots:
        png = base64.b64decode(plot)
        assert png.startswith(b"\x89PNG")
        assert len(png) > 5_000  # an empty frame is smaller
    errors = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stderr")
    assert "::" not in errors
    assert "[Stage" not in errors
