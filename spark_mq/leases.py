"""``leases/``: the ledgers of all groups in one Delta table, each change one optimistic commit.

A change replaces its group's partition (delta-rs ``overwrite`` with the group as predicate, what Delta calls replaceWhere), from a
table pinned at the version the ledger was read at. delta-rs refuses it if the group changed since, and lets it pass over
commits of other groups. Every change rewrites the group's floor row with ``revision + 1``. Measured beside a MERGE of the changed
rows this was 2.7 times as fast (benchmarks/README.md).
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from spark_mq import delta
from spark_mq.checks import RESERVED_PREFIX
from spark_mq.errors import ContentionTimeout, LostRace, NotAQueue
from spark_mq.ranges import EVENT, FLOOR, RANGE_SCHEMA, Head, Ledger, to_table
from spark_mq.waking import Bell, bell_at

__all__ = ["HORIZON", "LEASES_SCHEMA", "DeltaLeases", "Dropped", "LeaseStore", "Stored", "change"]

HORIZON: Final = f"{RESERVED_PREFIX}horizon"
"""The reserved group whose floor is the trim horizon: all below it may be gone from ``messages/``."""

LEASES_SCHEMA: Final = pa.schema(
    [
        pa.field("consumer_group", pa.string()),
        *RANGE_SCHEMA,
        pa.field("revision", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)

_PROPERTIES: Final = WriterProperties(compression="SNAPPY", max_row_group_size=100_000)
CHECKPOINT_INTERVAL: Final = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored:
    """A group's ledger as read (None: there is no such group), and the token that a commit based on it needs."""

    group: str
    ledger: Ledger | None
    token: Any


class LeaseStore(Protocol):
    """Where ledgers are kept: the storage seam. Its twin in memory is in ``spark_mq.testing``."""

    bell: Bell
    """Rung after each commit."""

    def read(self, group: str) -> Stored:
        """The ledger as it is now."""

    def write(
        self,
        stored: Stored,
        ledger: Ledger | None,
        *,
        operation_id: str,
        note: Mapping[str, Any],
        mark: tuple[str, int] | None = None,
        whole_table: bool = False,
    ) -> None:
        """Commits `ledger` if the group is still as `stored` (with `whole_table`: if nothing at all has changed). Raises LostRace.

        None drops the group.
        """

    def mark(self, stored: Stored, app: str) -> int | None:
        """The number last committed with a mark of `app`, as of `stored`."""

    def groups(self) -> list[str]:
        """The names of the groups there are."""


class Dropped:
    """What a step of :func:`change` returns for a group that is to go."""


def change(
    store: LeaseStore,
    group: str,
    step: Callable[[Stored], tuple[Ledger | type[Dropped] | None, T, Mapping[str, Any]]],
    *,
    mark: Callable[[T], tuple[str, int] | None] = lambda _: None,
    whole_table: bool = False,
    patience: float = 30.0,
    pause: float = 0.005,
) -> T:
    """Reads a group's ledger, lets `step` compute the next, commits it; from the start again whenever the race is lost.

    `step` returns the next ledger (None or the same object: nothing to commit; Dropped: the group goes), its result, and a note of what
    it did for the commit's metadata. ``patience``: seconds until ContentionTimeout. ``pause``: seconds to wait after the first loss, longer
    for what may wait (a lease) than for what must not starve (a settle); it grows to 20 times that.
    """
    deadline = time.monotonic() + patience
    attempts = 0
    while True:
        try:
            stored = store.read(group)
            ledger, result, note = step(stored)
            app_mark = mark(result)
            if ledger is None or (ledger is stored.ledger and app_mark is None):
                return result
            store.write(
                stored,
                _next(ledger) if isinstance(ledger, Ledger) else None,
                operation_id=uuid.uuid4().hex,
                note={"group": group, **note},
                mark=app_mark,
                whole_table=whole_table,
            )
            store.bell.ring()
            return result
        except LostRace as error:
            attempts += 1
            if time.monotonic() > deadline:
                raise ContentionTimeout(
                    f"group {group!r}: a commit lost {attempts} races in {patience:.0f} s; nothing was changed. "
                    "Fewer workers with larger leases contend less",
                    group=group,
                    attempts=attempts,
                ) from error
            time.sleep(pause * random.uniform(0.5, 1.5) * min(20, 1.5**attempts))


