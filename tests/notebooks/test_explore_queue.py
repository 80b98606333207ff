"""The notebook runs from top to bottom, and shows what it says it shows."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "explore_queue.ipynb"


@pytest.fixture(scope="module")
def executed() -> Any:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    return notebook


def printed(notebook: Any, word: str) -> str:
    """What the one code cell whose source has `word` printed."""
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and word in c.source]
    return "".join(o.get("text", "") for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")


@pytest.mark.spark
@pytest.mark.slow
def test_the_notebook_shows_states_history_an_earlier_version_and_dead_letters(executed: Any) -> None:
    states = printed(executed, "createOrReplaceTempView(view)")
    for state, count in (("leased", 390), ("waiting", 100), ("dead", 10), ("unread", 600)):
        assert any(f"|{state}" in line.replace(" ", "") and f"|{count}|" in line.replace(" ", "") for line in states.splitlines()), states
    assert all(word in printed(executed, "DESCRIBE HISTORY") for word in ("create group", "lease", "reject", "freeze dead", "worker-2"))
    then, now = printed(executed, "VERSION AS OF").split("now\n")
    assert "900" in then
    assert "390" in now
    dead = printed(executed, "spark_mq.reason")
    assert "no such customer" in dead
    assert "amount is negative" in dead
    life = printed(executed, "queue.trace")
    assert "'dead_lettered': 60" in life
    assert all(word in life for word in ("leased", "rejected -> dead", "by worker-1", "error: no such customer"))


@pytest.mark.spark
@pytest.mark.slow
def test_the_notebook_draws_its_plot(executed: Any) -> None:
    plots = [o.data["image/png"] for c in executed.cells if c.cell_type == "code" for o in c.outputs if "image/png" in o.get("data", {})]
    assert len(plots) == 1
    png = base64.b64decode(plots[0])
    assert png.startswith(b"\x89PNG")
    assert len(png) > 5_000  # an empty frame is smaller
