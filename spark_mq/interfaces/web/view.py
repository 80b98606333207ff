"""Define a request as the pages use it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_mq.errors import (
    GroupNotFound,
    InvalidOption,
    ScheduleNotFound,
    SparkMQError,
)
from spark_mq.group import ConsumerGroup
from spark_mq.inspect import QueueOverview
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.ledger.stats import GroupStats
from spark_mq.maintenance.condition import LetterFilter
from spark_mq.operations.schedules import ScheduleInfo
from spark_mq.queue import Queue
from spark_mq.util.clock import Duration
from spark_mq.util.sequences import number_in
from spark_mq.util.validation import parse_instant

__all__ = ["LETTER_FIELDS", "Forbidden", "HealthLimits", "View"]

MAX_NUMBER: Final = 2**63 - 1
LETTER_FIELDS: Final = (
    "find", "died_in", "reason", "shape", "key_prefix", "message_id", "since", "until", "first",
    "last", "pick", "without",
)  # fmt: skip
"""The parameters that choose dead letters. `find` says that there is a choice, even of all."""
_STRANGE: Final = (
    "the form is out of date, or comes from another site: load the page again, and confirm again"
)


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """The limits of a healthy queue, see :meth:`spark_mq.Queue.health`."""

    max_unswept: Duration | None = "1h"
    max_age: Duration | None = None
    max_dead: int | None = None


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

    def _exact(self, name: str) -> str | None:
        """Return a parameter with its spaces, or None if it is missing or empty."""
        return self.query.get(name) or None

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
            raise InvalidOption(
                f"{name}={text[:40]!r} is not a number: give digits", option=name, value=text
            )
        value = int(text)
        if not least <= value <= most:
            raise InvalidOption(
                f"{name}={value} is out of range: give {least} to {most}", option=name, value=value
            )
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
        return LetterFilter(
            died_in=self._exact("died_in"),
            reason=self._exact("reason"),
            shape=self._exact("shape"),
            key_prefix=self._exact("key_prefix"),
            message_id=self._exact("message_id"),
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
