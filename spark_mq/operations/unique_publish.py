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
from spark_mq.storage.draft import Draft, FilesDraft, TableDraft, hashed_ids
from spark_mq.storage.message_store import MessageStore, PublishReceipt
from spark_mq.util.advice import SET_DEDUP_WINDOW

__all__ = ["check_dedup", "draft_of", "draft_of_files", "publish_draft", "store_table"]

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
    draft = draft_of(context, table)
    if draft is None:
        return context.messages.publish(without_ids(table), txn=txn)
    return publish_draft(context.messages, draft, txn=txn)


def without_ids(table: pa.Table) -> pa.Table:
    return table.drop_columns([_DEDUP_ID]) if _DEDUP_ID in table.schema.names else table


def draft_of(context: QueueContext, table: pa.Table) -> Draft | None:
    """Return the messages of a table with their dedup ids, or None if they have none."""
    if _DEDUP_ID not in table.schema.names or table[_DEDUP_ID].null_count == table.num_rows:
        return None
    window = check_dedup(context.settings.dedup_window)
    ids = hashed_ids(table[_DEDUP_ID])
    store = context.messages
    now, lanes = context.now(), store.lanes
    return TableDraft(store.files, without_ids(table), ids, now, window, lanes=lanes)


def draft_of_files(
    context: QueueContext, files: Sequence[WrittenFile], ids: Sequence[bytes | None]
) -> Draft | None:
    """Return the messages of files with their dedup ids, or None if they have none."""
    if not any(ids):
        return None
    window = check_dedup(context.settings.dedup_window)
    store = context.messages
    return FilesDraft(store.files, files, ids, context.now(), window, lanes=store.lanes)


def publish_draft(
    messages: MessageStore,
    draft: Draft,
    *,
    txn: tuple[str, int] | None = None,
    after: int | None = None,
    note: Mapping[str, Any] | None = None,
) -> PublishReceipt:
    """Publish a draft as one commit. Raise as :meth:`MessageStore.commit`."""
    try:
        receipt = messages.commit_unique(draft, txn=txn, after=after, note=note)
    except (DuplicatePublish, ProducerFenced):
        draft.discard()
        raise
    except TablesDisagree:
        if not draft.tried:
            draft.discard()
        raise
    except StorageError as error:
        # In an object store a commit may land later still.
        if error.data["landed"] is False and messages.files.is_local:
            draft.discard()
        raise
    draft.discard(keep=draft.landed)
    return receipt.placed(draft.landed[0]) if len(draft.landed) == 1 else receipt
