"""Describe the sizes, groups, sweeps and health of a queue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from spark_mq.errors import SparkMQError
from spark_mq.inspect.lanes import LaneSummary, summarize_lanes
from spark_mq.inspect.stats import StatsReader
from spark_mq.inspect.sweeps import SweepState, sweep_state
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.stats import GroupStats
from spark_mq.maintenance.redrive import REDRIVE
from spark_mq.operations.context import QueueContext
from spark_mq.operations.public_settings import QueueSettings, public_queue_settings
from spark_mq.util.clock import Duration, to_datetime
from spark_mq.util.html import object_html, rows_html
from spark_mq.util.records import Record
from spark_mq.util.show import show_age, show_time
from spark_mq.util.validation import validate_count, validate_duration

__all__ = [
    "Health",
    "Problem",
    "QueueOverview",
    "check_health",
    "count_dead_letters",
    "describe",
    "groups_html",
    "overview_html",
]


MAX_SUMMARIES: Final = 20  # groups whose lanes one look counts
_BUSY: Final = "max_in_flight"  # the cap that a busy group reaches, which is no problem
_COUNTS: Final = (
    "ready", "delayed", "leased", "dead", "blocked", "acked", "dead_lettered",
)  # fmt: skip
_GROUP_COLUMNS: Final = ("group", *_COUNTS, "oldest_unsettled_age", "blocked_because")
MAX_LINES: Final = 50  # groups in the text of an overview


@dataclass(frozen=True, slots=True)
class QueueOverview(Record):
    """An overview of a queue.

    Attributes
    ----------
    path, name, settings
        Its place and its settings.
    published, last_published_at
        Messages since it was created, and the time of the last publish. None without one.
    retained, retained_bytes
        Messages above the trim horizon, and the size of their files.
    tail, version
        The last sequence, or -1, and the version of ``messages/``.
    horizon
        Messages up to this sequence may be gone. -1 before the first trim.
    groups
        The stats of each group by name.
    damaged
        Why the ledger of a group cannot be read, by group.
    dead_letters
        Messages in the dead-letter queue that were not redriven. None if it cannot be read.
    sweeps
        The state of the sweeps.
    lanes
        The priorities and lanes of the busiest groups that use them, if they were requested.
    """

    path: str
    name: str
    settings: QueueSettings
    published: int
    retained: int
    retained_bytes: int
    tail: int
    version: int
    horizon: int
    last_published_at: datetime | None
    groups: Mapping[str, GroupStats]
    damaged: Mapping[str, str]
    dead_letters: int | None
    sweeps: SweepState
    lanes: Mapping[str, LaneSummary] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(_overview_lines(self))

    def _repr_html_(self) -> str:
        return overview_html(self)


@dataclass(frozen=True, slots=True)
class Problem(Record):
    """One reason why a queue is unhealthy.

    Attributes
    ----------
    check
        "unreadable", "not_swept", "blocked", "too_old" or "too_many_dead".
    group, text
        The name of the group, or None, and the reason for people.
    """

    check: str
    group: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Health(Record):
    """Whether a queue is ``healthy``, and its ``problems`` if it is not."""

    healthy: bool
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        return "healthy" if self.healthy else "\n".join(one.text for one in self.problems)


def _overview_lines(overview: QueueOverview) -> Iterator[str]:
    sweeps, letters = overview.sweeps, overview.dead_letters
    yield (
        f"{overview.name}: {overview.published:,} published, {overview.retained:,} retained, "
        f"{'unknown' if letters is None else f'{letters:,}'} dead letters, "
        f"last sweep {show_time(sweeps.last_change_at)}, "
        f"{sweeps.unarchived_commits:,} commits wait for a sweep"
    )
    for name, stats in islice(overview.groups.items(), MAX_LINES):
        counts = ", ".join(f"{count} {getattr(stats, count):,}" for count in _COUNTS)
        oldest = f", oldest {show_age(stats.oldest_unsettled_age)}"
        stopped = f", leases nothing: {stats.blocked_because}" if stats.blocked_because else ""
        yield f"  {name}: {counts}{oldest}{stopped}"
    if (more := len(overview.groups) - MAX_LINES) > 0:
        yield f"  and {more:,} more groups"
    for name, why in overview.damaged.items():
        yield f"  {name} is damaged: {why}"


def groups_html(groups: Mapping[str, GroupStats]) -> str:
    rows = [{"group": name, **asdict(stats)} for name, stats in groups.items()]
    return rows_html(rows, _GROUP_COLUMNS, "Groups")


def overview_html(overview: QueueOverview) -> str:
    sweeps = overview.sweeps
    facts = {
        "path": overview.path,
        "published": overview.published,
        "retained": overview.retained,
        "last published": overview.last_published_at,
        "dead letters": overview.dead_letters,
        "last sweep": sweeps.last_change_at,
        "commits that wait for a sweep": sweeps.unarchived_commits,
    }
    damaged = [{"group": name, "damaged": why} for name, why in overview.damaged.items()]
    more = rows_html(damaged, title="Damaged groups") if damaged else ""
    return object_html(facts, f"Queue {overview.name}") + groups_html(overview.groups) + more


def describe(
    context: QueueContext, reader: StatsReader | None = None, *, lanes: bool = False
) -> QueueOverview:
    reader = reader or StatsReader(context)
    index, horizon = context.messages.index(), context.horizon()
    with reader.lock:
        groups, damaged = reader.read(index), dict(reader.damaged)
        ordered = reader.ordered()
    retained = index.count(horizon + 1, index.last_sequence)
    return QueueOverview(
        path=context.path,
        name=context.name,
        settings=public_queue_settings(context.settings),
        published=index.total,
        retained=retained,
        retained_bytes=index.size(horizon + 1, index.last_sequence) if retained else 0,
        tail=index.last_sequence,
        version=index.version,
        horizon=horizon,
        last_published_at=_last_publish(index),
        groups=groups,
        damaged=damaged,
        dead_letters=count_dead_letters(context),
        sweeps=sweep_state(context),
        lanes=_lanes(context, index, groups, ordered) if lanes else {},
    )


def _lanes(
    context: QueueContext, index: MessageIndex, groups: Mapping[str, GroupStats], ordered: set[str]
) -> dict[str, LaneSummary]:
    """Return summaries of the busiest groups with order or priorities."""
    using = [
        name
        for name, own in groups.items()
        if name in ordered or index.priorities_after(own.floor) != 1
    ]
    busiest = sorted(using, key=lambda name: (-_backlog(groups[name]), name))[:MAX_SUMMARIES]
    found: dict[str, LaneSummary] = {}
    for name in sorted(busiest):
        with contextlib.suppress(SparkMQError):  # dropped meanwhile, or damaged and in `damaged`
            found[name] = summarize_lanes(context.group(name))
    return found


def _backlog(stats: GroupStats) -> int:
    return stats.ready + stats.delayed + stats.leased + stats.blocked


def _last_publish(index: MessageIndex) -> datetime | None:
    return to_datetime(index.files[-1].committed_at) if index.files else None


def count_dead_letters(context: QueueContext) -> int | None:
    """Return how many dead letters were not redriven, or None if they cannot be read.

    Nothing is created: a queue without a dead-letter queue has no dead letters.
    """
    try:
        dead = context.existing_dead_letters()
        if dead is None or dead.path == context.path:
            return 0
        stats = dead.group(REDRIVE).stats()
    except SparkMQError:
        return None
    return stats.ready + stats.delayed


def check_health(
    overview: QueueOverview,
    now: datetime,
    *,
    max_unswept: Duration | None = "1h",
    max_age: Duration | None = None,
    max_dead: int | None = None,
) -> Health:
    unswept = None if max_unswept is None else validate_duration("max_unswept", max_unswept)
    age = None if max_age is None else validate_duration("max_age", max_age)
    if max_dead is not None:
        validate_count("max_dead", max_dead, least=0, most=2**63 - 1)
    problems = [
        Problem("unreadable", name, f"the ledger of group {name!r} cannot be read: {why}")
        for name, why in overview.damaged.items()
    ]
    problems += _sweep_problems(overview, now, unswept)
    for name, stats in overview.groups.items():
        problems += _group_problems(name, stats, age)
    problems += _dead_problems(overview, max_dead)
    return Health(not problems, tuple(problems))


def _sweep_problems(overview: QueueOverview, now: datetime, limit: int | None) -> list[Problem]:
    since = overview.sweeps.waiting_since
    if limit is None or since is None:
        return []
    waited = now - since
    if waited <= timedelta(microseconds=limit):
        return []
    commits = overview.sweeps.unarchived_commits
    seconds = waited.total_seconds()
    text = f"the queue was not swept for {seconds:.0f} s: {commits} commits wait. Run a sweep."
    return [Problem("not_swept", None, text)]


def _group_problems(name: str, stats: GroupStats, limit: int | None) -> list[Problem]:
    found = []
    if stats.blocked_because and stats.blocked_because != _BUSY:
        text = f"group {name!r} leases nothing: {stats.blocked_because}"
        found.append(Problem("blocked", name, text))
    age = stats.oldest_unsettled_age
    if limit is not None and age is not None and age > timedelta(microseconds=limit):
        text = f"group {name!r} has a message that is {age.total_seconds():.0f} s old and not "
        text += "settled"
        found.append(Problem("too_old", name, text))
    return found


def _dead_problems(overview: QueueOverview, limit: int | None) -> list[Problem]:
    if limit is None:
        return []
    if overview.dead_letters is None:
        return [Problem("unreadable", None, "the dead-letter queue cannot be read")]
    dead = overview.dead_letters + sum(stats.dead for stats in overview.groups.values())
    if dead <= limit:
        return []
    return [Problem("too_many_dead", None, f"{dead} messages are dead, more than {limit}")]
