"""How much of each table stays for time travel: so many versions, and so many seconds."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.handles import end_checkpoints, lease
from support.queues import Make
from support.rule_variants import first, rule_variant
from support.tables import commit_file, ledgers_of

from spark_mq import Queue
from spark_mq.delta.actions import Change
from spark_mq.delta.log import DeltaLog

YEARS = 365 * 86_400
KEPT = {"leases": (500, 15), "messages": (2_000, 600), "commits": (100, 600), "history": (100, 600)}
"""Versions and seconds of each table, as docs/howto/operating.md says."""


@pytest.fixture
def queue(delta_queue: Make) -> Queue:
    queue = delta_queue(durable=False)
    queue.publish(["a"])
    return queue


def test_each_table_keeps_as_much_as_the_page_says(queue: Queue) -> None:
    lease(queue).release()
    kept = dict[str, tuple[float, float]]()

    def note(given: object) -> None:
        kept[Path(given.log.path).name] = (given.keep.versions, given.keep.seconds)

    with rule_variant("clean_table", first(note)):
        queue.sweep()
    assert kept == KEPT


def commit_up_to(log: DeltaLog, version: int) -> None:
    """Commit until the table has a version. Each 100th has a checkpoint, as always."""
    while (latest := log.refresh().version) < version:
        log.commit(Change(uuid.uuid4().hex, {"operation": "nothing"}), latest)
        if (latest + 1) % 100 == 0:
            end_checkpoints()


def set_ages(log: DeltaLog, ages: dict[int, float]) -> None:
    """Let the commits be so many seconds older than the last one; those between as the next."""
    now, age = 2e9, 0.0
    for version in range(log.refresh().version, -1, -1):
        age = max(age, ages.get(version, 0.0))
        path = commit_file(log.path, version)
        if path.exists():
            os.utime(path, (now - age, now - age))


def clean(queue: Queue) -> None:
    """Clean the ledgers' table alone. All of it may go, archived or not."""
    ledgers_of(queue).clean(2**62)


def readable(log: DeltaLog, *versions: int) -> list[bool]:
    found = []
    for version in versions:
        try:
            found.append(DeltaTable(log.path, version=version).version() == version)
        except Exception:
            found.append(False)
    return found


def test_so_many_versions_stay_however_old(queue: Queue) -> None:
    log, (versions, _) = ledgers_of(queue).log, KEPT["leases"]
    for behind in (versions - 1, versions):
        latest = 100 + behind
        commit_up_to(log, latest)
        set_ages(log, {latest - 1: YEARS})
        clean(queue)
        # Version 100 has a checkpoint. All before it goes with the version that needs none of it.
        assert readable(log, 0, 99) == [behind < versions] * 2
        assert all(readable(log, 100, 101, 100 + versions // 2, latest))


@pytest.mark.parametrize(("oldest_kept", "goes"), [(99, False), (100, True)])
def test_so_many_seconds_stay_however_many_versions(
    queue: Queue, oldest_kept: int, goes: bool
) -> None:
    log, (versions, seconds) = ledgers_of(queue).log, KEPT["leases"]
    commit_up_to(log, 100 + versions + 50)
    set_ages(log, {oldest_kept: seconds - 0.5, oldest_kept - 1: seconds + 0.5})
    clean(queue)
    assert readable(log, 0, 99) == [not goes] * 2
    assert all(readable(log, 100, 101, 100 + versions // 2))


def test_kept_versions_of_the_ledger_are_whole(queue: Queue) -> None:
    """Their data files are there, and a VACUUM by delta-rs leaves them."""
    log = ledgers_of(queue).log
    held: dict[int, set[str]] = {}
    for _ in range(320):
        mine = lease(queue)
        held[log.refresh().version] = {mine.lease_id}
        mine.release()
        held[log.refresh().version] = set()
        # The cleaner keeps what no checkpoint has, and a late one has a later version.
        end_checkpoints()
    latest = log.refresh().version
    set_ages(log, {latest - 1: YEARS})
    clean(queue)
    assert readable(log, 1) == [False]
    DeltaTable(log.path).vacuum(dry_run=False)
    DeltaTable(log.path).vacuum(dry_run=False, full=True)
    for version in (latest - 500, latest - 499, latest - 301, latest - 300, latest - 1, latest):
        rows = DeltaTable(log.path, version=version).to_pyarrow_table().to_pylist()
        found = {row["lease_id"] for row in rows if row["state"] == "leased"}
        assert found == held[version]
