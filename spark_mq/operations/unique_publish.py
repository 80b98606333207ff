"""Publish messages, and leave out those whose dedup id was published before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_mq.errors import (
    DuplicatePublish,
    InvalidOption,
    ProducerFenced,
    StorageError,
    TablesDisagree,
)
from spark_mq.operations.context import QueueContext
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.message_table import MessageTable
from spark_mq.storage.pending_publish import PendingFiles, PendingPublish, PendingTable, hashed_ids
from spark_mq.storage.publish_receipt import PublishReceipt
from spark_mq.util.advice import SET_DEDUP_WINDOW

__all__ = ["check_dedup", "pending_of", "pending_of_files", "publish_pending", "store_table"]

_DEDUP_ID: Final = "dedup_id"


def check_dedup(window: int | None) -> int:
    """Return the ``dedup_window`` of a queue. Raise InvalidOption if it has none."""
    if window is None:
        raise InvalidOption(
            "a message has a dedup_id, and the queue has no dedup_window. Set one, as by "
            f"{SET_DEDUP_WINDOW}, or leave the dedup_id out",
            advice=[SET_DEDUP_WINDOW],
            option=_DEDUP_ID,
            value=None,
        )
    return window


def store_table(
    context: QueueContext, table: pa.Table, txn: tuple[str, int] | None = None
) -> PublishReceipt:
    """Publish a table of :func:`spark_mq.message.to_publish` as one commit, each id once."""
    pending = pending_of(context, table)
    if pending is None:
        return context.messages.publish(without_ids(table), txn=txn)
    return publish_pending(context.messages, pending, txn=txn)


def without_ids(table: pa.Table) -> pa.Table:
    return table.drop_columns([_DEDUP_ID]) if _DEDUP_ID in table.schema.names else table


def pending_of(context: QueueContext, table: pa.Table) -> PendingPublish | None:
    """Return the messages of a table with their dedup ids, or None if they have none."""
    if _DEDUP_ID not in table.schema.names or table[_DEDUP_ID].null_count == table.num_rows:
        return None
    window = check_dedup(context.settings.dedup_window)
    ids = hashed_ids(table[_DEDUP_ID])
    store = context.messages
    now, lanes = context.now(), store.lanes
    return PendingTable(store.files, without_ids(table), ids, now, window, lanes=lanes)


def pending_of_files(
    context: QueueContext, files: Sequence[WrittenFile], ids: Sequence[bytes | None]
) -> PendingPublish | None:
    """Return the messages of files with their dedup ids, or None if they have none."""
    if not any(ids):
        return None
    window = check_dedup(context.settings.dedup_window)
    store = context.messages
    return PendingFiles(store.files, files, ids, context.now(), window, lanes=store.lanes)


def publish_pending(
    messages: MessageTable,
    pending: PendingPublish,
    *,
    txn: tuple[str, int] | None = None,
    after: int | None = None,
    note: Mapping[str, Any] | None = None,
) -> PublishReceipt:
    """Publish pending messages as one commit. Raise as :meth:`MessageTable.commit`."""
    try:
        receipt = messages.commit_unique(pending, txn=txn, after=after, note=note)
    except (DuplicatePublish, ProducerFenced):
        pending.discard()
        raise
    except TablesDisagree:
        if not pending.tried:
            pending.discard()
        raise
    except StorageError as error:
        # In an object store a commit may land later still.
        if error.data["landed"] is False and messages.files.is_local:
            pending.discard()
        raise
    pending.discard(keep=pending.landed)
    return receipt.placed(pending.landed[0]) if len(pending.landed) == 1 else receipt
