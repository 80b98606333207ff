"""Print results as tables for people or JSON lines, and progress and errors on stderr."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_mq.errors import (
    ContentionTimeout,
    CorruptLog,
    GroupNotFound,
    InvalidOption,
    InvalidSchema,
    NotAQueue,
    QueueNotFound,
    ScheduleNotFound,
    SparkMQError,
    StorageError,
    UnsupportedTable,
    shorten,
)
from spark_mq.util.clock import to_datetime
from spark_mq.util.error_shape import recent_error_shape
from spark_mq.util.process import in_background
from spark_mq.util.progress import Progress, listening
from spark_mq.util.show import (
    json_line,
    printable,
    show_age,
    show_cell,
    show_count,
    show_number,
    show_short,
)

OK: Final = 0
FAILED: Final = 1  # the command failed, or `check` found a problem
USAGE: Final = 2  # an argument is wrong
NOT_FOUND: Final = 3  # there is no such queue, group, schedule or message
STORE: Final = 4  # the store failed, or a table is damaged
INTERRUPTED: Final = 130  # Ctrl-C, or no to a question


class WrongCall(SparkMQError):
    """Raised if the arguments of a command are wrong, or don't fit together."""


_NOT_FOUND: Final = (QueueNotFound, NotAQueue, GroupNotFound, ScheduleNotFound)
_USAGE: Final = (InvalidOption, InvalidSchema, WrongCall)
_STORE: Final = (StorageError, CorruptLog, UnsupportedTable, ContentionTimeout)

Column = tuple[str, str]  # the heading, and the name of the value in a row

# Headings of values whose names are longer, or say something else.
_HEADINGS: Final[Mapping[str, str]] = {
    "message_id": "ID", "consumer_group": "GROUP", "dead_letter_sequence": "LETTER",
    "delivery_count": "DELIVERIES", "failure_count": "FAILURES", "leased_until": "UNTIL",
    "available_at": "DUE", "operation": "CHANGE", "head_age": "AGE",
    "oldest_unsettled_age": "OLDEST", "oldest_lease_age": "OLDEST",
}  # fmt: skip
_SUFFIXES: Final = re.compile("_(at|id|age)$")  # that a heading leaves out

_PAUSE: Final = 10.0  # seconds between lines of progress, if stderr is no terminal
_WINDOW: Final = 30.0  # seconds whose messages make the speed
_LEFT_EACH: Final = 1.0  # seconds until `left` is asked again
_MAX_SHAPES: Final = 100  # kinds of errors of which a worker prints a line
_MAX_ERROR: Final = 200  # characters of an error in that line

_NUMBERS: Final = (int, float, timedelta)
_UNBOUNDED: Final = 1_000_000  # columns of a terminal that breaks no cell
_EMPTY: Final = (None, "", 0, (), "-")
_STYLES: Final[Mapping[str, str]] = {
    "dead": "red", "dead_letters": "red", "dead_per_second": "red", "error": "red",
    "blocked": "yellow", "blocked_because": "yellow", "problem": "yellow", "because": "yellow",
}  # fmt: skip


def columns(names: str, **headings: str) -> list[Column]:
    """Return columns by the names of their values, with a heading where it is not the usual one."""
    known = {**_HEADINGS, **headings}
    return [(known.get(name) or _heading(name), name) for name in names.split()]


def _heading(name: str) -> str:
    shown = _SUFFIXES.sub("", name).replace("_per_second", "/s").replace("_", " ")
    return shown.upper()


@dataclass(frozen=True)
class Rows:
    """Rows, which are mappings or dataclasses. JSON has all values, a table the columns."""

    rows: Iterable[Any]
    columns: Sequence[Column]
    cells: Callable[[Any], Mapping[str, Any]] | None = None  # a row for people

    def for_people(self) -> list[Mapping[str, Any]]:
        return [(self.cells or _mapping)(row) for row in self.rows]


Part = str | Rows | Mapping[str, Any]


@dataclass(frozen=True)
class Pages:
    """Results that are shown as they come. Each is a page of parts, or a line of JSON."""

    results: Iterable[Any]
    parts: Callable[[Any], Iterable[Part]]