def _next(ledger: Ledger) -> Ledger:
    return Ledger(replace(ledger.head, revision=ledger.head.revision + 1), ledger.ranges, ledger.events)


class DeltaLeases:
    """The ledgers in a Delta table at ``path``. Safe to use from several threads."""

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.storage_options = dict(storage_options or {})
        self.files = delta.Files(path, self.storage_options)
        self.bell = bell_at(path)
        self._table: DeltaTable | None = None
        self._id: str | None = None
        self._cache: dict[str, tuple[tuple[str, ...], Ledger]] = {}
        self._lock = threading.RLock()

    def create(self, description: str) -> None:
        """Makes the table. Raises deltalake's error where there is one."""
        DeltaTable.create(
            self.path,
            LEASES_SCHEMA,
            partition_by=["consumer_group"],
            description=description,
            storage_options=self.storage_options,
            configuration={
                "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
                "delta.enableExpiredLogCleanup": "false",
                # Else each checkpoint carries a week of tombstones, one a commit.
                "delta.deletedFileRetentionDuration": "interval 10 minutes",
            },
        )

    def refresh(self) -> DeltaTable:
        """The table at its latest version."""
        with self._lock:
            if self._table is not None:
                try:
                    self._table.update_incremental()
                    return self._table
                except DeltaError:
                    self._table = None  # a handle older than what housekeeping left: open anew, once
            opened = delta.open_table(self.path, self.storage_options)
            if opened is None:
                raise NotAQueue(f"there is no Delta table at {self.path} any more", path=self.path)
            table_id = str(opened.metadata().id)
            if self._id not in (None, table_id):
                raise NotAQueue(
                    f"the Delta table at {self.path} was made anew since this handle was opened; open the queue again", path=self.path
                )
            self._table, self._id = opened, table_id
            return self._table

    def read(self, group: str) -> Stored:
        with self._lock:
            for attempt in (1, 2):
                table = self.refresh()
                try:
                    return Stored(group, self._load(table, group), table.version())
                except FileNotFoundError:
                    # Housekeeping deleted the file after another commit replaced it: a lost race, once.
                    if attempt == 2:
                        raise
                    self._table = None
        raise AssertionError("unreachable")

    def _load(self, table: DeltaTable, group: str) -> Ledger | None:
        paths = self._paths(table, group)
        cached = self._cache.get(group)
        if cached is None or cached[0] != paths:
            if not paths:
                return None
            rows = pa.concat_tables([self.files.read_parquet(path, LEASES_SCHEMA) for path in paths])
            cached = self._cache[group] = (paths, from_rows(rows))
        return cached[1]

    @staticmethod
    def _paths(table: DeltaTable, group: str) -> tuple[str, ...]:
        adds = pa.table(table.get_add_actions(flatten=True))
        return tuple(sorted(adds.filter(pc.equal(adds["partition.consumer_group"], group))["path"].to_pylist())) if adds.num_rows else ()

    def write(
        self,
        stored: Stored,
        ledger: Ledger | None,
        *,
        operation_id: str,
        note: Mapping[str, Any],
        mark: tuple[str, int] | None = None,
        whole_table: bool = False,
    ) -> None:
        with self._lock:
            table = self._pinned(stored)
            try:
                # The group's name is checked (letters, digits, dot, hyphen, underscore): it can end no literal.
                write_deltalake(
                    table,
                    LEASES_SCHEMA.empty_table() if ledger is None else to_rows(stored.group, ledger),
                    mode="overwrite",
                    predicate=f"consumer_group = '{stored.group}'",
                    writer_properties=_PROPERTIES,
                    post_commithook_properties=delta.no_housekeeping(),
                    commit_properties=delta.commit_properties(
                        operation_id, note, [mark] if mark else [], retries=0 if whole_table else None
                    ),
                )
            except Exception as error:  # whatever failed, the commit may have landed all the same
                latest = self.refresh()
                if latest.version() == stored.token:
                    self._table = None  # or the handle knows no better: what it stood on may be gone
                    latest = self.refresh()
                if delta.landed_since(self.files, self.path, stored.token, latest.version(), operation_id) is None:
                    if latest.version() == stored.token:
                        raise  # nobody else committed: this is no lost race
                    raise LostRace(str(error)) from error
            else:
                if ledger is None:
                    self._cache.pop(stored.group, None)
                else:
                    self._cache[stored.group] = (self._paths(table, stored.group), Ledger(ledger.head, ledger.ranges))

    def mark(self, stored: Stored, app: str) -> int | None:
        with self._lock:
            return self._pinned(stored).transaction_version(app)

    def groups(self) -> list[str]:
        with self._lock:
            adds = pa.table(self.refresh().get_add_actions(flatten=True))
        names = adds["partition.consumer_group"].to_pylist() if adds.num_rows else []
        return sorted({name for name in names if not name.startswith(RESERVED_PREFIX)})

    def _pinned(self, stored: Stored) -> DeltaTable:
        """The table at the version that was read: the shared handle, or, where another thread has moved that on, one of its own.

        (To call it a lost race would let the threads of a busy group starve those of another.)
        """
        if self._table is not None and self._table.version() == stored.token:
            return self._table
        try:
            return DeltaTable(self.path, version=stored.token, storage_options=self.storage_options)
        except DeltaError as error:
            raise LostRace(f"version {stored.token} has been cleaned away") from error


