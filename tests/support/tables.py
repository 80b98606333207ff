"""Reach the tables of a queue, as the tests of storage, faults and maintenance need them.

Only this module knows where a queue keeps them, and by which functions it commits to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from spark_mq import ConsumerGroup, Queue
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.tables import write_checkpoint
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.parquet.files import row_groups
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.message_table import MessageTable
from support.rule_variants import find_rule

__all__ = [
    "add_file",
    "add_values",
    "as_in_a_store",
    "checkpoint",
    "commit_file",
    "context_of",
    "forget_row_groups",
    "fresh_log",
    "group_ledger_of",
    "last_checkpoint",
    "ledgers_of",
    "messages_of",
    "on_commands",
    "on_publish",
    "on_write",
    "parquet_bytes",
    "put_back",
    "removes_of",
]

Around = Callable[[Callable[[], Any]], Any]
"""Gets a call, and makes it or not. It returns the result."""


def context_of(queue: Queue) -> QueueContext:
    return queue._context


def messages_of(queue: Queue) -> MessageTable:
    return queue._context.messages


def ledgers_of(queue: Queue) -> LedgerTable:
    return queue._context.ledgers


def group_ledger_of(group: ConsumerGroup) -> GroupLedger:
    return group._ledger


def as_in_a_store(queue: Queue) -> Queue:
    """Let a handle on a local disk act as if in an object store, where a look costs a request."""
    for table in (messages_of(queue), ledgers_of(queue)):
        table.files.is_local = table.log._local = False
    return queue


def forget_row_groups() -> None:
    """Let later reads know nothing of what earlier ones read."""
    row_groups.reset()


def fresh_log(queue: Queue, table: str) -> DeltaLog:
    """The log of a table, as a process has it that has never read it."""
    return DeltaLog(ObjectStore(f"{queue.path}/{table}", context_of(queue).storage_options))


def checkpoint(table: MessageTable | LedgerTable) -> int:
    """Write a checkpoint of a table. Return its version."""
    return write_checkpoint(table.files, getattr(table, "_secure", None))


def last_checkpoint(table: MessageTable | LedgerTable) -> int:
    """Return the version of the checkpoint that readers of a table start from, or -1."""
    hint = Path(table.path, "_delta_log", "_last_checkpoint")
    return int(json.loads(hint.read_text())["version"]) if hint.exists() else -1


def commit_file(table: str | Path, version: int) -> Path:
    """Return where the Delta protocol keeps a commit of a table on a disk."""
    return Path(table, "_delta_log", f"{version:020d}.json")


def removes_of(queue: Queue, table: str) -> list[dict[str, Any]]:
    """Return the files that the log of a table on a disk has removed."""
    logs = Path(queue.path, table, "_delta_log").glob("*.json")
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    return [action["remove"] for action in actions if "remove" in action]


def add_file(queue: Queue, path: str, size: int = 1, stats: str = "{}") -> None:
    """Commit a data file to ``messages/``, as another Delta writer does. It's there already."""
    table = DeltaTable(messages_of(queue).path)
    add = AddAction(path, size, {}, 0, True, stats)
    table.create_write_transaction([add], "append", table.schema(), [])


def parquet_bytes(rows: pa.Table, **options: Any) -> bytes:
    """Return what a Parquet file of these rows has."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **options)
    return sink.getvalue().to_pybytes()


def add_values(queue: Queue, *values: bytes | None, folder: str = "") -> None:
    """Publish values as another Delta writer does that commits no statistics."""
    path = f"{folder}part-{uuid4().hex}.parquet"
    data = parquet_bytes(pa.table({"value": pa.array(values, pa.binary())}))
    messages_of(queue).files.write(path, data)
    add_file(queue, path, len(data))


@contextmanager
def put_back(queue: Queue, *tables: str) -> Iterator[None]:
    """Put back tables at the end of the block as they were before it, from a backup of them."""
    store = ObjectStore(queue.path, context_of(queue).storage_options)
    backup = {
        info.path: store.read(info.path) for table in tables for info in store.list_all(table)
    }
    yield
    store.delete_many([info.path for table in tables for info in store.list_all(table)])
    for path, data in backup.items():
        store.write(path, data)


def on_publish(patch: pytest.MonkeyPatch, queue: Queue, act: Around) -> None:
    """Let a function stand around each commit of messages by this handle."""
    _around(patch, messages_of(queue), "commit", act)


def on_write(patch: pytest.MonkeyPatch, queue: Queue, act: Around) -> None:
    """Let a function stand around each commit to a ledger by this handle."""
    _around(patch, ledgers_of(queue), "write", act)


def on_commands(
    patch: pytest.MonkeyPatch,
    act: Callable[[Callable[[], list[Any]], Sequence[Any]], list[Any]],
    group: str | None = None,
) -> None:
    """Let a function stand around all runs of commands, or those on a group of that name. It gets
    the run and its commands.
    """
    owner, name, real = find_rule("GroupCommitter.run")

    def run(committer: Any, commands: Any, checks: Any = None) -> list[Any]:
        if group not in (None, committer._group.name):
            return real(committer, commands, checks)
        return act(lambda: real(committer, commands, checks), commands)

    patch.setattr(owner, name, run)


def _around(patch: pytest.MonkeyPatch, table: Any, name: str, act: Around) -> None:
    real = getattr(table, name)
    patch.setattr(table, name, lambda *args, **options: act(lambda: real(*args, **options)))
