"""Making the tables of a queue: in an order in which a crash can be made good, and never in the place of something else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_mq.delta import legacy as delta
from spark_mq.delta.store_errors import telling
from spark_mq.errors import NotAQueue, QueueExists
from spark_mq.ledger.settings import QueueSettings
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.message_table import MessageTable

__all__ = ["check_root", "leases_description", "make"]

_OWN: Final = ("messages", "leases", "commits", "history", "dead_letters", "lost+found")
"""The names under a queue's path, and what lies in the root of a volume."""


def make(root: str, settings: QueueSettings, options: Mapping[str, str], *, exist_ok: bool) -> None:
    """Makes the tables of a queue, or those of them that a crash left out. Nothing is made where something else is in the way."""
    check_root(root, options)
    log, leases = MessageTable(delta.child(root, "messages"), options), LedgerTable(delta.child(root, "leases"), options)
    begun, complete = delta.open_table(log.path, options), delta.exists(leases.path, options)
    found = None if begun is None else QueueSettings.from_json(begun.metadata().description)
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
        _check_empty(root)
        _create(log, settings.to_json())
    if not complete:
        # The queue is complete once this is there, so it is made last. It remembers which messages/ it belongs to.
        _create(leases, leases_description(log.table))


def leases_description(messages: DeltaTable) -> str:
    return json.dumps({"format": "spark_mq leases", "messages": str(messages.metadata().id)})


def _create(table: MessageTable | LedgerTable, description: str) -> None:
    with telling(table.path, table.storage_options, "making"):
        try:
            table.create(description)
        except DeltaError:
            # Somebody else may have made it in the same moment: that is as good.
            if delta.open_table(table.path, table.storage_options) is None:
                raise


def _check_empty(root: str) -> None:
    """Refuses a local folder in which something else lies: a queue's tables among it could no more be told from it, nor be removed.

    What a killed create has left is no such thing, nor is what file systems put into folders. A store is not asked: it has no folders.
    """
    if not os.path.isdir(root):
        return
    strange = sorted(name for name in os.listdir(root) if name not in _OWN and not name.startswith("."))
    if strange:
        told = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
        raise NotAQueue(f"{root} is a folder with other files in it ({told}): give a queue a folder of its own, new or empty", path=root)


def check_root(root: str, options: Mapping[str, str]) -> None:
    if delta.exists(root, options):
        raise NotAQueue(f"{root} is itself a Delta table; a queue is a directory of tables. Use a path of its own", path=root)
