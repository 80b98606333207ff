"""Trim messages that are settled and old, or past a hard limit. Purge and delete queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore, join
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.errors import InvalidOption, NotAQueue, QueueNotFound
from spark_mq.ledger.commands import Change, Command, Priority, View
from spark_mq.ledger.log_fingerprints import MAX_SEQUENCE
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.owner_commands import Seek
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.maintenance.remaining_letters import REDRIVE
from spark_mq.operations.batches import uncounted_start
from spark_mq.operations.context import QueueContext
from spark_mq.operations.create import DROP_MARK
from spark_mq.operations.nesting import is_queue
from spark_mq.storage.ledger_table import HORIZON
from spark_mq.util.clock import MICROSECOND
from spark_mq.util.progress import counted, step
from spark_mq.util.records import Record
from spark_mq.util.validation import short_repr

_PARTS: Final = ("leases", "commits", "history", "dead_letters", "_locks", "messages")
"""The parts in the order of their deletion. Without ``leases/`` nobody can open the queue."""


@dataclass(frozen=True, slots=True)
class PurgeResult(Record):
    """How many ``messages`` a purge dropped for all groups, and how many data ``files``."""

    messages: int
    files: int


class Trimmed(NamedTuple):
    """The dropped files of a trim, and the groups that kept messages that were old enough."""

    files: int
    blocked_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The messages that groups hold back from a trim."""

    groups: tuple[str, ...]  # those with the lowest start
    start_sequence: int
    messages: int  # old enough, but kept because of these groups


@dataclass(frozen=True, slots=True)
class _Trim(Command[int]):
    """Move the trim horizon up to what the groups have settled at each try, and return it."""

    reach: Callable[[], int]

    name = "trim"
    priority = Priority.LEASE
    creates = True
    exclusive = True
    whole_table = True  # also for a new group, which `reach` has not counted

    def apply(self, view: View) -> Change[int]:
        before = view.ledger.head.start_sequence if view.exists else -1
        horizon = max(before, self.reach())
        note = {"operation": self.name, "ranges": f"-{horizon}"}
        ledger = Ledger(LedgerHeader(start_sequence=horizon))
        return Change(ledger if horizon > before else None, horizon, note)


