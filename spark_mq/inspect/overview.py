"""Describe the sizes, groups and sweeps of a queue, and show them in a notebook."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import SparkMQError
from spark_mq.inspect.durations import DurationReader, GroupDurations
from spark_mq.inspect.lanes import LaneSummary, list_lanes, list_priorities, summarize_lanes
from spark_mq.inspect.leases import list_leases
from spark_mq.inspect.stats import StatsReader
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.settings import QueueSettings
from spark_mq.ledger.stats import GroupStats, figures_of
from spark_mq.maintenance.remaining_letters import REDRIVE
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.operations.schedules import oldest_due
from spark_mq.util.clock import to_datetime
from spark_mq.util.records import Record, object_html, rows_html
from spark_mq.util.show import show_age, show_count, show_number, show_size, show_time


@dataclass(frozen=True, slots=True)
class SweepState(Record):
    """The results of the last sweeps, and the work that waits.

    A sweep that finds nothing to do leaves no trace, so ``last_change_at`` of an idle queue may be
    old. ``waiting_since`` shows whether a sweep is missing.

    Attributes
    ----------
    last_change_at
        When a sweep last changed ``history/`` or ``commits/``. None before the first one.
    waiting_since
        Since when work waits: the time of the oldest commit of ``leases/`` that no sweep has
        archived, or an earlier instant of a schedule that is due. None if nothing waits.
    unarchived_commits
        The number of these commits.
    unindexed_commits
        Commits of ``messages/`` that no sweep has written down.
    """

    last_change_at: datetime | None
    waiting_since: datetime | None
    unarchived_commits: int
    unindexed_commits: int


def sweep_state(context: QueueContext) -> SweepState:
    archived, archived_at = context.history.progress()
    indexed, indexed_at = context.messages.index_progress()
    times = [at for at in (archived_at, indexed_at) if at is not None]
    # The first commit makes the table. No sweep archives it.
    first, latest = max(1, archived + 1), context.ledgers.version()
    oldest = context.ledgers.commit_time(first) if first <= latest else None
    version = context.messages.index().version
    waiting = [at for at in (oldest, oldest_due(context)) if at is not None]
    return SweepState(
        to_datetime(max(times)) if times else None,
        to_datetime(min(waiting)) if waiting else None,
        max(0, latest - first + 1),
        max(0, version - max(0, indexed)),
    )


MAX_SUMMARIES: Final = 20  # groups whose lanes one overview counts
_COUNTS: Final = (
    "ready", "delayed", "leased", "dead", "blocked", "acked", "dead_lettered",
)  # fmt: skip
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
    latest_sequence, version
        The last sequence, or -1, and the version of ``messages/``.
    horizon
        Messages up to this sequence may be gone. -1 before the first trim.
    groups
        The stats of each group by name.
    damaged
        Why the ledger of a group cannot be read, by group.
    dead_letters
        Messages in the dead-letter queue that are neither redriven nor discarded. None if it cannot
        be read.
    sweeps
        The state of the sweeps.
    lanes
        The priorities and lanes of the busiest groups that use them, if they were requested.
    durations
        Histograms of each group by name, if they were requested.
    """

    path: str
    name: str
    settings: QueueSettings
    published: int
    retained: int
    retained_bytes: int
    latest_sequence: int
    version: int
    horizon: int
    last_published_at: datetime | None
    groups: Mapping[str, GroupStats]
    damaged: Mapping[str, str]
    dead_letters: int | None
    sweeps: SweepState
    lanes: Mapping[str, LaneSummary] = field(default_factory=dict)
    durations: Mapping[str, GroupDurations] = field(default_factory=dict)

    @property
    def unrouted(self) -> int:
        """Return how many dead messages of all groups wait for a sweep, so are no letters yet."""
        return sum(group.dead + group.transferring for group in self.groups.values())

    @property
    def oldest_unsettled_age(self) -> timedelta | None:
        """Return the greatest age of an unsettled message in any group, or None without one."""
        ages = (group.oldest_unsettled_age for group in self.groups.values())
        return max((age for age in ages if age is not None), default=None)

    def __str__(self) -> str:
        return "\n".join(_overview_lines(self))

    def _repr_html_(self) -> str:
        return overview_html(self)


def _overview_lines(overview: QueueOverview) -> Iterator[str]:
    sweeps, letters = overview.sweeps, overview.dead_letters
    yield (
        f"{overview.name}: {show_number(overview.published)} published, "
        f"{show_number(overview.retained)} retained, "
        f"{'unknown' if letters is None else show_number(letters)} dead letters, "
        f"{show_number(overview.unrouted)} dead and waiting for a sweep, "
        f"last sweep {show_time(sweeps.last_change_at)}, "
        f"{show_count(sweeps.unarchived_commits, 'commit')} waiting for a sweep"
    )
    for name, stats in islice(overview.groups.items(), MAX_LINES):
        counts = ", ".join(f"{count} {show_number(getattr(stats, count))}" for count in _COUNTS)
        oldest = f", oldest {show_age(stats.oldest_unsettled_age)}"
        stopped = f", leases nothing: {stats.blocked_because}" if stats.blocked_because else ""
        isolates = f", {stats.isolation}" if stats.isolating else ""
        yield f"  {name}: {counts}{oldest}{stopped}{isolates}"
    if (more := len(overview.groups) - MAX_LINES) > 0:
        yield f"  and {show_count(more, 'more group')}"
    for name, why in overview.damaged.items():
        yield f"  {name} is damaged: {why}"


