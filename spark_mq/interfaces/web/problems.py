"""Find what is wrong with a queue, as the pages lead with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from spark_mq.errors import SparkMQError
from spark_mq.inspect import Health, Problem, QueueOverview
from spark_mq.inspect.health import check_health
from spark_mq.interfaces.web.view import View, href
from spark_mq.util.show import show_count, show_number

_DEAD_LETTERS: Final = "dead_letters"  # a check of the page only, because old letters may stay
_ISOLATING: Final = "isolating"  # a check of the page only, because it ends without the owner


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
