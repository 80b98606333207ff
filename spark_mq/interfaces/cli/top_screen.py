"""Draw the views of ``spark-mq top`` in a terminal, and follow the keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static
from textual.worker import Worker, get_current_worker

from spark_mq.errors import SparkMQError
from spark_mq.interfaces.cli.looks import Looks
from spark_mq.interfaces.cli.output import (
    Column,
    Part,
    Rows,
    column_widths,
    columns_left_out,
    fit_columns,
    is_number,
    style_of,
)
from spark_mq.util.show import printable, show_cell

__all__ = ["TopApp"]

_TABLES: Final = 4  # the most tables of a view


class TopApp(App[None]):
    """Shows views until the user quits. Enter opens the view of a row, Escape goes back."""

    CSS = """
    DataTable { margin: 1 0 0 0; }
    #problem { color: $error; height: auto; }
    .note { color: $text-muted; height: auto; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "Quit")]

    def __init__(self, looks: Looks, interval: float) -> None:
        super().__init__()
        self._looks, self._interval = looks, interval

    def on_mount(self) -> None:
        self.push_screen(ViewScreen(self._looks, self._interval))


class ViewScreen(Screen[None]):
    """One view, refreshed by a thread, so that a slow store does not stop the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", show=True),
        Binding("escape,left,backspace", "back", "Back"),
        Binding("r", "look", "Refresh"),
        Binding("p", "pause", "Pause"),
    ]

    def __init__(self, looks: Looks, interval: float) -> None:
        super().__init__()
        self._looks, self._interval = looks, interval
        self._paused = False
        self._looking: Worker[None] | None = None
        self._frame: Mapping[str, Any] | None = None
        self._rows: Sequence[Mapping[str, Any]] = ()  # of the first table

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Static(f"{self._looks.title}: the first look", id="head", markup=False)
            yield Static("", id="problem", markup=False)
            for number in range(_TABLES):
                table: DataTable[Text] = DataTable(id=f"table{number}", cursor_type="row")
                table.display = False
                yield table
                yield Static("", id=f"note{number}", classes="note", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.action_look()
        self.set_interval(self._interval, self._tick)

    def on_resize(self) -> None:
        self._draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "table0":
            self.action_open()

    def _tick(self) -> None:
        if not self._paused and self.is_current:
            self.action_look()

    def action_look(self) -> None:
        """Look again, unless a look is under way."""
        if self._looking is None or self._looking.is_finished:
            self._looking = self.run_worker(self._look, thread=True, exit_on_error=False)

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._draw()

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 2:  # below is Textual's own screen
            self.app.pop_screen()

    def action_open(self) -> None:
        cursor = self.query_one("#table0", DataTable).cursor_row
        if 0 <= cursor < len(self._rows):
            opened = self._looks.opened(self._rows[cursor])
            if opened is not None:
                self.app.push_screen(ViewScreen(opened, self._interval))

    def _look(self) -> None:
        try:
            frame, problem = self._looks.refresh(), ""
        except (SparkMQError, OSError) as error:
            frame, problem = None, f"the last look failed: {error}"
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._show, frame, problem)

    def _show(self, frame: Mapping[str, Any] | None, problem: str) -> None:
        if frame is not None:
            self._frame = frame
        self.query_one("#problem", Static).update(printable(problem))
        self._draw()

    def _draw(self) -> None:
        if self._frame is None:
            return
        parts: list[Part] = [part for part in self._looks.parts(self._frame) if part]
        lines = [printable(part) for part in parts if isinstance(part, str)]
        if self._paused:
            lines.append("paused: p goes on")
        self.query_one("#head", Static).update("\n".join(lines))
        tables = [part for part in parts if isinstance(part, Rows)]
        self._rows = tables[0].for_people() if tables else ()
        for number in range(_TABLES):
            self._fill(number, tables[number] if number < len(tables) else None)

    def _fill(self, number: int, part: Rows | None) -> None:
        table = self.query_one(f"#table{number}", DataTable)
        note = self.query_one(f"#note{number}", Static)
        table.display = part is not None and bool(part.for_people())
        note.display = False
        if part is None:
            return
        rows, place = part.for_people(), table.cursor_row
        width = max(20, self.size.width - 4)  # without the borders of the cells at both ends
        columns = fit_columns(rows, part.columns, width, part.details)
        table.clear(columns=True)
        widths = column_widths(rows, columns, width)
        for column, own in zip(columns, widths, strict=True):
            table.add_column(column[0], width=own)
        right = {name for _, name in columns if is_number(rows, name)}
        for row in rows:
            cells = _cells(row, columns, right.__contains__)
            for cell, own in zip(cells, widths, strict=True):
                cell.truncate(own, overflow="ellipsis")  # the table itself cuts without a sign
            table.add_row(*cells)
        table.styles.height = len(rows) + 1  # auto is too late for the first paint now and then
        table.move_cursor(row=min(place, len(rows) - 1))
        if left_out := columns_left_out(part.columns, columns):
            note.update(left_out)
            note.display = True


def _cells(
    row: Mapping[str, Any], columns: Sequence[Column], is_right: Callable[[str], bool]
) -> list[Text]:
    return [
        Text(
            show_cell(row.get(name), name),
            style_of(row, name),
            justify="right" if is_right(name) else "left",
        )
        for _, name in columns
    ]