def groups_html(groups: Mapping[str, GroupStats]) -> str:
    rows = [{"group": name, **asdict(stats)} for name, stats in groups.items()]
    owner = next((type(stats) for stats in groups.values()), GroupStats)
    shown = [
        name for name, figure in figures_of(owner).items() if figure.heading or name in _COUNTS
    ]
    return rows_html(rows, ("group", *shown), "Groups")


def overview_facts(overview: QueueOverview) -> dict[str, Any]:
    """Return the sizes and the sweeps of a queue as people read them."""
    sweeps = overview.sweeps
    return {
        "queue": overview.path,
        "published": f"{show_count(overview.published, 'message')}, the last one "
        f"{show_time(overview.last_published_at)}",
        "retained": f"{show_count(overview.retained, 'message')}, "
        f"{show_size(overview.retained_bytes)}",
        "latest sequence": overview.latest_sequence,
        "horizon": overview.horizon,
        "dead letters": overview.dead_letters,
        "dead, waiting for a sweep": overview.unrouted,
        "last sweep": f"{show_time(sweeps.last_change_at)}, "
        f"{show_count(sweeps.unarchived_commits, 'commit')} waiting",
        "groups": len(overview.groups) + len(overview.damaged),
        "lanes": overview.settings.lanes or "none",
    }


def overview_html(overview: QueueOverview) -> str:
    damaged = [{"group": name, "damaged": why} for name, why in overview.damaged.items()]
    more = rows_html(damaged, title="Damaged groups") if damaged else ""
    facts = object_html(overview_facts(overview), f"Queue {overview.name}")
    return facts + groups_html(overview.groups) + more


def describe(
    context: QueueContext,
    reader: StatsReader | None = None,
    *,
    lanes: bool = False,
    durations: DurationReader | None = None,
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
        settings=context.settings,
        published=index.total,
        retained=retained,
        retained_bytes=index.size(horizon + 1, index.last_sequence) if retained else 0,
        latest_sequence=index.last_sequence,
        version=index.version,
        horizon=horizon,
        last_published_at=_last_publish(index),
        groups=groups,
        damaged=damaged,
        dead_letters=count_dead_letters(context),
        sweeps=sweep_state(context),
        lanes=_lanes(context, index, groups, ordered) if lanes else {},
        durations={} if durations is None else durations.read(groups, index),
    )


def _lanes(
    context: QueueContext, index: MessageIndex, groups: Mapping[str, GroupStats], ordered: set[str]
) -> dict[str, LaneSummary]:
    using = [
        name
        for name, own in groups.items()
        if name in ordered or index.priorities_after(own.start_sequence) != 1
    ]
    busiest = sorted(using, key=lambda name: (-groups[name].backlog, name))[:MAX_SUMMARIES]
    summaries: dict[str, LaneSummary] = {}
    for name in sorted(busiest):
        with contextlib.suppress(SparkMQError):  # dropped meanwhile, or damaged and in `damaged`
            summaries[name] = summarize_lanes(context.group(name))
    return summaries


def _last_publish(index: MessageIndex) -> datetime | None:
    return to_datetime(index.files[-1].committed_at) if index.files else None


def count_dead_letters(context: QueueContext) -> int | None:
    """Return how many dead letters are neither redriven nor discarded, or None if unreadable."""
    try:
        dead = context.existing_dead_letters()
        if dead is None or dead.path == context.path:
            return 0
        stats = dead.group(REDRIVE).stats()
    except SparkMQError:
        return None
    return stats.ready + stats.delayed


NOTEBOOK_ERRORS: Final = (SparkMQError, *STORE_ERRORS)
_LANE_COLUMNS: Final = (
    "lane", "messages", "share", "ready", "leased", "head", "head_age", "held_back", "because",
)  # fmt: skip


class QueueStats(dict[str, Any]):
    """The counts of a queue, a dict with a table for notebooks."""

    def _repr_html_(self) -> str:
        counts = {name: value for name, value in self.items() if name != "groups"}
        return object_html(counts, "Queue") + groups_html(self["groups"])


def group_html(group: GroupLedger) -> str:
    stats = group.stats()
    facts = {"queue": group.queue_path, **asdict(stats)}
    leases = rows_html(list_leases(group), title="Leases")
    return object_html(facts, f"Group {group.name}") + leases + _lanes_html(group)


def _lanes_html(group: GroupLedger) -> str:
    priorities, lanes = list_priorities(group), list_lanes(group, 10, "messages")
    shown = rows_html(priorities, title="Priorities") if len(priorities) > 1 else ""
    return shown + (rows_html(lanes, _LANE_COLUMNS, "Hottest lanes") if lanes else "")


def failed_html(title: str, error: BaseException) -> str:
    return object_html({"cannot be read": error}, title)
