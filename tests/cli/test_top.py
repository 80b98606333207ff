"""``spark-mq top`` on a terminal: its views, its keys, and what fits into a width."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from spark_mq import Queue
from spark_mq.errors import StorageError
from spark_mq.interfaces.cli.looks import QueueLooks, QueuesLooks
from spark_mq.interfaces.cli.output import column_widths, columns_left_out, fit_columns
from spark_mq.interfaces.cli.top_screen import TopApp
from spark_mq.util.show import show_bars, show_cell


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Two queues. A group of the second one is paused."""
    for name in ("audit", "orders"):
        queue = Queue.create(tmp_path / "shop" / name, durable=False)
        queue.publish([f"order {n}" for n in range(30)])
        queue.group("billing").lease("worker-7-with-a-long-name", max_messages=10)
    queue.group("shipping").pause("The warehouse is closed until Monday")
    return tmp_path / "shop"


def drive(app: TopApp, steps: Callable[[Pilot[None]], Awaitable[None]], width: int) -> None:
    async def run() -> None:
        async with app.run_test(size=(width, 40)) as pilot:
            await pilot.app.workers.wait_for_complete()
            await pilot.pause()
            await steps(pilot)

    asyncio.run(run())


def cells(pilot: Pilot[None], number: int = 0) -> list[list[str]]:
    """Return the headings and rows of a table of the view on top."""
    table = pilot.app.screen.query_one(f"#table{number}", DataTable)
    rows = [table.get_row_at(place) for place in range(table.row_count)]
    heads = [str(column.label) for column in table.ordered_columns]
    return [heads, *([str(cell) for cell in row] for row in rows)]


@pytest.mark.parametrize("width", [80, 200])
def test_the_queues_below_a_path_open_by_enter_and_close_by_escape(shop: Path, width: int) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        heads, first, second = cells(pilot)
        assert (first[0], second[0]) == ("orders", "audit"), "the one with a problem comes first"
        problem = first[heads.index("PROBLEM")]
        assert "The warehouse is closed" in problem if width == 200 else problem.endswith("…")
        assert first[heads.index("READY")] == "50"
        assert ("DEAD" in heads) == (width == 200), "without a value it goes first"
        await pilot.press("enter")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        heads, *rows = cells(pilot)
        assert {row[0] for row in rows} == {"billing", "shipping"}
        assert "worker-7-with-a-long-name" in cells(pilot, 1)[1]
        await pilot.press("escape")
        assert cells(pilot)[1][0] == "orders"
        await pilot.press("q")

    app = TopApp(QueuesLooks(str(shop), {}, 20), 3600)
    drive(app, steps, width)
    assert not app.is_running


def test_a_view_is_refreshed_unless_it_is_paused(shop: Path) -> None:
    queue = Queue.open(shop / "audit")

    async def steps(pilot: Pilot[None]) -> None:
        async def ready_after(key: str) -> str:
            await pilot.press(key)
            await pilot.app.workers.wait_for_complete()
            await pilot.pause()
            heads, row = cells(pilot)
            return row[heads.index("READY")]

        assert await ready_after("x") == "20"
        queue.publish(["a", "b"])
        assert await ready_after("r") == "22"
        assert await ready_after("p") == "22"
        head = str(pilot.app.screen.query_one("#head", Static).content)
        assert "paused: p goes on" in head
        assert "published 32" in head

    drive(TopApp(QueueLooks(queue, 20), 3600), steps, 100)


def test_a_look_that_fails_leaves_the_last_view_with_the_reason(shop: Path) -> None:
    looks = QueueLooks(Queue.open(shop / "audit"), 20)

    async def steps(pilot: Pilot[None]) -> None:
        def fail() -> dict[str, Any]:
            raise StorageError("the store is away", path="x")

        looks.refresh = fail
        await pilot.press("r")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        problem = str(pilot.app.screen.query_one("#problem", Static).content)
        assert problem == "the last look failed: the store is away"
        assert cells(pilot)[1][0] == "billing"

    drive(TopApp(looks, 3600), steps, 100)