def show(result: Any, *, json: bool) -> None:
    """Print rows, pages, or any other result as one object with a line for each value."""
    if result is None:
        return
    if json:
        rows = result.results if isinstance(result, Pages) else [result]
        # Only JSON's own escapes may stand for what the encoding of stdout lacks.
        ascii = "utf" not in (sys.stdout.encoding or "").lower()
        for row in result.rows if isinstance(result, Rows) else rows:
            print(json_line(row, ascii=ascii), flush=isinstance(result, Pages))
    elif isinstance(result, Pages):
        for page in result.results:
            for part in result.parts(page):
                _print(part)
            sys.stdout.flush()
    else:
        _print(result)


def _print(part: Any) -> None:
    if isinstance(part, str):
        print(printable(part))
    elif isinstance(part, Rows):
        if sys.stdout.isatty():
            console = Console()
            console.print(make_table(part, console))
        else:
            _print_plain(part)
    else:
        shown = {name: show_cell(value, name) for name, value in _mapping(part).items()}
        width = max(map(len, shown), default=0)
        for name, value in shown.items():
            print(f"{name:<{width}}  {value}".rstrip())


def _mapping(row: Any) -> dict[str, Any]:
    return asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row)


def make_table(part: Rows, console: Console) -> Table:
    """Return a table for a terminal. If it is too wide, columns without a value are left out."""
    rows = part.for_people()
    table = _table(rows, part.columns)
    unbounded = console.options.update_width(_UNBOUNDED)
    if console.measure(table, options=unbounded).maximum > console.width:
        filled = [
            column
            for column in part.columns
            if any(row.get(column[1]) not in _EMPTY for row in rows)
        ]
        table = _table(rows, filled)
    return table


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> Table:
    """Return a table that reads no markup, and breaks texts where they don't fit."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, name in columns:
        number = _is_number(rows, name)
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(heading, justify=justify, no_wrap=number, overflow="fold")
    for row in rows:
        values = ((row.get(name), name) for _, name in columns)
        table.add_row(*(Text(show_cell(*value), _style_of(*value)) for value in values))
    return table


def _print_plain(part: Rows) -> None:
    """Print a table as lines that no width breaks, for a pipe or a file."""
    rows, columns = part.for_people(), part.columns
    lines = [[heading for heading, _ in columns]]
    lines += [[show_cell(row.get(name), name) for _, name in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    right = [_is_number(rows, name) for _, name in columns]
    for cells in lines:
        padded = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, right, strict=True)
        ]
        print("  ".join(padded).rstrip())


def _style_of(value: Any, name: str) -> str:
    """Return the style of a cell: red for what is lost without help, yellow for what waits."""
    return "" if value in _EMPTY else _STYLES.get(name, "")


def _is_number(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [row.get(name) for row in rows if row.get(name) is not None]
    return bool(values) and all(
        isinstance(value, _NUMBERS) and not isinstance(value, bool) for value in values
    )


def complain(text: str) -> None:
    """Print an error as one line on stderr."""
    note(f"error: {text}")


def note(text: str) -> None:
    """Print a line on stderr that is neither an error nor data."""
    line = printable(" ".join(text.split()))
    print(f"spark-mq: {line}", file=sys.stderr, flush=True)


def exit_code_of(error: Exception) -> int:
    for kinds, code in ((_NOT_FOUND, NOT_FOUND), (_USAGE, USAGE), (_STORE, STORE)):
        if isinstance(error, kinds):
            return code
    return FAILED


class CommandFormatter(logging.Formatter):
    """Formats log lines for people, without what could steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord({**record.__dict__, "msg": printable(record.getMessage())})
        record.args = ()
        return "\n".join(map(printable, super().format(record).splitlines()))


class FailureLines(Progress):
    """Prints the first error of each kind after which a message is tried again.

    The log warns of the others. Nothing fails if nobody reads the lines.
    """

    def __init__(self) -> None:
        self._shapes = set[str]()

    def fail(self, messages: int, error: str, sequence: int | None, retry_at: int | None) -> None:
        shape = recent_error_shape(error)
        if retry_at is None or shape in self._shapes or len(self._shapes) >= _MAX_SHAPES:
            return
        self._shapes.add(shape)
        if logging.getLogger("spark_mq").isEnabledFor(logging.INFO):
            return  # the log has it, with a traceback
        failed = show_count(messages, "message") if sequence is None else f"message {sequence}"
        due = max(timedelta(), to_datetime(retry_at) - datetime.now(UTC))
        retry = "its retry is" if messages == 1 else "the first retry is"
        text = shorten(error, _MAX_ERROR) or "no reason given"
        with suppress(OSError, ValueError):
            note(f"{failed} failed: {text} ({retry} due in {show_age(due)})")


