"""Lay out pages, tables and values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

from spark_mq import __version__
from spark_mq.util.markup import Child, Html, el, join, text_of
from spark_mq.util.show import show_age, show_time

__all__ = [
    "button",
    "count",
    "facts",
    "field",
    "href",
    "lazy",
    "number_of",
    "page",
    "payload",
    "size",
    "table",
    "when",
]

# The pages of a queue, each with the first part of its path and its name.
TABS: Final = (
    ("queue", "Queue"),
    ("messages", "Messages"),
    ("letters", "Dead letters"),
    ("sweeps", "Sweeps and health"),
    ("changes", "Changes"),
)
MAX_SHOWN: Final = 64 * 1024  # bytes of a payload
_LONG: Final = 36  # longer texts may break within a word. A generated message id has 36
_HTMX: Final = json.dumps(
    {"includeIndicatorStyles": False, "allowEval": False, "selfRequestsOnly": True,
     "historyCacheSize": 0}
)  # fmt: skip


def href(view: str, queue: str, **parameters: str | int | None) -> str:
    """Return the address of a page of a queue, without the parameters that are None."""
    given = {name.rstrip("_"): value for name, value in parameters.items() if value is not None}
    query = f"?{urlencode(given)}" if given else ""
    return f"/{view}/{quote(queue)}{query}"


def page(title: str, *content: Child, queue: str | None = None, view: str = "") -> Html:
    """Return a whole page. ``view`` is the open tab of the queue that it is about."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="htmx-config", content=_HTMX),
        el("title", f"{title} - spark_mq"),
        el("link", rel="icon", href="/static/icon.svg"),
        el("link", rel="stylesheet", href="/static/style.css"),
        el("script", src="/static/htmx.min.js", defer=True),
    )
    trail: list[Child] = [el("a", "spark_mq", href="/", class_="brand")]
    if queue is not None:
        trail.append(el("a", queue, href=href("queue", queue), class_="name"))
    tabs = [] if queue is None else [_tab(queue, name, text, view) for name, text in TABS]
    body = el(
        "body",
        el("header", trail, el("nav", tabs) if tabs else None),
        el("main", el("h1", title), content),
        el("footer", f"spark_mq {__version__}. Times are UTC."),
    )
    return join(Html("<!doctype html>"), el("html", head, body, lang="en"))


def _tab(queue: str, name: str, text: str, view: str) -> Html:
    current = "page" if name == view else None
    return el("a", text, href=href(name, queue), aria_current=current)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Child]], *, empty: str = "None."
) -> Html:
    found = list(rows)
    if not found:
        return el("p", empty, class_="note")
    columns = zip(*found, strict=True)
    kinds = ["number" if any(map(_is_number, column)) else None for column in columns]
    top = el("tr", [el("th", one, scope="col", class_=kind)
                    for one, kind in zip(headings, kinds, strict=True)])  # fmt: skip
    lines = [el("tr", [_cell(value) for value in row]) for row in found]
    return el("div", el("table", el("thead", top), el("tbody", lines)), class_="scroll", tabindex=0)


def _cell(value: Child) -> Html:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return el("td", count(value), class_="number")
    if isinstance(value, str) and not isinstance(value, Html):
        return el("td", el("bdi", value), class_="text" if len(value) > _LONG else None)
    return el("td", value)


def _is_number(value: Child) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def count(value: int | float | None) -> str:
    """Return a number for people, with commas between thousands."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def number_of(number: int, what: str) -> str:
    """Return a counted noun, such as "1 letter" or "2 letters"."""
    return f"{count(number)} {what}" + ("" if number == 1 else "s")


def size(value: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 2**power:
            return f"{value / 2**power:,.1f} {unit}"
    return f"{value} bytes"


def when(at: datetime | None, now: datetime | None = None) -> Html:
    """Return a time, with how long ago it was if ``now`` is given."""
    if at is None:
        return el("span", "-")
    ago = "" if now is None else f" ({_distance((now - at).total_seconds())})"
    return el("time", f"{show_time(at)}{ago}", datetime=at.isoformat())


def _distance(seconds: float) -> str:
    return f"{show_age(seconds)} ago" if seconds >= 0 else f"in {show_age(-seconds)}"


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    return el(
        "dl",
        [el("div", el("dt", name), el("dd", _fact(value))) for name, value in pairs],
        class_="facts",
    )


def _fact(value: Child) -> Child:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return count(value)
    return "-" if value is None or value == "" else value


def field(
    label: str, name: str, value: str | int | None = None, *, options: Sequence[str] = ()
) -> Html:
    if options:
        choices = [
            el("option", one or "any", value=one, selected=one == (value or "")) for one in options
        ]
        return el("label", label, el("select", choices, name=name))
    return el("label", label, el("input", name=name, value=value, autocomplete="off"))


def button(text: str, address: str) -> Html:
    """Return a link that looks like a button."""
    return el("a", text, href=address, class_="button")


def lazy(address: str, *, every: str | None = None, text: str = "Loading…") -> Html:
    """Return an element that loads its content once the page is there."""
    trigger = "load" if every is None else f"load, every {every}"
    link = el("noscript", el("a", "Show", href=address))
    return el("div", el("p", text, class_="note"), link, hx_get=address, hx_trigger=trigger)


def payload(value: bytes | None) -> Html:
    """Return a payload as JSON in lines, text, or hexadecimal bytes."""
    if value is None:
        return el("p", "The payload cannot be read.", class_="note")
    part = value if len(value) <= MAX_SHOWN else _whole_characters(value[:MAX_SHOWN])
    kind, shown = _decoded(part)
    cut = f", the first {len(part):,}" if len(part) < len(value) else ""
    return join(
        el("p", f"{kind}, {len(value):,} bytes{cut}", class_="note"),
        el("pre", el("bdi", shown), class_="payload"),
    )


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
        return "Bytes", "\n".join(one.hex(" ") for one in rows)
    try:
        shown = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "Text", text_of(text)
    return "JSON", text_of(shown)
