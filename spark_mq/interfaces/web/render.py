"""Render the templates of the pages. Every value is escaped."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment

from spark_mq import __version__
from spark_mq.interfaces.web.view import View
from spark_mq.util.records import environment
from spark_mq.util.sequences import show_sequence
from spark_mq.util.show import (
    bounded,
    show_age,
    show_count,
    show_duration,
    show_moment,
    show_number,
    show_position,
    show_share,
    show_size,
    show_time,
    show_took,
    show_value,
)

__all__ = ["TABS", "href", "render"]

# The pages of a queue, each with the first part of its path and its name.
TABS: Final = (
    ("queue", "Queue"),
    ("messages", "Messages"),
    ("letters", "Dead letters"),
    ("schedules", "Schedules"),
    ("batches", "Batches"),
    ("sweeps", "Sweeps and health"),
    ("changes", "Changes"),
)
MAX_SHOWN: Final = 64 * 1024  # bytes of a payload


class Payload(NamedTuple):
    """A payload for people."""

    head: str  # its kind and size
    text: str


def render(template: str, view: View | None = None, **context: Any) -> str:
    known = {"view": view, "queue": view and view.name, "tab": None, "crumbs": ()}
    return _environment().get_template(template).render({**known, **context})


@cache
def _environment() -> Environment:
    made = environment(__package__, "templates")
    made.globals.update(href=href, tabs=TABS, version=__version__)
    made.filters.update(
        age=show_age, bounded=bounded, count=_count, counted=show_count, distance=_distance,
        fact=_fact, moment=show_moment, payload=_payload, percent=show_share,
        position=show_position, sequence=show_sequence, setting=_setting, size=show_size,
        time=show_time, took=show_took, value=show_value,
    )  # fmt: skip
    made.tests["instant"] = lambda value: isinstance(value, datetime)
    return made


def href(page: str, queue: str, /, **parameters: str | int | None) -> str:
    """Return the address of a page of a queue, without the parameters that are None."""
    given = {name: value for name, value in parameters.items() if value is not None}
    query = f"?{urlencode(given)}" if given else ""
    return f"/{page}/{quote(queue)}{query}"


def _count(value: int | float | None) -> str:
    return "-" if value is None else show_number(value)


def _fact(value: Any) -> Any:
    if value is None or value == "":
        return "-"
    return _count(value) if type(value) in (int, float) else bounded(value)


def _distance(at: datetime) -> str:
    """Return a time as people say it, such as 3m 12s ago."""
    age = datetime.now(UTC) - at
    return f"{show_age(age)} ago" if age >= timedelta() else f"in {show_age(-age)}"


def _setting(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, timedelta):
        return show_duration(value)
    return _count(value) if type(value) is int else str(value)


def _payload(value: bytes) -> Payload:
    """Return a payload as JSON in lines, text, or hexadecimal bytes."""
    part = value if len(value) <= MAX_SHOWN else _whole_characters(value[:MAX_SHOWN])
    kind, text = _decoded(part)
    cut = f", the first {show_number(len(part))}" if len(part) < len(value) else ""
    return Payload(f"{kind}, {show_count(len(value), 'byte')}{cut}", text)


def _whole_characters(value: bytes) -> bytes:
    """Return bytes without a UTF-8 character that the end may cut."""
    for at in range(1, 4):
        if value[-at] >= 0xC0:
            return value[:-at]
    return value


def _decoded(value: bytes) -> tuple[str, str]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        rows = (value[at : at + 16] for at in range(0, len(value), 16))
        return "Bytes", "\n".join(row.hex(" ") for row in rows)
    try:
        return "JSON", json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "Text", text
