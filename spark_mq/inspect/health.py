"""Check the health of a queue, and find what blocks groups or the trim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from spark_mq.inspect.overview import QueueOverview
from spark_mq.ledger.budget import is_stopped
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, LEASED, SETTLED, UNREAD, Range
from spark_mq.ledger.stats import GroupStats
from spark_mq.ledger.walk import range_of, walk
from spark_mq.maintenance.retention import find_held_back
from spark_mq.operations.context import QueueContext
from spark_mq.util.clock import Duration, to_datetime
from spark_mq.util.records import Record
from spark_mq.util.show import show_age, show_count, show_number
from spark_mq.util.validation import validate_count, validate_duration

MAX_RANGES: Final = 100  # blocked ranges of a group that are listed


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
        return "healthy" if self.healthy else "\n".join(problem.text for problem in self.problems)


@dataclass(frozen=True, slots=True)
class Blocker(Record):
    """A reason why a group or the trim is blocked.

    Attributes
    ----------
    group, blocks
        "leases": the group leases nothing. "trim": it keeps old messages in the queue.
    because
        The cap, the limit, or the state of the message.
    first, last
        The messages that block, inclusive. None if a cap blocks.
    messages
        The number of messages that wait.
    lease_id, worker_id
        The lease of the messages that block, and its worker.
    since, error
        The publish of the first message that blocks, and the text of its last failure.
    """

    group: str
    blocks: str
    because: str
    first: int | None
    last: int | None
    messages: int
    lease_id: str | None = None
    worker_id: str | None = None
    since: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """The limits of a healthy queue, see :meth:`spark_mq.Queue.health`."""

    max_unswept: Duration | None = "1h"
    max_age: Duration | None = None
    max_dead: int | None = None


def find_blockers(context: QueueContext, stats: Mapping[str, GroupStats]) -> list[Blocker]:
    index = context.messages.index()
    blockers = [
        blocker for name, own in stats.items() for blocker in _of_leases(context, index, name, own)
    ]
    return [*blockers, *_of_trim(context, index, stats)]


def _of_leases(
    context: QueueContext, index: MessageIndex, name: str, stats: GroupStats
) -> Iterator[Blocker]:
    if stats.blocked_because and not stats.blocked:
        yield Blocker(name, "leases", stats.blocked_because, None, None, stats.ready)
    if stats.blocked:
        ledger = context.group(name).current()
        rows = ledger.find((BLOCKED,))[:MAX_RANGES]
        for r in ledger.ranges_at(rows):
            yield Blocker(
                name,
                "leases",
                r.reason or "blocked",
                r.first,
                r.last,
                stats.ready,
                since=to_datetime(index.file_at(r.first).committed_at),
                error=r.error,
            )


def _of_trim(
    context: QueueContext, index: MessageIndex, stats: Mapping[str, GroupStats]
) -> Iterator[Blocker]:
    """Yield the groups whose first unsettled message holds back the trim."""
    held = find_held_back(context, index, {name: own.start_sequence for name, own in stats.items()})
    if held is None:
        return
    for name in held.groups:
        if (first := _first_unsettled(context, index, name, held.start_sequence)) is None:
            continue
        state, r = first
        leased = state == LEASED
        yield Blocker(
            name,
            "trim",
            state,
            r.first,
            r.last,
            held.messages,
            lease_id=r.lease_id if leased else None,
            worker_id=r.worker if leased else None,
            since=to_datetime(index.file_at(r.first).committed_at),
            error=r.error,
        )


def _first_unsettled(
    context: QueueContext, index: MessageIndex, name: str, start: int
) -> tuple[str, Range] | None:
    ledger = context.group(name).current()
    for piece in islice(walk(ledger, index, context.now(), start + 1), MAX_RANGES):
        if piece.state != SETTLED or piece.row is None:
            # A lease has still to skip those that the group does not get.
            state = UNREAD if piece.state == SETTLED else piece.state
            return state, range_of(piece, ledger, index)
    return None


def check_health(overview: QueueOverview, now: datetime, limits: HealthLimits) -> Health:
    """Return the problems of a queue under some limits. Raise InvalidOption for a wrong limit."""
    unswept = _micros("max_unswept", limits.max_unswept)
    age = _micros("max_age", limits.max_age)
    if limits.max_dead is not None:
        validate_count("max_dead", limits.max_dead, least=0, most=2**63 - 1)
    problems = [
        Problem("unreadable", name, f"group {name!r} is damaged: {why}")
        for name, why in overview.damaged.items()
    ]
    problems += _sweep_problems(overview, now, unswept)
    for name, stats in overview.groups.items():
        problems += _group_problems(name, stats, age)
    problems += _dead_problems(overview, limits.max_dead)
    return Health(not problems, tuple(problems))


def _micros(name: str, limit: Duration | None) -> int | None:
    return None if limit is None else validate_duration(name, limit)


def _sweep_problems(overview: QueueOverview, now: datetime, limit: int | None) -> list[Problem]:
    since = overview.sweeps.waiting_since
    if limit is None or since is None:
        return []
    waited = now - since
    if waited <= timedelta(microseconds=limit):
        return []
    commits = overview.sweeps.unarchived_commits
    waits = f"waiting: {show_count(commits, 'commit')}" if commits else "a schedule is due"
    text = f"the queue was not swept for {show_age(waited)}: {waits}. Run a sweep."
    return [Problem("not_swept", None, text)]


def _group_problems(name: str, stats: GroupStats, limit: int | None) -> list[Problem]:
    problems = []
    if is_stopped(stats.blocked_because):
        text = f"group {name!r} leases nothing: {stats.blocked_because}"
        problems.append(Problem("blocked", name, text))
    age = stats.oldest_unsettled_age
    if limit is not None and age is not None and age > timedelta(microseconds=limit):
        text = f"group {name!r} has a message that is {show_age(age)} old and not settled"
        problems.append(Problem("too_old", name, text))
    return problems


def _dead_problems(overview: QueueOverview, limit: int | None) -> list[Problem]:
    if limit is None:
        return []
    if overview.dead_letters is None:
        return [Problem("unreadable", None, "the dead-letter queue cannot be read")]
    dead = overview.dead_letters + overview.unrouted
    if dead <= limit:
        return []
    unrouted = overview.unrouted
    waiting = f" ({show_number(unrouted)} waiting for a sweep)" if unrouted else ""
    text = f"{show_count(dead, 'dead message')}{waiting}, more than {limit}"
    return [Problem("too_many_dead", None, text)]