def to_rows(group: str, ledger: Ledger) -> pa.Table:
    """A ledger as rows of the table: the floor row, its ranges, and what has happened since the version before (``state`` = event)."""
    head = ledger.head
    floor = {
        "consumer_group": group,
        "first": -1,
        "last": head.floor,
        "state": FLOOR,
        "message_count": head.forgotten,
        "delivery_count": 0,
        "failure_count": 0,
        "suspect": False,
        "revision": head.revision,
        "detail": head.to_json(),
    }
    parts = [pa.Table.from_pylist([floor], schema=LEASES_SCHEMA), _rows(group, ledger.ranges)]
    if ledger.events:
        happened = to_table(r for _, r in ledger.events)
        told = pa.array([f"{event}:{r.state}" for event, r in ledger.events], pa.string())
        state = pa.repeat(pa.scalar(EVENT), len(told))
        parts.append(_rows(group, happened.set_column(happened.schema.names.index("state"), "state", state), told))
    return pa.concat_tables(parts)


def _rows(group: str, ranges: pa.Table, detail: pa.Array | None = None) -> pa.Table:
    n = ranges.num_rows
    names = pa.repeat(pa.scalar(group, pa.string()), n)
    return pa.table(
        [names, *ranges.columns, pa.nulls(n, pa.int64()), pa.nulls(n, pa.string()) if detail is None else detail], schema=LEASES_SCHEMA
    )


def from_rows(rows: pa.Table) -> Ledger:
    """A ledger from the rows of its group."""
    floors = rows.filter(pc.equal(rows["state"], FLOOR)).to_pylist()
    if len(floors) != 1:
        raise NotAQueue(
            f"a consumer group has {len(floors)} floor rows in leases/, not one; something else has written there",
            path="leases",
        )
    floor, detail = floors[0], json.loads(floors[0]["detail"])
    head = Head(
        floor["last"], floor["message_count"], floor["revision"], detail["turn"], detail["counters"], detail["settings"],
        tuple((first, last) for first, last in detail["skipped"]),
    )  # fmt: skip
    ranges = rows.filter(pc.invert(pc.is_in(rows["state"], value_set=pa.array([FLOOR, EVENT])))).select(RANGE_SCHEMA.names)
    return Ledger(head, ranges.sort_by("first"))


def events_of(rows: pa.Table) -> pa.Table:
    """What the commit did that wrote these rows of a group: columns of RANGE_SCHEMA, ``state`` being what came of it, and ``event``."""
    happened = rows.filter(pc.equal(rows["state"], EVENT))
    told = pc.split_pattern(happened["detail"], ":")
    state = happened.schema.names.index("state")
    table = happened.set_column(state, "state", pc.list_element(told, 1)).select(RANGE_SCHEMA.names)
    return table.append_column("event", pc.list_element(told, 0))
