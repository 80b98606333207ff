"""The notebook runs from top to bottom, and shows what it says it shows."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from spark_mq import Queue

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "explore_queue.ipynb"


@pytest.fixture(scope="module")
def executed() -> Any:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    run(notebook)
    return notebook


def run(notebook: Any) -> None:
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    ).execute()


def printed(notebook: Any, word: str) -> str:
    """What the one code cell whose source has `word` printed."""
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and word in c.source]
    return "".join(
        o.get("text", "") for o in cell.outputs if o.output_type == "stream" and o.name == "stdout"
    )


@pytest.fixture
def shared(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The session of the other tests. What the notebook changes in it is undone."""
    import matplotlib.pyplot as plt

    monkeypatch.delenv("SPARK_MQ_QUEUE", raising=False)
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)  # not beside conf/: its settings are for a session of its own
    yield spark
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)
    spark.sparkContext.setLogLevel("OFF")
    plt.close("all")


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.usefixtures("shared")
def test_the_cells_of_the_notebook_run_in_a_session_that_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    shown: dict[str, str] = {}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code" and "spark.stop()" not in cell.source:
            exec(compile(cell.source, str(NOTEBOOK), "exec"), names)
            shown[cell.source] = capsys.readouterr().out
    assert_states(next(text for source, text in shown.items() if "TempView(view)" in source))
    assert len(names["figure"].axes) == 1
    (life,) = [text for source, text in shown.items() if "Counter(queue.finished" in source]
    assert "'dead_lettered': 60" in life
    assert "group billing settled it: dead_lettered  reason: rejected  error: no such" in life


def assert_states(printed: str) -> None:
    """The counts of the sample queue, by state."""
    lines = [line.replace(" ", "") for line in printed.splitlines()]
    for state, count in (("leased", 390), ("available", 100), ("dead", 10), ("unread", 600)):
        assert any(f"|{state}" in line and f"|{count}|" in line for line in lines), printed


@pytest.mark.spark
@pytest.mark.slow
def test_the_notebook_shows_states_history_an_earlier_version_and_dead_letters(
    executed: Any,
) -> None:
    assert_states(printed(executed, "createOrReplaceTempView(view)"))
    assert all(
        word in printed(executed, "DESCRIBE HISTORY")
        for word in ("create group", "lease", "reject", "freeze dead", "worker-2")
    )
    then, now = printed(executed, "VERSION AS OF").split("now\n")
    assert "900" in then
    assert "390" in now
    dead = printed(executed, "spark_mq.reason")
    assert "no such customer" in dead
    assert "amount is negative" in dead
    life = printed(executed, "Counter(queue.finished")
    assert "'dead_lettered': 60" in life
    assert all(
        word in life
        for word in ("leased", "rejected -> dead", "by worker-1", "error: no such customer")
    )


@pytest.mark.spark
@pytest.mark.slow
def test_the_notebook_draws_its_plots(executed: Any) -> None:
    plots = [
        o.data["image/png"]
        for c in executed.cells
        if c.cell_type == "code"
        for o in c.outputs
        if "image/png" in o.get("data", {})
    ]
    assert len(plots) == 7
    for plot in plots:
        png = base64.b64decode(plot)
        assert png.startswith(b"\x89PNG")
        assert len(png) > 5_000  # an empty frame is smaller


@pytest.mark.spark
@pytest.mark.slow
def test_the_notebook_shows_its_queue_and_neither_ivy_nor_stage_bars(executed: Any) -> None:
    outputs = [o for c in executed.cells if c.cell_type == "code" for o in c.outputs]
    assert any("billing" in str(o.get("data", {}).get("text/html", "")) for o in outputs)
    errors = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stderr")
    assert "::" not in errors
    assert "[Stage" not in errors


def queues(home: Path) -> dict[str, Queue]:
    """Queues that lack something of what the notebook shows."""
    empty, dead, old, mixed = (
        Queue.create(home / name) for name in ("empty", "dead", "old", "mixed")
    )
    for queue in (dead, old, mixed):
        queue.publish(["a", "b", "c"])
    lease = dead.group("g").lease("w", max_messages=3)
    lease.reject([lease.messages[0].sequence], error="no")
    for queue in (old, mixed):
        queue.group("a").lease("w")
        queue.group("billing").lease("w").ack()
        for entry in Path(queue.path, "leases", "_delta_log").iterdir():
            os.utime(entry, (time.time() - 3600,) * 2)  # by which Delta knows how old a version is
    mixed.group("a").lease("w")
    mixed.group("billing").lease("w", max_messages=2)
    return {"empty": empty, "dead": dead, "old": old, "mixed": mixed}


@pytest.mark.spark
@pytest.mark.slow
def test_the_notebook_says_in_a_line_what_a_queue_does_not_have(tmp_path: Path) -> None:
    """All in one session, which is what takes long: the cells once for each queue, between a cell
    that names it and the next.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [
        cell.source
        for cell in notebook.cells
        if cell.cell_type == "code" and "spark.stop()" not in cell.source
    ]
    cells = []
    for name, queue in queues(tmp_path).items():
        cells.append(
            nbformat.v4.new_code_cell(f"import os\nos.environ['SPARK_MQ_QUEUE'] = {queue.path!r}")
        )
        cells += [nbformat.v4.new_code_cell(f"# {name}\n{source}") for source in code]
    notebook.cells = cells
    run(notebook)

    def printed_of(name: str, word: str) -> str:
        cell = next(c for c in cells if c.source.startswith(f"# {name}\n") and word in c.source)
        return "".join(
            o.get("text", "")
            for o in cell.outputs
            if o.output_type == "stream" and o.name == "stdout"
        )

    assert printed_of("empty", "createOrReplaceTempView(view)") == "no group has leased yet\n"
    assert "nothing to go back to" in printed_of("empty", "VERSION AS OF")
    assert "1 are dead and not routed yet: run a sweep" in printed_of("dead", "spark_mq.reason")
    # However old the version is: here an hour.
    for name, leased in (("old", None), ("mixed", "leased|       2|")):
        then, now = printed_of(name, "VERSION AS OF").split("billing, now\n")
        assert "(lease)" in then
        assert "leased|       1|" in then
        assert "leased|       1|" not in now
        assert leased is None or leased in now