def trim(context: QueueContext) -> Trimmed:
    """Drop files of old messages that every group has settled, and all past the hard limit.

    A queue without groups has settled nothing. Groups past ``group_expiry`` do not count. The
    horizon is committed first and conflicts with every other commit. The index then forgets
    messages that no group needs.
    """
    needed, old, counting = 0, -1, dict[str, int]()

    def reach() -> int:
        nonlocal needed, counting, old
        index, settings = context.messages.index(), context.settings
        starts = read_starts(context)
        kept = [*_redrive_start(context), *uncounted_start(context)]
        needed = min([*starts.values(), *kept], default=MAX_SEQUENCE)
        old = index.last_of_older(context.now() - settings.retention // MICROSECOND)
        counting = groups_that_count(context, index, starts)
        reached = min(lowest_start(counting), old)
        if settings.hard_retention is not None:
            oldest = context.now() - settings.hard_retention // MICROSECOND
            reached = max(reached, index.last_of_older(oldest))
        return reached

    horizon = context.group(HORIZON).run(_Trim(reach))
    dropped = context.messages.drop(horizon)
    # Only now, because the drop finds the files by the index. Start sequences and the horizon never
    # go back below both, so no group will need the forgotten files.
    context.messages.forget(
        min(horizon, needed), context.now() - context.settings.history_retention // MICROSECOND
    )
    held = held_back(counting, context.messages.index(), horizon, old)
    return Trimmed(dropped, () if held is None else held.groups)


def purge(context: QueueContext, name: str) -> PurgeResult:
    _confirm(name, context.name, "a purge drops every message")
    index = context.messages.index()
    latest, start = index.last_sequence, context.horizon() + 1

    def reach() -> int:
        starts = read_starts(context)
        return min(latest, lowest_start(starts)) if starts else latest

    while latest >= 0:
        for group in counted("groups", context.groups()):
            if group.current().head.start_sequence < latest:
                group.run(Seek(latest + 1))
        step("drop files")
        horizon = context.group(HORIZON).run(_Trim(reach))
        # A seek does not skip messages that are being routed. They stay until the next trim.
        behind = (
            group for group in context.groups() if group.current().head.start_sequence < latest
        )
        if horizon >= latest or all(group.stats().transferring for group in behind):
            return PurgeResult(index.count(start, horizon), context.messages.drop(horizon))
    return PurgeResult(0, 0)


def _confirm(name: str, own: str, consequence: str) -> None:
    if name != own:
        raise InvalidOption(
            f"name={short_repr(name)}: {consequence}. To confirm it, give the queue's name, "
            f"{own!r}",
            option="name",
            value=name,
        )


def _redrive_start(context: QueueContext) -> list[int]:
    """Return the start sequence of a dead-letter queue's reserved group, if any."""
    ledger = context.ledgers.read(REDRIVE).ledger
    return [] if ledger is None else [ledger.head.start_sequence]


def read_starts(context: QueueContext) -> dict[str, int]:
    """Return the start sequence of each group."""
    ledgers = ((name, context.ledgers.read(name).ledger) for name in context.ledgers.groups())
    return {name: ledger.head.start_sequence for name, ledger in ledgers if ledger is not None}


def groups_that_count(
    context: QueueContext, index: MessageIndex, starts: Mapping[str, int]
) -> dict[str, int]:
    """Return the starts of the groups that a trim must wait for."""
    expiry = context.settings.group_expiry
    if expiry is None:
        return dict(starts)
    unsettled = [name for name, start in starts.items() if start < index.last_sequence]
    changed = {name: context.ledgers.last_change(name) for name in unsettled}
    return counting_groups(starts, changed, context.now() - expiry // MICROSECOND)


def counting_groups(
    starts: Mapping[str, int], changed: Mapping[str, int | None], oldest: int
) -> dict[str, int]:
    """Return the starts of groups without those that have expired.

    A group with unsettled messages, which is in `changed`, expires if its last commit is known and
    was before `oldest`. If all groups have expired, the one that has settled most still counts, so
    that no message goes that no group has settled.
    """
    expired = {name for name, at in changed.items() if at is not None and at < oldest}
    live = {name: start for name, start in starts.items() if name not in expired}
    if live or not starts:
        return live
    most = max(starts.values())
    return {name: start for name, start in starts.items() if start == most}


def find_held_back(
    context: QueueContext, index: MessageIndex, starts: Mapping[str, int]
) -> HeldBack | None:
    """Return the messages that groups hold back from a trim, or None."""
    counting = groups_that_count(context, index, starts)
    horizon = context.horizon()
    if not counting or index.last_sequence <= max(lowest_start(counting), horizon):
        return None  # all is settled, so the ages of files do not matter
    old = index.last_of_older(context.now() - context.settings.retention // MICROSECOND)
    return held_back(counting, index, horizon, old)


def lowest_start(starts: Mapping[str, int]) -> int:
    """Return the sequence up to which all groups have settled all. -1 without groups."""
    return min(starts.values(), default=-1)


def held_back(
    starts: Mapping[str, int], index: MessageIndex, horizon: int, old: int
) -> HeldBack | None:
    """Return the messages up to `old` that groups hold back from a trim, or None."""
    lowest = lowest_start(starts)
    waiting = index.first_at_or_after(max(lowest, horizon) + 1)
    if not starts or waiting is None or waiting > old:
        return None
    names = tuple(sorted(name for name, start in starts.items() if start == lowest))
    # A file stays as a whole.
    return HeldBack(names, lowest, index.count(index.file_at(waiting).first, old))


def drop_queue(root: str, name: str, options: Mapping[str, str] | None = None) -> int:
    """Delete a queue's tables, see :meth:`spark_mq.Queue.drop_at`. Return the number of files."""
    _confirm(name, root.rstrip("/").rpartition("/")[2], "a drop deletes the whole queue")
    _require_queue(root, options)
    store, deleted = ObjectStore(root, options), 0
    with wrap_store_errors(root, "dropping"):
        store.write(DROP_MARK, b"{}")
        for part in _PARTS:
            store.delete_stale_temporaries(part, 0.0)  # of killed writers, perhaps with payloads
            for info in store.list_all(part):
                if info.path != DROP_MARK:
                    store.delete(info.path)
                    deleted += 1
        store.delete(DROP_MARK)
        store.delete_empty_folders(_PARTS)
    return deleted


def _require_queue(root: str, options: Mapping[str, str] | None) -> None:
    with wrap_store_errors(root, "opening"):
        if ObjectStore(root, options).exists(DROP_MARK):
            return  # a drop was killed
        table = DeltaLog(ObjectStore(join(root, "messages"), options)).open()
    if table is None:
        raise QueueNotFound(f"there is no queue at {root} to drop", path=root)
    if not is_queue(table.description):
        raise NotAQueue(
            f"{root}/messages is a Delta table, but not one of a queue: it is not deleted",
            path=root,
        )
