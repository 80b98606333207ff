"""Define a request, the problems of its queues, and how pages are rendered: each value escaped."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment

from spark_mq import __version__
from spark_mq.errors import GroupNotFound, ScheduleNotFound, SparkMQError
from spark_mq.group import ConsumerGroup
from spark_mq.inspect import Health, Problem, QueueOverview
from spark_mq.inspect.health import HealthLimits, check_health
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.ledger.stats import GroupStats
from spark_mq.maintenance.condition import LetterFilter
from spark_mq.operations.schedules import ScheduleInfo
from spark_mq.queue import Queue
from spark_mq.util.records import environment
from spark_mq.util.show import (
    bounded,
    number_in,
    show_age,
    show_count,
    show_duration,
    show_moment,
    show_number,
    show_position,
    show_sequence,
    show_share,
    show_size,
    show_time,
    show_took,
    show_value,
)
from spark_mq.util.validation import invalid, parse_instant

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
MAX_NUMBER: Final = 2**63 - 1
LETTER_FIELDS: Final = (
    "find", "died_in", "reason", "shape", "key_prefix", "message_id", "since", "until", "first",
    "last", "pick", "without",
)  # fmt: skip
"""The parameters that choose dead letters. `find` says that there is a choice, even of all."""
_STRANGE: Final = (
    "the form is out of date, or comes from another site: load the page again, and confirm again"
)
_DEAD_LETTERS: Final = "dead_letters"  # a check of the page only, because old letters may stay
_ISOLATING: Final = "isolating"  # a check of the page only, because it ends without the owner


class Forbidden(SparkMQError):
    """The server offers no changes, or a form does not belong to this visitor."""


@dataclass(frozen=True, slots=True)
class View:
    """One request."""

    monitor: QueueMonitor
    name: str  # of the queue on the page. Empty on the first page
    query: Mapping[str, str]  # commas separate ticked letters
    health: HealthLimits
    allow_changes: bool
    user: str
    csrf_token: str = field(repr=False)  # a form must carry it
    from_page: bool = True  # False without the cookie, or if another site made the browser send it

    @property
    def queue(self) -> Queue:
        return self.monitor.queue(self.name)

    @property
    def overview(self) -> QueueOverview:
        return self.monitor.overview(self.name)

    def text(self, name: str) -> str | None:
        """Return a parameter, or None if it is missing or empty."""
        return self.query.get(name, "").strip().removeprefix("\ufeff") or None

    def several(self, name: str) -> list[str]:
        """Return the values of a parameter that may be repeated."""
        return [part for part in self.query.get(name, "").split(",") if part]

    def number(
        self, name: str, *, least: int = 0, most: int = MAX_NUMBER, text: str | None = None
    ) -> int | None:
        """Return a parameter, or its value ``text``, as a number, or None without it."""
        text = text or self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 19):
            raise invalid(name, text, "is not a number: give digits")
        value = int(text)
        if not least <= value <= most:
            raise invalid(name, value, f"is out of range: give {least} to {most}")
        return value

    def sequence(self, name: str) -> int | None:
        """Return a parameter as a sequence, or None without it. It may be version:row."""
        text = self.text(name)
        return None if text is None else self.number(name, text=number_in(text))

    def check_form(self) -> None:
        """Raise Forbidden, unless the request is a form of this visitor."""
        given = (self.text("csrf") or "").encode()
        if not (self.from_page and hmac.compare_digest(given, self.csrf_token.encode())):
            raise Forbidden(_STRANGE)

    def letters(self) -> LetterFilter | None:
        """Return which dead letters the parameters of LETTER_FIELDS choose, or None without any."""
        picked = tuple(self.number("pick", text=letter) or 0 for letter in self.several("pick"))
        if self.text("find") is None:
            return LetterFilter(letters=picked) if picked else None
        if not self.from_page:  # another site must not start a search of all letters
            raise Forbidden(_STRANGE)
        since, until = (
            None if (text := self.text(name)) is None else parse_instant(name, text)
            for name in ("since", "until")
        )
        exact = ("died_in", "reason", "shape", "key_prefix", "message_id")  # spaces count
        return LetterFilter(
            **{name: self.query.get(name) or None for name in exact},
            since=since,
            until=until,
            first=self.sequence("first"),
            last=self.sequence("last"),
            letters=picked,
            without=tuple(self.several("without")),
        )

    def schedule(self) -> ScheduleInfo:
        """Return the schedule that the parameters name. Raise ScheduleNotFound."""
        name = self.text("schedule") or ""
        for schedule in self.queue.schedules():
            if schedule.name == name:
                return schedule
        raise ScheduleNotFound(f"there is no schedule {name!r} in {self.name}", schedule=name)

    def group(self) -> tuple[ConsumerGroup, GroupStats]:
        name, overview = self.text("group") or "", self.overview
        if name in overview.damaged:
            raise GroupNotFound(overview.damaged[name], group=name)
        if name not in overview.groups:
            raise GroupNotFound(f"there is no group {name!r} in {self.name}", group=name)
        return self.queue.group(name), overview.groups[name]


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


@dataclass(frozen=True, slots=True)
class PageProblem:
    """A problem of a queue, with the page that shows more."""

    queue: str
    check: str
    group: str | None
    text: str
    address: str

    @property
    def name(self) -> str:
        return self.check.replace("_", " ")

    @property
    def kind(self) -> str:
        return "bad" if self.check == "unreadable" else "warn"


def health_of(view: View, overview: QueueOverview) -> Health:
    """Return a queue's health under the server's limits."""
    return check_health(overview, datetime.now(UTC), view.health)


def problems_of(view: View, name: str, overview: QueueOverview) -> list[PageProblem]:
    """Return why a queue is unhealthy, which groups isolate suspects, and its dead letters."""
    problems = [*health_of(view, overview).problems, *_isolation(overview)]
    problems += _dead_letters(view, overview)
    return [
        PageProblem(name, problem.check, problem.group, problem.text, _address(name, problem))
        for problem in problems
    ]


def unreadable(name: str, error: SparkMQError) -> PageProblem:
    text = str(error) or type(error).__name__
    return PageProblem(name, "unreadable", None, text, href("queue", name))


def _isolation(overview: QueueOverview) -> Iterator[Problem]:
    for name, stats in overview.groups.items():
        if text := stats.isolation:
            shown = text.removeprefix(_ISOLATING)  # the check has its name
            yield Problem(_ISOLATING, name, f"group {name!r}:{shown}")


def _dead_letters(view: View, overview: QueueOverview) -> list[Problem]:
    letters, limit = overview.dead_letters, view.health.max_dead
    if letters is None:  # with a limit it is one of the health
        text = "the dead-letter queue cannot be read"
        return [] if limit is not None else [Problem("unreadable", None, text)]
    if not letters or (limit is not None and letters > limit):
        return []
    return [Problem(_DEAD_LETTERS, None, f"{show_count(letters, 'letter')} not redriven")]


def _address(name: str, problem: Problem) -> str:
    if problem.check in (_DEAD_LETTERS, "too_many_dead"):
        return href("letters", name)
    if problem.group is None or problem.check == "unreadable":
        return href("sweeps", name)
    return href("group", name, group=problem.group)


def first_problems(problems: list[PageProblem], most: int) -> list[PageProblem]:
    """Return the first problems of a queue. Behind them stands how many more it has."""
    if (more := len(problems) - most) <= 0:
        return problems
    name = problems[0].queue
    return [
        *problems[:most],
        PageProblem(name, f"{show_number(more)} more", None, "", href("sweeps", name)),
    ]


def lead_with(view: View, problems: Iterable[PageProblem], healthy: str) -> dict[str, Any]:
    """Return what `problems.html` shows: the problems, or the text `healthy` without any.

    A part that refreshes itself brings them if they are not those that the browser has. So a
    screen reader reads news only.
    """
    shown = list(problems)
    text = "\n".join("\t".join((problem.address, problem.check, problem.text)) for problem in shown)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {
        "problems": shown,
        "healthy": healthy,
        "digest": digest,
        "is_news": view.text("part") == "live" and view.text("known") != digest,
    }