class Left(NamedTuple):
    """The messages that a worker has still to do."""

    due: int  # or leased
    later: int = 0


class _ShownProgress(FailureLines):
    """The step of an operation, and its messages with their speed and the time that is left."""

    def __init__(
        self,
        what: str,
        total: int | None,
        left: Callable[[], Left | None] | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._what, self._at, self._ask, self._clock = what, what, left, clock
        self._done, self._total, self._left = 0, total, Left(1)
        self._share: float | None = None
        self._own, self._failures, self._lock = 0, 0, threading.Lock()
        self._asked, self._stale = float("-inf"), False
        self._points = deque([(clock(), 0)])  # the time and the number, one a second
        self._started = self._points[0][0]

    def step(self, text: str) -> None:
        self._at = f"{self._what}: {text}"

    def expect(self, messages: int) -> None:
        self._total = messages

    def finish(self, messages: int, share: float | None = None) -> None:
        with self._lock:
            self._own += messages
            self._share = share
            self._stale = True
            self._update(self._clock())

    def fail(self, messages: int, error: str, sequence: int | None, retry_at: int | None) -> None:
        super().fail(messages, error, sequence, retry_at)
        with self._lock:
            self._failures += messages
            self._stale = True
            self._update(self._clock())

    def _update(self, now: float) -> None:
        """Count what is done, and ask what is left once a second at most, after a change."""
        if self._ask is None:
            self._done = self._own
        elif self._stale and now - self._asked >= _LEFT_EACH:
            self._asked, self._stale = now, False
            if (left := self._ask()) is not None:
                self._left = left
                self._total = max(self._total or 0, self._own + sum(left))
                self._done = self._total - sum(left)
        if self._total is not None:  # more may be published meanwhile
            self._total = max(self._total, self._done)
        while len(self._points) > 1 and now - self._points[1][0] >= _WINDOW:
            self._points.popleft()
        if now - self._points[-1][0] >= 1:
            self._points.append((now, self._done))

    def __str__(self) -> str:
        with self._lock:
            now = self._clock()
            if self._stale:
                self._update(now)
            since, before = self._points[0]
            done, total, share, left = self._done, self._total, self._share, self._left
            failures = self._failures
        if not (done or total):
            return f"{self._at}: {show_age(now - self._started)}"
        speed = (done - before) / (now - since) if now > since and left.due else 0.0
        share = done / total if total else share
        of = f"{show_number(done)} of " if total else ""
        parts = [of + show_count(total or done, "message")]
        parts += [f"{show_short(speed)} msg/s"] if speed else []
        if share and (left.due or not left.later):
            parts.append(f"{share:.0%}")
            if speed and share < 1:
                parts.append(f"{show_age(done * (1 / share - 1) / speed)} left")
        return f"{self._at}: {', '.join([*parts, *_waiting(left.later, failures)])}"

    def __rich__(self) -> Text:
        return Text(str(self))


def _waiting(later: int, failures: int) -> list[str]:
    failed = show_count(failures, "failure") if failures else ""
    if not later:
        return [failed] if failed else []
    waits = "1 waits until it is due"
    if later > 1:
        waits = f"{show_number(later)} wait until they are due"
    return [f"{waits} ({failed})" if failed else waits]


@contextmanager
def track(
    what: str,
    total: int | None = None,
    stream: TextIO | None = None,
    *,
    pause: float = _PAUSE,
    clock: Callable[[], float] = time.monotonic,
    left: Callable[[], Left | None] | None = None,
) -> Iterator[Progress]:
    """Show the step and the finished messages of the operations in the block, and yield both.

    `left` returns the messages that are left, or None, if others finish some, too.
    """
    stream, shown = stream or sys.stderr, _ShownProgress(what, total, left, clock)
    lines = Console(file=stream).status(shown, spinner="line") if stream.isatty() else None
    with listening(shown), lines or _print_progress(shown, stream, pause):
        yield shown


@contextmanager
def _print_progress(shown: _ShownProgress, stream: TextIO, pause: float) -> Iterator[None]:
    """Print a line after each pause. The work must not fail if nobody reads them."""

    def report(ended: threading.Event) -> None:
        while not ended.wait(pause):
            with suppress(OSError, ValueError):
                print(shown, file=stream, flush=True)

    with in_background(report, "spark_mq progress"):
        yield