def test_a_queue_that_cannot_be_read_is_a_row_with_the_reason(shop: Path) -> None:
    log = shop / "audit" / "messages" / "_delta_log"
    for file in log.iterdir():
        if file.is_file():
            file.write_bytes(b"{")
    rows = QueuesLooks(str(shop), {}, 20).refresh()["queues"]
    assert [row["name"] for row in rows if row["problem"]] == ["audit", "orders"]


def test_a_problem_is_what_a_check_of_health_finds(shop: Path) -> None:
    busy = Queue.open(shop / "audit")
    busy.group("billing").configure(max_in_flight=10)
    assert busy.group("billing").stats().blocked_because.startswith("max_in_flight")
    found = {
        row["name"]: row["problem"] for row in QueuesLooks(str(shop), {}, 20).refresh()["queues"]
    }
    (problem,) = Queue.open(shop / "orders").health().problems
    assert found == {"orders": problem.text, "audit": None}, "a cap ends by itself"


def test_new_queues_are_found_after_half_a_minute(shop: Path) -> None:
    now = 0.0
    looks = QueuesLooks(str(shop), {}, 20, lambda: now)
    assert len(looks.paths()) == 2
    Queue.create(shop / "third", durable=False)
    assert len(looks.paths()) == 2
    now = 30.0
    assert len(looks.paths()) == 3


ROWS = [
    {
        "id": "4294967297",
        "none": 0,
        "many": 1_234_567,
        "less": 7,
        "why": "the payment failed again",
    },
    {
        "id": "abcdefghijkl",
        "none": 0,
        "many": 2,
        "less": 3,
        "why": "x" * 30 + " was not there today",
    },
]
COLUMNS = [("ID", "id"), ("NONE", "none"), ("MANY", "many"), ("LESS", "less"), ("WHY", "why")]


@pytest.mark.parametrize("width", [*range(1, 90, 3), 200])
def test_no_width_breaks_a_number_or_a_name(width: int) -> None:
    kept = fit_columns(ROWS, COLUMNS, width)
    assert kept[0] == ("ID", "id")
    widths = column_widths(ROWS, kept, width)
    for (_, name), own in zip(kept, widths, strict=True):
        if name != "why":
            assert own >= max(cell_len(show_cell(row[name])) for row in ROWS)
    if len(kept) > 1:
        assert sum(widths) + 2 * (len(kept) - 1) <= width
    left_out = columns_left_out(COLUMNS, kept)
    assert [name for name, _ in COLUMNS if name in left_out.split(":")[0]] == [
        name for name, column in COLUMNS if (name, column) not in kept
    ]


def test_columns_without_a_value_go_first_and_prose_goes_late() -> None:
    assert [name for _, name in fit_columns(ROWS, COLUMNS, 64)] == ["id", "many", "less", "why"]
    assert [name for _, name in fit_columns(ROWS, COLUMNS, 50)] == ["id", "why"]


def test_bars_follow_the_greatest_value() -> None:
    assert show_bars([0, 1, 50, 100]) == "▁▂▅█"
    assert show_bars([0, 0]) == "▁▁"
    assert show_bars([]) == ""


def test_top_on_a_terminal_ends_by_q(shop: Path) -> None:
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "spark_mq", "top", "-q", str(shop), "--interval", "1h"]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
    )  # fmt: skip
    os.close(terminal)
    seen, deadline = b"", time.monotonic() + 60
    while b"orders" not in seen and time.monotonic() < deadline:
        if select.select([main], [], [], 1)[0]:
            seen += os.read(main, 65_536)
    os.write(main, b"q")
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([main], [], [], 0.1)[0]:
            try:
                seen += os.read(main, 65_536)
            except OSError:
                break
    assert process.wait(10) == 0, seen[-2_000:]
    os.close(main)
    assert re.search(rb"orders", seen)


def test_a_path_without_queues_is_refused(tmp_path: Path, run: Any) -> None:
    assert "no queue" in run("top", "-q", tmp_path, expect=3).err


def test_in_a_pipe_all_queues_are_one_table(shop: Path, run: Any) -> None:
    text = run("top", "-q", shop, "--interval", "10ms").out
    assert "queues 2  with a problem 1" in text
    (row,) = run("top", "-q", shop, "--count", 1, "-o", "json").rows
    assert [one["ready"] for one in row["queues"]] == [50, 20]
