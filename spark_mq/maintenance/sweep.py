"""Run the chores that keep a queue small.

No chore is needed for correct delivery. Each is safe to kill, to repeat, and to run twice at the
same time. The commit that publishes a schedule's messages, for example, also moves the number of
the schedule to the last instant in it, and lands only if that number and the schedule are still as
they were read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa

from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.errors import DuplicatePublish, GroupNotFound, ProducerFenced
from spark_mq.ledger.owner_commands import Expire
from spark_mq.ledger.recurrence import jitter_of
from spark_mq.maintenance.dead_letters import route_dead_letters
from spark_mq.maintenance.retention import Trimmed, trim
from spark_mq.message import HEADER_PREFIX, from_rows, to_publish
from spark_mq.operations.batches import complete_batch, names_of_closed_batches
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.operations.publish import publish_table
from spark_mq.storage.history_table import Archived
from spark_mq.storage.stored_entries import SCHEDULES, Schedule, schedule_txn
from spark_mq.util.clock import MICROSECOND, to_datetime
from spark_mq.util.progress import counted, step
from spark_mq.util.records import Record
from spark_mq.util.show import show_some

T = TypeVar("T")
D = TypeVar("D")
_CHORES = 7
MAX_INSTANTS: Final = 1_000  # of a schedule in one sweep
MAX_BYTES: Final = 8 * 2**20  # of their payloads
_TRIES: Final = 3  # each one is lost to another sweep, or to a change of the schedule
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SweepReport(Record):
    """The results of one sweep of a queue, without its dead-letter queue's own tables.

    Attributes
    ----------
    expired, routed
        Messages whose lease expired, and messages moved to the dead-letter queue.
    trimmed_files, cleaned_files
        Files dropped from ``messages/``, and files of the tables' logs and of old versions of
        ``leases/``.
    indexed_commits, archived_commits
        Commits of ``messages/`` written down in ``commits/``, and commits of ``leases/`` in
        ``history/``.
    scheduled, completed_batches
        Messages of schedules, and completion messages of batches, that were published.
    trim_blocked_by
        The groups whose first unsettled message keeps messages that are old enough to go.
    """

    expired: int = 0
    routed: int = 0
    trimmed_files: int = 0
    cleaned_files: int = 0
    indexed_commits: int = 0
    archived_commits: int = 0
    scheduled: int = 0
    completed_batches: int = 0
    trim_blocked_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = asdict(self)
        groups = values.pop("trim_blocked_by")
        shown = [f"{name.replace('_', ' ')}: {value}" for name, value in values.items()]
        shown += [f"trim blocked by: {show_some(groups, 5)}"] if groups else []
        return ", ".join(shown)


def run_sweep(context: QueueContext) -> SweepReport:
    """Run all chores once, also on the dead-letter queue. Raise the first error at the end."""
    context.check_tables()  # a chore may delete files that a recovery needs
    chores = _ChoreRunner(context)
    step(f"chore 1 of {_CHORES}: index commits")
    indexed = chores.run(index_commits, context, default=0)  # makes later reads of the log cheaper
    step(f"chore 2 of {_CHORES}: publish schedules")
    scheduled = _run_each(chores, context, names_of_schedules, publish_due)
    groups = chores.run(context.groups, default=[])
    expired = routed = 0
    # One after the other, so that each ledger is read once.
    for group in counted(f"chore 3 of {_CHORES}: groups", groups):
        expired += chores.run(_expire, group, default=0)
        routed += chores.run(route_dead_letters, context, group, default=0)
    step(f"chore 4 of {_CHORES}: complete batches")
    completed = _run_each(chores, context, names_of_closed_batches, complete_batch)
    step(f"chore 5 of {_CHORES}: trim")
    trimmed = chores.run(trim, context, default=Trimmed(0, ()))
    step(f"chore 6 of {_CHORES}: archive and clean")
    cleaned, commits = _archive_and_clean(chores, context)
    step(f"chore {_CHORES} of {_CHORES}: the dead-letter queue")
    dead = chores.run(context.dead_letters, default=context)
    if dead.path != context.path and chores.run(_tables_agree, dead, default=False):
        _sweep_dead_letters(chores, dead)
    pa.default_memory_pool().release_unused()  # it keeps tens of megabytes that a merge freed
    chores.raise_first_error()
    return SweepReport(
        expired,
        routed,
        trimmed.files,
        cleaned,
        indexed,
        commits,
        scheduled,
        completed,
        trimmed.blocked_by,
    )


def _run_each(
    chores: _ChoreRunner,
    context: QueueContext,
    names_of: Callable[[QueueContext], list[str]],
    chore: Callable[[QueueContext, str], int],
) -> int:
    """Run a chore for each name, so that one that cannot be read does not stop the others."""
    names = chores.run(names_of, context, default=[])
    return sum(chores.run(chore, context, name, default=0) for name in names)


def _expire(group: GroupLedger) -> int:
    try:
        return group.run(Expire())
    except GroupNotFound:  # somebody has dropped it since
        return 0


def _sweep_dead_letters(chores: _ChoreRunner, dead: QueueContext) -> None:
    chores.run(index_commits, dead, default=0)
    for group in chores.run(dead.groups, default=[]):
        chores.run(_expire, group, default=0)
        if dead.settings.is_dead_letter_queue:
            chores.run(route_dead_letters, dead, group, default=0)
    _archive_and_clean(chores, dead)


def _archive_and_clean(chores: _ChoreRunner, context: QueueContext) -> tuple[int, int]:
    """Archive ledger commits, then clean the tables. Return the deleted files and the commits."""
    archived = chores.run(archive_history, context, default=None)
    cleaned = chores.run(clean_messages, context, default=0)
    if archived is None:  # commits would go that are not in history/
        return cleaned, 0
    cleaned += chores.run(clean_ledgers, context, archived.up_to, default=0)
    return cleaned, archived.commits


def _tables_agree(context: QueueContext) -> bool:
    context.check_tables()
    return True


class _ChoreRunner:
    """Runs all chores, also after one has failed."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._failed: list[Exception] = []

    def run(self, chore: Callable[..., T], *args: Any, default: D) -> T | D:
        """Run a chore. Return `default` if it fails."""
        try:
            with wrap_store_errors(
                self._context.path, f"a sweep ({chore.__name__.strip('_').replace('_', ' ')}) of"
            ):
                return chore(*args)
        except Exception as error:
            if not any(str(error) == str(before) for before in self._failed):
                _log.error("a chore of the sweep failed. The others continue: %s", error)
                self._failed.append(error)
            return default

    def raise_first_error(self) -> None:
        if self._failed:
            raise self._failed[0]


