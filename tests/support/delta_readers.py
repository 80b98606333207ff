"""A queue with all of its tables in all forms, and readers that know nothing of spark_mq."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq import Message, Queue
from spark_mq.testing import ManualClock
from support.handles import housekeep
from support.tables import ledgers_of

__all__ = ["LARGE_LEDGER", "ODD_GROUP", "TABLES", "by_protocol", "make_tables", "normal"]

TABLES = (
    "messages",
    "leases",
    "commits",
    "history",
    *(f"dead_letters/{name}" for name in ("messages", "leases", "commits", "history")),
)
LARGE_LEDGER = 1_500
"""Ranges that pyarrow writes with other encodings than the few rows of a small ledger."""
ODD_GROUP = "a.b-c_d"


def make_tables(path: Path) -> Queue:
    """Make a queue with all tables, checkpoints and cleaned logs, in which all forms of rows are.

    It has a large and a small ledger, priorities, times, dead letters, and commits after the
    checkpoint.
    """
    clock = ManualClock()
    later = clock() + timedelta(hours=1)
    queue = Queue.create(path, durable=False, clock=clock)
    queue.publish([str(n) for n in range(2 * LARGE_LEDGER)])
    scattered = queue.group("large").lease("w", max_messages=2 * LARGE_LEDGER)
    scattered.nack([m.sequence for m in scattered.messages[::2]], delay="1h", error="no luck")
    queue.publish(
        [
            Message(b"\x00\xff", key="k", headers={"a": "b"}, message_id="m-1", priority=7),
            Message("late", deliver_at=later, expires_at=later + timedelta(hours=1)),
        ]
    )
    group = queue.group(ODD_GROUP)
    while ledgers_of(queue).version() < 110:  # one checkpoint at least
        lease = group.lease("w", max_messages=3)
        lease.release()
    lease = group.lease("w", max_messages=4)
    first, second, *_ = [m.sequence for m in lease.messages]
    lease.reject([first], error="bad")
    lease.nack([second], delay="1h")
    queue.sweep()
    housekeep(queue, keep_versions=1, keep_seconds=0)
    queue.sweep()
    queue.dead_letters.group("look").lease("w").ack()
    queue.dead_letters.sweep()
    queue.publish("after the sweep")
    return queue


def by_protocol(table: Path) -> pa.Table:
    """Read a table as the Delta protocol says, with pyarrow alone."""
    log = table / "_delta_log"
    hint = log / "_last_checkpoint"
    start = json.loads(hint.read_text())["version"] if hint.exists() else -1
    actions: list[Mapping[str, Any]] = []
    if start >= 0:
        actions += pq.read_table(log / f"{start:020d}.checkpoint.parquet").to_pylist()
    version = start + 1
    while (entry := log / f"{version:020d}.json").exists():
        actions += [json.loads(line) for line in entry.read_text().splitlines()]
        version += 1
    files: dict[str, Mapping[str, Any]] = {}
    schema: dict[str, Any] = {}
    for action in actions:
        if protocol := action.get("protocol"):
            assert protocol["minReaderVersion"] == 1, "any reader can read it"
            assert not protocol.get("readerFeatures")
        if metadata := action.get("metaData"):
            schema = json.loads(metadata["schemaString"])
        if add := action.get("add"):
            files[add["path"]] = dict(add["partitionValues"])
        if remove := action.get("remove"):
            files.pop(remove["path"], None)
    names = [field["name"] for field in schema["fields"]]
    parts = [_file(table / unquote(path), names, files[path]) for path in files]
    return pa.concat_tables(parts, promote_options="default")


def _file(path: Path, names: list[str], partition: Mapping[str, str]) -> pa.Table:
    with pq.ParquetFile(path) as file:  # read_table would make columns of the folders' names
        rows = file.read()
    for name in names:
        if name in partition:
            column = pa.repeat(pa.scalar(partition[name], pa.string()), rows.num_rows)
            rows = rows.append_column(name, column)
        elif name not in rows.schema.names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows.select(names)


def normal(rows: pa.Table) -> list[str]:
    """Return rows as texts that are equal for equal values of all readers, sorted."""
    names = sorted(rows.schema.names)
    return sorted(
        str([_value(row[name]) for name in names]) for row in rows.select(names).to_pylist()
    )


def _value(value: Any) -> Any:
    if isinstance(value, list):  # maps are lists of pairs
        return sorted(map(str, map(_value, value)))
    if isinstance(value, dict):
        return {name: _value(inner) for name, inner in value.items()}
    return value.isoformat() if hasattr(value, "isoformat") else value
