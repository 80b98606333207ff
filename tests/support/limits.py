"""Limits that a test sets: sizes that few messages reach, and times that pass at once.

Only this module knows where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from spark_mq.util.validation import SHORTEST

__all__ = ["Limits", "allow_shorter", "keeping", "limits", "set_limits", "short_leases"]

Limits = Callable[..., None]

PLACES = {
    "archive_bytes": "storage.archive_table.MAX_BYTES",
    "archive_file_bytes": "storage.archive_table.LARGE_FILE_BYTES",
    "archive_seconds": "storage.archive_table.KEEP_SECONDS",
    "archive_versions": "storage.archive_table.KEEP_VERSIONS",
    "ask_ids": "storage.id_files.ASK_IDS",
    "batch_bytes": "operations.batches._MAX_ALL_BYTES",
    "check_seconds": "operations.committer.CHECK_SECONDS",
    "checkpoint_interval": "delta.log.CHECKPOINT_INTERVAL",
    "commit_seconds": "storage.optimistic_commit.TIMEOUT_SECONDS",
    "discard_chunk": "maintenance.remaining_letters.CHUNK",
    "durations_look": "inspect.durations.LOOK_SECONDS",
    "failure_keys": "inspect.letters._COUNTED_KEYS",
    "failures": "inspect.letters._MOST",
    "forget_files": "storage.message_log.FORGET_FILES",
    "filtered_files": "ledger.selection.MAX_FILTERED_FILES",
    "filtered_pieces": "ledger.selection.MAX_FILTERED_PIECES",
    "filtered_runs": "operations.payloads._REMEMBERED_RUNS",
    "gap_check_seconds": "delta.follower.GAP_CHECK_SECONDS",
    "heartbeat_look": "worker.upkeep.LOOK_SECONDS",
    "history_batch": "storage.history_table.BATCH",
    "history_read_batch": "operations.history.BATCH",
    "history_files": "storage.history_table.HistoryTable.small_files",
    "index_batch": "storage.commits_table.BATCH_FILES",
    "index_files": "storage.commits_table.CommitsTable.small_files",
    "ledger_seconds": "storage.table_cleanup.LEDGER_SECONDS",
    "ledger_versions": "storage.table_cleanup.LEDGER_VERSIONS",
    "lead_seconds": "storage.optimistic_commit.LEAD_SECONDS",
    "leftover_look": "storage.table_cleanup.LOOK_SECONDS",
    "leftovers": "storage.table_cleanup._MAX_LISTED",
    "listed_ranges": "ledger.ranges.LIST_LIMIT",
    "line_gather": "storage.local_turn.GATHER_SECONDS",
    "line_patience": "storage.local_turn.PATIENCE_SECONDS",
    "line_poll": "storage.local_turn.POLL_SECONDS",
    "looks_a_pause": "operations.acquire.LOOKS_A_PAUSE",
    "message_seconds": "storage.table_cleanup.MESSAGE_SECONDS",
    "message_versions": "storage.table_cleanup.MESSAGE_VERSIONS",
    "name_bytes": "storage.delegated_commands.MAX_NAME_BYTES",
    "offer_seconds": "util.fair_lock.TURN_SECONDS",
    "orphan_seconds": "delta.cleanup._STALE_SECONDS",
    "outage_pause": "operations.outages.FIRST_PAUSE",
    "partition_bytes": "spark.partitions.PARTITION_BYTES",
    "partition_rows": "spark.partitions.PARTITION_ROWS",
    "path_bytes": "storage.delegated_commands.MAX_PATH_BYTES",
    "plan_bytes": "spark.lease_lookup.PLAN_BYTES",
    "poll_pause": "operations.acquire.FIRST_PAUSE",
    "reach_seconds": "operations.payloads.REACH_SECONDS",
    "read_slices": "spark.lease_frame.MAX_SLICES",
    "read_slices_of_file": "spark.lease_frame.MAX_SLICES_OF_FILE",
    "readable_files": "operations.payloads._REMEMBERED_FILES",
    "recent_seconds": "storage.message_log.RECENT_SECONDS",
    "redrive_chunk": "maintenance.redrive.CHUNK",
    "replaced_bytes": "storage.publishes.MAX_REPLACED_BYTES",
    "refused_seconds": "operations.outages.REFUSED_SECONDS",
    "refused_start_seconds": "operations.outages.START_SECONDS",
    "replay_patience": "worker.shadow_group.PATIENCE_SECONDS",
    "replay_rows": "worker.shadow_replay.ROWS",
    "replay_shapes": "worker.replay_report.MAX_SHAPES",
    "route_messages": "maintenance.dead_letters.ROUTE_MESSAGES",
    "route_ranges": "maintenance.dead_letters.ROUTE_RANGES",
    "row_group_rows": "parquet.writer.ROW_GROUP_ROWS",
    "schedule_bytes": "maintenance.sweep.MAX_BYTES",
    "schedule_instants": "maintenance.sweep.MAX_INSTANTS",
    "small_ledger_rows": "storage.ledger_files._SMALL_ROWS",
    "slot_rows": "parquet.lease_columns._BATCH_ROWS",
    "sweep_interval": "delta.tables.SWEEP_INTERVAL",
    "tag_bytes": "storage.ledger_files.MAX_TAG_BYTES",
    "trim_commit_files": "storage.table_cleanup.COMMIT_FILES",
    "trim_files": "storage.table_cleanup.BLOCK_FILES",
    "turn_seconds": "storage.delegated_commands.WAIT_PER_WRITER_SECONDS",
    "unchecked_rows": "storage.published_files.MAX_UNCHECKED_ROWS",
    "web_clients": "interfaces.web.security.MAX_CLIENTS",
    "web_connections": "interfaces.web.server.MAX_CONNECTIONS",
    "web_form_seconds": "interfaces.web.app.FORM_SECONDS",
    "web_request_seconds": "interfaces.web.server.REQUEST_SECONDS",
}


def set_limits(patch: pytest.MonkeyPatch, **values: float) -> None:
    """Set limits by name, until the patch is undone."""
    for name, value in values.items():
        patch.setattr(f"spark_mq.{PLACES[name]}", value)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Set limits by name, until the end of the test."""
    return partial(set_limits, monkeypatch)


@contextmanager
def keeping(versions: int | None, seconds: float | None) -> Iterator[None]:
    """Let cleanings in the block keep no more than this. None leaves a limit as it is.

    With `versions`, each of them writes a checkpoint first, after which old versions may go.
    """
    wanted: dict[str, float] = {}
    if versions is not None:
        wanted |= {"sweep_interval": 0, "message_versions": versions, "ledger_versions": versions}
    if seconds is not None:
        wanted |= {"message_seconds": seconds, "ledger_seconds": seconds}
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, **wanted)
        yield


def allow_shorter(setting: str) -> None:
    """Let this process accept any duration for a setting that has a shortest one."""
    SHORTEST.pop(setting)


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a max_lease_duration that passes at once, for handlers that must outlast it."""
    monkeypatch.delitem(SHORTEST, "max_lease_duration")