def clean_messages(context: QueueContext) -> int:
    """Clean the logs of ``messages/`` and ``commits/``, dedup ids and leftovers. Count files."""
    messages = context.messages
    return messages.clean_ids() + messages.clean_leftovers() + messages.clean()


def clean_ledgers(context: QueueContext, archived: int) -> int:
    """Clean ``leases/``. Commits after `archived` stay. Return the file count."""
    return context.ledgers.clean(archived)


def index_commits(context: QueueContext) -> int:
    """Write each new commit of ``messages/`` to ``commits/`` once. Return their number."""
    return context.messages.index_commits()


def archive_history(context: QueueContext) -> Archived:
    """Archive the ledger commits that ``history/`` lacks."""
    return context.history.archive(context.settings.history_retention // MICROSECOND)


# -- schedules


def names_of_schedules(context: QueueContext) -> list[str]:
    """Return the names of the schedules as they were last read."""
    return SCHEDULES.names(context.messages.log.state)


def publish_due(context: QueueContext, name: str) -> int:
    """Publish the due messages of a schedule. Return their number."""
    state = context.messages.log.state
    for _ in range(_TRIES):
        published = _publish_instants(context, state, name)
        if published is not None:
            return published
        state = context.messages.look()
    return 0  # others publish them


def _publish_instants(context: QueueContext, state: TableState, name: str) -> int | None:
    """Publish what is due in a state. Return the number, or None if the state has changed."""
    schedule, last = SCHEDULES.find(state, name, context.path), state.txns.get(schedule_txn(name))
    if schedule is None:
        return 0  # somebody has removed it since
    now = context.now()
    most = min(MAX_INSTANTS, max(1, MAX_BYTES // max(1, len(schedule.value))))
    instants = schedule.due(last, now, most)
    if not instants:
        return 0

    def check(latest: TableState) -> None:
        if SCHEDULES.find(latest, name, context.path) != schedule:
            raise ProducerFenced(
                f"schedule {name!r} was changed meanwhile",
                producer_id=name,
                last_sequence=last,
                expected=last,
            )

    txn = (schedule_txn(name), instants[-1])
    note = {"operation": "publish", "schedule": name}
    table = _instants_table(context, schedule, name, instants, now)
    try:
        publish_table(context, table, txn=txn, after=last or 0, note=note, check=check)
    except (DuplicatePublish, ProducerFenced):
        return None
    return len(instants)


def _instants_table(
    context: QueueContext, schedule: Schedule, name: str, instants: Sequence[int], now: int
) -> pa.Table:
    rows = [_instant_row(context, schedule, name, instant) for instant in instants]
    return to_publish(from_rows(rows), now, context.settings.default_times(now))


def _instant_row(
    context: QueueContext, schedule: Schedule, name: str, instant: int
) -> dict[str, Any]:
    at = to_datetime(instant).isoformat()
    own = {HEADER_PREFIX + "schedule": name, HEADER_PREFIX + "scheduled_at": at}
    delay, usual = schedule.deliver_after, context.settings.delivery_delay
    if schedule.jitter:
        if delay is None:
            delay = 0 if usual is None else usual // MICROSECOND
        delay += jitter_of(name, instant, schedule.jitter)
    expiry = schedule.expires_after
    return {
        "message_id": f"{name}/{at}",
        "key": schedule.key,
        "value": schedule.value,
        "headers": [*{**schedule.headers, **own}.items()],
        "deliver_at": None if delay is None else to_datetime(instant + delay),
        "expires_at": None if expiry is None else to_datetime(instant + expiry),
        "priority": schedule.priority or None,
    }
