"""How much of each table stays for time travel: so many versions, and so many seconds."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

import pytest
from deltalake import DeltaTable
from support.handles import archive, end_checkpoints, lease
from support.queues import Make
from support.tables import commit_file, context_of, messages_of

from spark_mq import Queue
from spark_mq.delta.actions import Change
from spark_mq.delta.log import DeltaLog

YEARS = 365 * 86_400
EVERYTHING = 2**62
KEPT = {"leases": (500, 15), "messages": (2_000, 600), "commits": (100, 600), "history": (100, 600)}
"""Versions and seconds of each table, as docs/howto/operating.md says."""


class Table:
    """One table of a queue, with what a sweep does to it."""

    def __init__(self, queue: Queue, name: str) -> None:
        context = context_of(queue)
        messages, ledgers, history = context.messages, context.ledgers, context.history
        messages.index_commits()
        archive(queue)
        tables: dict[str, tuple[DeltaLog, Callable[[], object]]] = {
            "leases": (ledgers.log, lambda: ledgers.clean(EVERYTHING)),
            "messages": (messages.log, messages.clean),
            "commits": (messages.commits.log, messages.clean),
            "history": (history.log, lambda: history.archive(YEARS * 10**6)),
        }
        self.queue, self.name = queue, name
        self.log, self.clean = tables[name]

    def commit_up_to(self, version: int) -> None:
        """Commit until the table has a version. Each 100th has a checkpoint, as always."""
        while (latest := self.log.refresh().version) < version:
            self.log.commit(Change(uuid.uuid4().hex, {"operation": "nothing"}), latest)
            if (latest + 1) % 100 == 0:
                end_checkpoints()
        if self.name == "messages":
            messages_of(self.queue).index_commits()

    def set_ages(self, ages: dict[int, float]) -> None:
        """Let the commits be so many seconds older than the last one; those between as the next."""
        now, age = 2e9, 0.0
        for version in range(self.log.refresh().version, -1, -1):
            age = max(age, ages.get(version, 0.0))
            path = commit_file(self.log.path, version)
            if path.exists():
                os.utime(path, (now - age, now - age))

    def readable(self, version: int) -> bool:
        try:
            return DeltaTable(self.log.path, version=version).version() == version
        except Exception:
            return False


@pytest.fixture(params=sorted(KEPT))
def table(request: pytest.FixtureRequest, delta_queue: Make) -> Table:
    queue = delta_queue(durable=False)
    queue.publish(["a"])
    lease(queue).release()
    return Table(queue, request.param)


def test_so_many_versions_stay_however_old(table: Table) -> None:
    versions, _ = KEPT[table.name]
    for behind in (versions - 1, versions):
        latest = 100 + behind
        table.commit_up_to(latest)
        table.set_ages({latest - 1: YEARS})
        table.clean()
        assert table.log.refresh().version == latest
        # Version 100 has a checkpoint. All before it goes with the version that needs none of it.
        assert table.readable(99) == (behind < versions)
        assert table.readable(0) == (behind < versions)
        assert all(table.readable(v) for v in (100, 101, 100 + versions // 2, latest))


@pytest.mark.parametrize(("oldest_kept", "goes"), [(99, False), (100, True)])
def test_so_many_seconds_stay_however_many_versions(
    table: Table, oldest_kept: int, goes: bool
) -> None:
    versions, seconds = KEPT[table.name]
    table.commit_up_to(100 + versions + 50)
    table.set_ages({oldest_kept: seconds - 0.5, oldest_kept - 1: seconds + 0.5})
    table.clean()
    assert table.readable(99) != goes
    assert table.readable(0) != goes
    assert all(table.readable(v) for v in (100, 101, 100 + versions // 2))


def test_kept_versions_of_the_ledger_are_whole(delta_queue: Make) -> None:
    """Their data files are there, and a VACUUM by delta-rs leaves them."""
    queue = delta_queue(durable=False)
    queue.publish(["a"])
    leases = Table(queue, "leases")
    held: dict[int, set[str]] = {}
    for _ in range(320):
        mine = lease(queue)
        held[leases.log.refresh().version] = {mine.lease_id}
        mine.release()
        held[leases.log.refresh().version] = set()
        # The cleaner keeps what no checkpoint has, and a late one has a later version.
        end_checkpoints()
    latest = leases.log.refresh().version
    leases.set_ages({latest - 1: YEARS})
    leases.clean()
    assert not leases.readable(1)
    DeltaTable(leases.log.path).vacuum(dry_run=False)
    DeltaTable(leases.log.path).vacuum(dry_run=False, full=True)
    for version in (latest - 500, latest - 499, latest - 301, latest - 300, latest - 1, latest):
        rows = DeltaTable(leases.log.path, version=version).to_pyarrow_table().to_pylist()
        found = {row["lease_id"] for row in rows if row["state"] == "leased"}
        assert found == held[version]
