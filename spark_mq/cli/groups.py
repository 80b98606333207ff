"""Show, configure, pause, move and drop groups with ``spark-mq group``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from spark_mq.cli import interventions
from spark_mq.cli.lanes import LANE_COLUMNS, PRIORITY_COLUMNS, lane_rows, priority_rows
from spark_mq.cli.options import (
    GroupArgument,
    Output,
    OutputFormat,
    QueuePath,
    StorageOptions,
    Yes,
    confirm,
    existing_group,
    open_queue,
    option,
    parse_pairs,
)
from spark_mq.cli.output import emit, emit_one, json_line
from spark_mq.cli.queues import GROUP_COLUMNS, group_rows
from spark_mq.cli.settings_table import emit_settings
from spark_mq.errors import InvalidOption
from spark_mq.util.setting_text import parse_setting
from spark_mq.util.show import printable

__all__ = ["app"]

app = typer.Typer(help="Look at groups, configure and move them.", no_args_is_help=True)
interventions.register(app)

_LANES = 5  # the hottest lanes in the description of a group
_Sequences = Annotated[
    list[int] | None, option("--sequence", help="Only this message. Repeatable.")
]


@app.command("list")
def list_groups(
    queue: QueuePath,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """List the groups with their counts, the busiest first."""
    overview = open_queue(queue, storage_option).describe()
    rows = group_rows(overview.groups, len(overview.groups))
    rows += [{"group": name, "blocked_because": why} for name, why in overview.damaged.items()]
    emit(rows, GROUP_COLUMNS, output)


@app.command()
def describe(
    group: GroupArgument,
    queue: QueuePath,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Describe a group with its settings, leases, lanes and blockers.

    It also shows counts and priorities.
    """
    opened = open_queue(queue, storage_option)
    found = existing_group(opened, group)
    leases, blockers = found.leases(), [one for one in opened.blockers() if one.group == group]
    stats, settings = asdict(found.stats()), asdict(found.settings)
    priorities, lanes = found.priorities(), found.lanes(_LANES)
    if output is OutputFormat.json:
        row = {"group": group, **stats, "leases": len(leases), "settings": settings}
        more = {"priorities": priorities, "lanes": lanes, "blockers": blockers}
        print(json_line({**row, **more}))
        return
    emit_one({"group": group, **stats, "leases": len(leases)}, output)
    print()
    emit_one(settings, output)
    if len(priorities) > 1:
        print()
        emit(priority_rows(priorities), PRIORITY_COLUMNS, output)
    if lanes:
        print()
        emit(lane_rows(lanes), LANE_COLUMNS, output)
    for one in blockers:
        print(f"{printable(one.because)} blocks {one.blocks}: messages {one.first} to {one.last}")


@app.command()
def create(
    group: GroupArgument,
    queue: QueuePath,
    start: Annotated[
        str, option("--start", help="earliest, latest, a sequence, or an instant.")
    ] = "earliest",
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Create a group at a position. A group that exists stays as it is."""
    opened = open_queue(queue, storage_option)
    made = opened.group(group, start=start)
    there = made.exists()
    made.ensure()
    emit_one({"group": group, "created": not there}, output)


@app.command()
def configure(
    group: GroupArgument,
    queue: QueuePath,
    settings: Annotated[
        list[str] | None,
        option("--set", metavar="NAME=VALUE", help="A setting, such as retry_delay=30s."),
    ] = None,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Change settings of a group, and print all of them.

    A changed one is shown as old -> new. Workers apply them immediately.
    """
    found = existing_group(open_queue(queue, storage_option), group)
    given = {name: parse_setting(text) for name, text in parse_pairs("--set", settings).items()}
    before = found.settings
    after = found.configure(**given) if given else before
    emit_settings({"group": group}, before, after, output)


@app.command()
def pause(
    group: GroupArgument,
    queue: QueuePath,
    reason: Annotated[str | None, option("--reason", help="Why, for people.")] = None,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Stop new leases of a group until `group resume`. Live leases can be settled."""
    found = existing_group(open_queue(queue, storage_option), group)
    found.pause(reason)
    emit_one({"group": group, "blocked_because": found.stats().blocked_because}, output)


@app.command()
def resume(
    group: GroupArgument,
    queue: QueuePath,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """End a pause of a group, and close its breaker."""
    found = existing_group(open_queue(queue, storage_option), group)
    found.resume()
    emit_one({"group": group, "blocked_because": found.stats().blocked_because}, output)


@app.command()
def unblock(
    group: GroupArgument,
    queue: QueuePath,
    to: Annotated[str, option("--to", help="retry, dead_letter or drop.")],
    sequence: _Sequences = None,
    yes: Yes = False,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Decide about messages that block a group. Asks before it drops any."""
    found = existing_group(open_queue(queue, storage_option), group)
    if to == "drop":
        confirm(f"Drop the messages that block group {group}?", yes)
    emit_one({"group": group, "unblocked": found.unblock(to, sequence)}, output)


@app.command()
def seek(
    group: GroupArgument,
    queue: QueuePath,
    to_earliest: Annotated[bool, option("--to-earliest", help="To the first message.")] = False,
    to_latest: Annotated[bool, option("--to-latest", help="Behind the last message.")] = False,
    to_datetime: Annotated[
        str | None, option("--to-datetime", help="An instant, as 2026-01-31T12:00:00Z.")
    ] = None,
    to_sequence: Annotated[int | None, option("--to-sequence", help="A sequence.")] = None,
    execute: Annotated[
        bool, option("--execute", help="Do it. Without this option nothing changes.")
    ] = False,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Move a group. Without --execute it only shows the effects."""
    given: list[str | int | datetime] = []
    given += ["earliest"] if to_earliest else []
    given += ["latest"] if to_latest else []
    given += [] if to_datetime is None else [_instant(to_datetime)]
    given += [] if to_sequence is None else [to_sequence]
    if len(given) != 1:
        raise InvalidOption(
            f"a seek has {len(given)} targets: give one of --to-earliest, --to-latest, "
            "--to-datetime and --to-sequence",
            option="to",
            value=len(given),
        )
    found = existing_group(open_queue(queue, storage_option), group)
    preview = found.preview_seek(given[0])
    if execute:
        found.seek(given[0])
    emit_one({**asdict(preview), "executed": execute}, output)


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidOption(
            f"--to-datetime {text} is not an instant: give one with a zone, as "
            "2026-01-31T12:00:00Z",
            option="--to-datetime",
            value=text,
        )
    return found


@app.command()
def drop(
    group: GroupArgument,
    queue: QueuePath,
    yes: Yes = False,
    storage_option: StorageOptions = None,
    output: Output = OutputFormat.table,
) -> None:
    """Drop a group with its ledger. Asks first."""
    opened = open_queue(queue, storage_option)
    if group not in opened.groups():
        existing_group(opened, group)  # raises GroupNotFound, also if the ledger is damaged
    confirm(f"Drop group {group} of {opened.path} with its whole state?", yes)
    opened.drop_group(group)
    emit_one({"group": group, "dropped": True}, output)
