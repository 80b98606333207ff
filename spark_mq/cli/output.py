"""Print data as a table or JSON lines on stdout, and progress on stderr."""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from spark_mq.cli.options import OutputFormat
from spark_mq.util.show import printable, show_age, show_duration, show_time, show_value
from spark_mq.util.steps import showing_steps

__all__ = [
    "Column",
    "busy",
    "complain",
    "emit",
    "emit_one",
    "json_line",
    "make_cell",
    "make_table",
    "printable",
    "show_age",
    "show_time",
    "show_value",
    "track",
]

Column = tuple[str, str]  # the heading, and the name of the value in a row

_NUMBERS: Final = (int, float)
_PROGRESS_SECONDS: Final = 3.0  # between lines of progress, if stderr is no terminal


def complain(text: str) -> None:
    """Print an error as one line on stderr."""
    line = printable(" ".join(text.split()))
    print(f"spark-mq: error: {line}", file=sys.stderr, flush=True)


def emit(rows: Iterable[Any], columns: Sequence[Column], output: OutputFormat) -> None:
    """Print rows, which are mappings or dataclasses. JSON has all values, a table the columns."""
    if output is OutputFormat.json:
        for row in rows:
            print(json_line(row))
        return
    _print_table([_mapping(row) for row in rows], columns)


def emit_one(row: Any, output: OutputFormat) -> None:
    """Print one object as one line of JSON, or with a line for each value."""
    if output is OutputFormat.json:
        print(json_line(row))
        return
    shown = {name: make_cell(value) for name, value in _mapping(row).items()}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        print(f"{name:<{width}}  {value}".rstrip())


def _mapping(row: Any) -> dict[str, Any]:
    return asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row)


def json_line(row: Any) -> str:
    """Return an object as one line of JSON, with times in UTC and durations in seconds."""
    text = json.dumps(_plain(_mapping(row)), ensure_ascii=False)
    if text.isprintable():
        return text
    # A terminal may show the line, so what could steer it is escaped, as JSON allows.
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    convert = next((_JSON[kind] for kind in _JSON if isinstance(value, kind)), None)
    return value if convert is None else convert(value)


def _bytes_json(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _time_json(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


# Conversions of the types that JSON lacks.
_JSON: Final[Mapping[type, Callable[[Any], Any]]] = {
    bytes: _bytes_json,
    datetime: _time_json,
    timedelta: timedelta.total_seconds,
}


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
    """Print a table, with rich on a terminal, otherwise as plain lines that no width cuts."""
    if sys.stdout.isatty():
        Console().print(make_table(rows, columns))
        return
    lines = [[heading for heading, _ in columns]]
    lines += [[make_cell(row.get(name)) for _, name in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    right = [_is_number(rows, name) for _, name in columns]
    for cells in lines:
        padded = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, right, strict=True)
        ]
        print("  ".join(padded).rstrip())


def make_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], title: str | None = None
) -> Table:
    """Return a table for a terminal, which never reads values as markup."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading, name in columns:
        right = _is_number(rows, name)
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(make_cell(row.get(name))) for _, name in columns))
    return table


def _is_number(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [row.get(name) for row in rows if row.get(name) is not None]
    return bool(values) and all(
        isinstance(value, _NUMBERS) and not isinstance(value, bool) for value in values
    )


def make_cell(value: Any) -> str:
    if value in ([], (), {}):
        return "-"
    for kind, show in _SHOWN:
        if isinstance(value, kind):
            return show(value)
    return printable(json.dumps(_plain(value)))


def _show_number(value: float) -> str:
    """Return a number for people. A small rate must not look like zero."""
    return f"{value:.1f}" if abs(value) >= 1 or not value else f"{value:.2g}"


def _show_flag(value: bool) -> str:
    return "yes" if value else "no"


@contextmanager
def track(what: str, total: int | None = None, stream: TextIO | None = None) -> Iterator[Any]:
    """Show progress on stderr, and yield a function that takes the messages done so far."""
    stream = stream or sys.stderr
    if stream.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(show_speed=True),
            TextColumn("{task.completed:,.0f} messages"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(file=stream), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    shown = time.monotonic()

    def update(done: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _PROGRESS_SECONDS:
            shown = time.monotonic()
            of = "" if total is None else f" of {total:,}"
            _write_line(f"{what}: {done:,}{of} messages", stream)

    yield update


@contextmanager
def busy(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show on stderr what runs, its step, and for how long."""
    stream = stream or sys.stderr
    at = what

    def show(text: str) -> None:
        nonlocal at
        at = f"{what}: {text}"

    if stream.isatty():
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=stream), transient=True) as bar:
            task = bar.add_task(what)
            with showing_steps(lambda text: bar.update(task, description=f"{what}: {text}")):
                yield
        return
    ended, started = threading.Event(), time.monotonic()

    def report() -> None:
        while not ended.wait(_PROGRESS_SECONDS):
            _write_line(f"{at}: {time.monotonic() - started:.0f} s", stream)

    thread = threading.Thread(target=report, name="spark_mq progress", daemon=True)
    thread.start()
    try:
        with showing_steps(show):
            yield
    finally:
        ended.set()
        thread.join()


def _write_line(text: str, stream: TextIO) -> None:
    """Write a line of progress. The work must not fail if nobody reads it."""
    with suppress(OSError, ValueError):
        print(text, file=stream, flush=True)


_SHOWN: Final[tuple[tuple[type, Callable[[Any], str]], ...]] = (
    (type(None), lambda _: "-"),
    (bool, _show_flag),  # before int, because True is an int
    (int, str),
    (float, _show_number),
    (datetime, show_time),
    (timedelta, show_duration),
    (bytes, show_value),
    (str, printable),
)
