"""List, create, describe, change and drop queues with ``spark-mq queue``, and query one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import SparkMQError
from spark_mq.inspect.overview import QueueOverview, overview_facts
from spark_mq.interfaces.cli.command import (
    NOTHING,
    QUEUE_ARGUMENT,
    Invocation,
    argument,
    command,
    option,
    settings,
)
from spark_mq.interfaces.cli.output import Column, Pages, Part, Rows, columns, track
from spark_mq.interfaces.cli.workers import worker_rows
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.ledger.settings import GroupSettings, QueueSettings
from spark_mq.ledger.stats import GroupStats, figures_of
from spark_mq.operations.batches import BatchInfo
from spark_mq.queue import Queue
from spark_mq.util.show import show_cell, show_count, show_duration

_LIST_COLUMNS: Final = columns("queue published groups dead_letters")
_BATCH_COLUMNS: Final = columns(
    "name state messages settled groups closed_at completed_at to", name="BATCH"
)
_DEFAULTS: Final = "group"  # the setting of a queue that holds the defaults of its groups


@command("queue list", NOTHING)
def list_queues(
    ctx: Invocation,
    path: str = argument("Where to look: a path or a URI.", default="."),
    max_depth: int = option("Folders between the path and a queue.", min=0, default=3),
) -> Rows:
    """List the queues under a path. Dead-letter queues inside of queues are left out."""
    monitor = QueueMonitor(path, ctx.storage_options, max_depth=max_depth)
    paths = monitor.queues()
    rows = [_list_row(paths[name], overview) for name, overview in monitor.all().items()]
    wrong = columns("error") if any(row["error"] for row in rows) else []
    return Rows(rows, [*_LIST_COLUMNS, *wrong])


def _list_row(path: str, overview: QueueOverview | SparkMQError) -> dict[str, Any]:
    if isinstance(overview, SparkMQError):
        return {"queue": path, "error": str(overview)}
    return {
        "queue": path,
        "published": overview.published,
        "groups": len(overview.groups),
        "dead_letters": overview.dead_letters,
        "error": None,
    }


_COMMON: Final = settings(
    "max_in_flight=7", "visibility_timeout", "max_delivery_attempts", "retention",
    "dead_letter_path", "lanes",
)  # fmt: skip


@command("queue create", (*QUEUE_ARGUMENT, *_COMMON))
def create(
    ctx: Invocation,
    exist_ok: bool = option("Open the queue if it exists with these settings.", default=False),
) -> Mapping[str, Any]:
    """Create a queue."""
    created = Queue.create(
        str(ctx.path), storage_options=ctx.storage_options, exist_ok=exist_ok, **ctx.settings
    )
    return {"queue": created.path, "name": created.name}


class _Part(StrEnum):
    groups = "groups"
    workers = "workers"
    batches = "batches"


@command("queue describe", QUEUE_ARGUMENT)
def describe(
    ctx: Invocation,
    part: _Part | None = argument(
        "Show only this, with all of its values.", metavar="PART", default=None
    ),
    groups: int = option("Groups in the description, the busiest first.", default=20),
) -> Pages | Rows:
    """Describe a queue with its sizes, groups, dead letters and sweeps.

    `groups` are all groups with their counts, the busiest first. `workers` are those of all groups,
    including idle ones, and `batches` are the message batches with how much of them is settled.
    """
    if part is _Part.workers:
        return worker_rows(map(ctx.existing_group, ctx.queue.groups()))
    if part is _Part.batches:
        return Rows(ctx.queue.batches(), _BATCH_COLUMNS, _batch_cells)
    overview = ctx.queue.describe()
    if part is _Part.groups:
        rows = group_rows(overview.groups, len(overview.groups))
        rows += [{"group": name, "blocked_because": why} for name, why in overview.damaged.items()]
        return Rows(rows, group_columns())
    return Pages([overview], lambda _: _description(overview, groups))


def _batch_cells(batch: BatchInfo) -> Mapping[str, Any]:
    cells = {name: getattr(batch, name) for _, name in _BATCH_COLUMNS}
    return {**cells, "groups": ", ".join(batch.groups)}


def _description(overview: QueueOverview, groups: int) -> Iterator[Part]:
    yield overview_facts(overview)
    if overview.groups:
        yield ""
        yield Rows(group_rows(overview.groups, groups), group_columns())
        if len(overview.groups) > groups:
            more = show_count(len(overview.groups) - groups, "more group")
            yield f"... and {more}: --groups shows them"
    for name, why in overview.damaged.items():
        yield f"group {name} is damaged: {why}"


def group_columns(owner: type[GroupStats] = GroupStats) -> list[Column]:
    """Return the columns of a table of groups: the figures that have a heading."""
    figures = figures_of(owner).items()
    return [*columns("group"), *((own.heading, name) for name, own in figures if own.heading)]


def group_rows(groups: Mapping[str, GroupStats], most: int) -> list[dict[str, Any]]:
    """Return the stats of groups as rows, the `most` busiest first."""
    busiest = sorted(groups.items(), key=_business)[:most]
    return [
        {"group": name, **{figure: getattr(stats, figure) for figure in figures_of(type(stats))}}
        for name, stats in busiest
    ]


def _business(item: tuple[str, GroupStats]) -> tuple[int | str, ...]:
    name, stats = item
    return (-stats.blocked, -stats.dead, -stats.leased, -stats.ready, -stats.delayed, name)


@command("queue configure", (*QUEUE_ARGUMENT, *settings("retention=3d")))
def configure(ctx: Invocation) -> Mapping[str, Any]:
    """Change settings of a queue, and print all of them.

    Changes are shown as old -> new.
    """
    before = ctx.queue.settings
    after = ctx.queue.configure(**ctx.settings) if ctx.settings else before
    return {"queue": ctx.queue.path, **shown_settings(before, after, json=ctx.json)}


def shown_settings(
    before: GroupSettings | QueueSettings, after: GroupSettings | QueueSettings, *, json: bool
) -> Mapping[str, Any]:
    """Return settings. JSON has the new ones, people see a changed one as ``old -> new``."""
    return asdict(after) if json else dict(_differences(asdict(before), asdict(after)))


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    for name, value in after.items():
        if name != _DEFAULTS:
            old, new = _setting_cell(before[name]), _setting_cell(value)
            yield prefix + name, new if old == new else f"{old} -> {new}"
    if _DEFAULTS in after:
        yield from _differences(before[_DEFAULTS], after[_DEFAULTS], f"{_DEFAULTS}.")


def _setting_cell(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_setting_cell, value)) or show_cell(None)
    return show_duration(value) if isinstance(value, timedelta) else show_cell(value)


@command("queue purge", QUEUE_ARGUMENT, asks=True)
def purge(ctx: Invocation) -> Mapping[str, Any]:
    """Drop every message published up to now, for all groups. Asks first."""
    queue = ctx.queue
    messages = queue.describe().retained
    ctx.confirm(f"Purge {queue.path}: drop {show_count(messages, 'message')} for all groups?")
    with track("purging"):
        dropped = queue.purge(queue.name)
    row = {"messages_dropped": dropped.messages, "files_dropped": dropped.files}
    return {"queue": queue.path, **row}


@command("queue drop", QUEUE_ARGUMENT, asks=True)
def drop(ctx: Invocation) -> Mapping[str, Any]:
    """Delete a queue with all its tables. Asks first.

    That includes the dead letters inside of it.
    """
    ctx.confirm(f"Delete the queue at {ctx.path} with all of its messages?")
    path = absolute_path(str(ctx.path))
    name = path.rstrip("/").rpartition("/")[2]
    files = Queue.drop_at(path, name, storage_options=ctx.storage_options)
    return {"queue": path, "files_deleted": files}


@command("close-batch")
def close_batch(
    ctx: Invocation,
    name: str = argument("The batch_id.", metavar="BATCH"),
    to: str = option(
        "The path of the queue of the completion message.", metavar="QUEUE", default=...
    ),
    group: list[str] | None = option(
        "A group that must settle the batch. Repeatable. Default: all that exist now."
    ),
) -> Pages:
    """Close a message batch. Once it is settled, a sweep publishes its counts to a queue.

    Repeating the same close changes nothing.
    """
    closed = ctx.queue.close_batch(name, to=to, groups=group)
    return Pages([closed], lambda batch: [_batch_cells(batch)])


@command("sql")
def run_sql(
    ctx: Invocation,
    query: str = argument("A SELECT over messages, ranges, letters and history."),
) -> Rows:
    """Query the state of a queue in SQL, read-only. It needs the extra `sql`."""
    table = ctx.queue.sql(query).to_arrow()
    return Rows(table.to_pylist(), [(name.upper(), name) for name in table.column_names])
