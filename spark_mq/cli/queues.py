"""List, create, change and drop queues with ``spark-mq queue``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Final

import typer

from spark_mq.cli.options import (
    Output,
    OutputFormat,
    QueuePathArgument,
    StorageOptions,
    Yes,
    as_options,
    confirm,
    open_queue,
    option,
    parse_pairs,
)
from spark_mq.cli.output import busy, emit, emit_one, json_line, show_age, show_time
from spark_mq.cli.settings_table import emit_settings
from spark_mq.ledger.stats import GroupStats
from spark_mq.util.setting_text import parse_setting
from spark_mq.util.show import printable

__all__ = ["GROUP_COLUMNS", "app", "group_rows"]

app = typer.Typer(
    help="List, create, describe, configure, purge and drop queues.", no_args_is_help=True
)

GROUP_COLUMNS = [
    ("GROUP", "group"), ("READY", "ready"), ("DELAYED", "delayed"), ("LEASED", "leased"),
    ("DEAD", "dead"), ("BLOCKED", "blocked"), ("ACKED", "acked"), ("OLDEST", "oldest"),
    ("LEASE", "lease"), ("RANGES", "ledger_ranges"), ("BLOCKED BECAUSE", "blocked_because"),
]  # fmt: skip

_STATS: Final = tuple(one.name for one in fields(GroupStats))
_Top = Annotated[int, option("--groups", help="Groups in the table, the busiest first.")]


@app.command("list")
def list_queues(
    path: Annotated[
        str, typer.Argument(envvar="SPARK_MQ_PATH", help="Where to look: a path or a URI.")
    ] = ".",
    max_depth: Annotated[
        int, option("--max-depth", min=0, help="Folders between the path and a queue.")
    ] = 3,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """List the queues under a path. Dead-letter queues inside of one are left out."""
    from spark_mq.errors import SparkMQError
    from spark_mq.queue import Queue

    options = as_options(storage_option)
    rows: list[dict[str, Any]] = []
    for found in Queue.find_all(path, storage_options=options, max_depth=max_depth):
        try:
            overview = Queue.open(found, storage_options=options).describe()
            rows.append(
                {
                    "queue": found,
                    "published": overview.published,
                    "groups": len(overview.groups),
                    "dead_letters": overview.dead_letters,
                    "error": None,
                }
            )
        except SparkMQError as error:
            rows.append({"queue": found, "error": str(error)})
    columns = [("QUEUE", "queue"), ("PUBLISHED", "published"), ("GROUPS", "groups")]
    columns += [("DEAD LETTERS", "dead_letters")]
    columns += [("ERROR", "error")] if any(row["error"] for row in rows) else []
    emit(rows, columns, output)


@app.command()
def create(
    queue: QueuePathArgument,
    visibility_timeout: Annotated[
        str | None,
        option("--visibility-timeout", help="How long a lease lasts.", show_default="60s"),
    ] = None,
    max_delivery_attempts: Annotated[
        str | None,
        option(
            "--max-delivery-attempts", help="Deliveries of a message, or none.", show_default="5"
        ),
    ] = None,
    retention: Annotated[
        str | None,
        option(
            "--retention",
            help="How long settled messages stay after their publish.",
            show_default="7d",
        ),
    ] = None,
    dead_letter_path: Annotated[
        str | None, option("--dead-letter-path", help="Another queue for dead letters.")
    ] = None,
    lanes: Annotated[
        int | None,
        option(
            "--lanes", min=0, help="Lanes for the order of keys. 0: none. Fixed.", show_default="0"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option("--set", metavar="NAME=VALUE", help="Another setting of the queue. Repeatable."),
    ] = None,
    exist_ok: Annotated[
        bool, option("--exist-ok", help="A queue with these settings may be there.")
    ] = False,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Create a queue."""
    from spark_mq.queue import Queue

    given: dict[str, Any] = {
        "visibility_timeout": visibility_timeout,
        "max_delivery_attempts": max_delivery_attempts,
        "retention": retention,
        "dead_letter_path": dead_letter_path,
        "lanes": lanes,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if max_delivery_attempts is not None:
        given["max_delivery_attempts"] = parse_setting(max_delivery_attempts)
    given |= {name: parse_setting(text) for name, text in parse_pairs("--set", settings).items()}
    if "durable" in given:
        given["durable"] = str(given["durable"]).lower() in ("true", "1", "yes")
    created = Queue.create(
        queue, storage_options=as_options(storage_option), exist_ok=exist_ok, **given
    )
    emit_one({"queue": created.path, "name": created.name}, output)


@app.command()
def describe(
    queue: QueuePathArgument,
    groups: _Top = 20,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Describe a queue with its sizes, groups, dead letters and sweeps."""
    overview = open_queue(queue, storage_option).describe()
    if output is OutputFormat.json:
        print(json_line(overview))
        return
    sweeps = overview.sweeps
    emit_one(
        {
            "queue": overview.path,
            "published": f"{overview.published:,} messages, the last one "
            f"{show_time(overview.last_published_at)}",
            "retained": f"{overview.retained:,} messages, {overview.retained_bytes:,} bytes",
            "tail": overview.tail,
            "horizon": overview.horizon,
            "dead letters": overview.dead_letters,
            "last sweep": f"{show_time(sweeps.last_change_at)}, "
            f"{sweeps.unarchived_commits} commits wait",
            "groups": len(overview.groups) + len(overview.damaged),
            "lanes": overview.settings.lanes or "none",
        },
        output,
    )
    if overview.groups:
        print()
        emit(group_rows(overview.groups, groups), GROUP_COLUMNS, output)
        if len(overview.groups) > groups:
            print(f"... and {len(overview.groups) - groups} more groups: --groups shows them")
    for name, why in overview.damaged.items():
        print(printable(f"group {name} is damaged: {why}"))


def group_rows(groups: Mapping[str, GroupStats], most: int) -> list[dict[str, Any]]:
    """Return the stats of groups as rows, the `most` busiest first."""
    busiest = sorted(groups.items(), key=_business)[:most]
    return [
        {
            "group": name,
            **{column: getattr(stats, column) for column in _STATS},
            "oldest": show_age(stats.oldest_unsettled_age),
            "lease": show_age(stats.oldest_lease_age),
        }
        for name, stats in busiest
    ]


def _business(item: tuple[str, GroupStats]) -> tuple[int | str, ...]:
    name, one = item
    return (-one.blocked, -one.dead, -one.leased, -one.ready, -one.delayed, name)


@app.command()
def configure(
    queue: QueuePathArgument,
    settings: Annotated[
        list[str] | None,
        option("--set", metavar="NAME=VALUE", help="A setting, such as retention=3d."),
    ] = None,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Change settings of a queue, and print all of them.

    A changed one is shown as old -> new.
    """
    opened = open_queue(queue, storage_option)
    given = {name: parse_setting(text) for name, text in parse_pairs("--set", settings).items()}
    before = opened.settings
    after = opened.configure(**given) if given else before
    emit_settings({"queue": opened.path}, before, after, output)


@app.command()
def purge(
    queue: QueuePathArgument,
    yes: Yes = False,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Drop every message published up to now, for all groups. Asks first."""
    opened = open_queue(queue, storage_option)
    messages = opened.describe().retained
    confirm(f"Purge {opened.path}: drop {messages:,} messages for all groups?", yes)
    with busy("purging"):
        dropped = opened.purge(opened.name)
    row = {"messages_dropped": dropped.messages, "files_dropped": dropped.files}
    emit_one({"queue": opened.path, **row}, output)


@app.command()
def drop(
    queue: QueuePathArgument,
    yes: Yes = False,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Delete a queue with all its tables. Asks first.

    The dead letters inside of it are deleted, too.
    """
    from spark_mq.delta.object_store import absolute_path
    from spark_mq.queue import Queue

    confirm(f"Delete the queue at {queue} with all of its messages?", yes)
    path = absolute_path(queue)
    name = path.rstrip("/").rpartition("/")[2]
    files = Queue.drop_at(path, name, storage_options=as_options(storage_option))
    emit_one({"queue": path, "files_deleted": files}, output)
