"""Create the tables of a queue, and open them.

A create that crashed is completed by the next one. It never replaces anything else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Final

from spark_mq.delta.object_store import ObjectStore, join
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.errors import NotAQueue, QueueExists, QueueNotFound
from spark_mq.ledger.settings import QueueSettings
from spark_mq.operations.context import QueueContext
from spark_mq.storage.history_table import HistoryTable
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import Clock

__all__ = ["create_queue_tables", "open_context"]

_OWN: Final = ("messages", "leases", "commits", "history", "dead_letters", "lost+found")
"""The names under a queue's path, and what lies in the root of a volume."""


def create_queue_tables(
    root: str, settings: QueueSettings, options: Mapping[str, str], *, exist_ok: bool
) -> None:
    """Create the tables of a queue, or those that a crash left out.

    Nothing is created if something else is in the way. Raises NotAQueue, QueueExists.
    """
    refuse_delta_table(root, options)
    log, leases = MessageTable(join(root, "messages"), options), LedgerTable(join(root, "leases"), options)
    begun, complete = log.open(), leases.open() is not None
    found = None if begun is None else QueueSettings.from_json(begun.description)
    if begun is None and complete:
        raise NotAQueue(f"{root} has leases/, but no messages/: restore that, or remove {root} and create the queue anew", path=root)
    if begun is not None and found is None:
        raise NotAQueue(f"{log.path} is a Delta table, but not one of a queue; use a path of the queue's own", path=root)
    if complete and not exist_ok:
        raise QueueExists(f"there is a queue at {root} already; use Queue.open, or exist_ok=True", path=root)
    if found not in (None, settings) and not complete:
        raise NotAQueue(
            f"a queue was begun at {root} with other settings, and never completed: create it with those, or remove {root} first",
            path=root,
        )
    if begun is None:
        refuse_foreign_files(root)
        log.create(settings.to_json())
    if not complete:
        # The queue is complete once this is there, so it is made last. It remembers which messages/ it belongs to.
        leases.create(leases_description(log.table_id))


def open_context(
    root: str, options: Mapping[str, str], clock: Clock | None = None
) -> QueueContext:
    """Open the stores of a queue. Raises QueueNotFound, NotAQueue, UnsupportedTable."""
    messages = MessageTable(join(root, "messages"), options)
    ledgers = LedgerTable(join(root, "leases"), options)
    table = messages.open()
    if table is None:
        refuse_delta_table(root, options)
        raise QueueNotFound(f"there is no queue at {root}; make it with Queue.create", path=root)
    settings = QueueSettings.from_json(table.description)
    if settings is None:
        raise NotAQueue(
            f"{messages.path} is a Delta table, but not one of a queue made by Queue.create",
            path=root,
        )
    _check_complete(root, table, ledgers.open())
    return QueueContext(
        root,
        settings,
        messages,
        ledgers,
        history=HistoryTable(join(root, "history"), ledgers, options),
        clock=clock,
        storage_options=options,
        open_dead_letters=_open_dead_letters,
        reopen=open_context,
    )


def _check_complete(root: str, messages: TableState, ledgers: TableState | None) -> None:
    if ledgers is None:
        raise NotAQueue(
            f"the queue at {root} was never completed: run Queue.create again with the same settings",
            path=root,
        )
    if ledgers.description != leases_description(messages.table_id):
        raise NotAQueue(
            f"leases/ at {root} belongs to another messages/ table: one of them was made anew. "
            "Remove both and create the queue again, or restore the one that was replaced",
            path=root,
        )


def _open_dead_letters(context: QueueContext) -> QueueContext:
    path = context.settings.dead_letter_path or join(context.path, "dead_letters")
    options = context.storage_options
    try:
        return open_context(path, options, context.clock)
    except (QueueNotFound, NotAQueue):
        create_queue_tables(path, QueueSettings.of_dead_letters(path), options, exist_ok=True)
        return open_context(path, options, context.clock)


def leases_description(messages_id: str) -> str:
    return json.dumps({"format": "spark_mq leases", "messages": messages_id})


def refuse_foreign_files(root: str) -> None:
    """Refuses a local folder in which something else lies: a queue's tables among it could no more be told from it, nor be removed.

    What a killed create has left is no such thing, nor is what file systems put into folders. A store is not asked: it has no folders.
    """
    if not os.path.isdir(root):
        return
    strange = sorted(name for name in os.listdir(root) if name not in _OWN and not name.startswith("."))
    if strange:
        told = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
        raise NotAQueue(f"{root} is a folder with other files in it ({told}): give a queue a folder of its own, new or empty", path=root)


def refuse_delta_table(root: str, options: Mapping[str, str]) -> None:
    with wrap_store_errors(root, "opening"):
        found = ObjectStore(root, options).list("_delta_log")
    if found:
        raise NotAQueue(f"{root} is itself a Delta table; a queue is a directory of tables. Use a path of its own", path=root)
