"""Publish the messages of a call, and a producer's number only once."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from spark_mq.errors import DuplicatePublish, InvalidOption
from spark_mq.message import check_time, to_publish
from spark_mq.operations.context import QueueContext
from spark_mq.operations.publish import publish_table
from spark_mq.storage.publish_receipt import PublishReceipt, producer_txn
from spark_mq.util.clock import Duration
from spark_mq.util.validation import validate_choice, validate_count

__all__ = ["publish_messages"]


def publish_messages(
    context: QueueContext,
    messages: Any,
    *,
    producer_id: str | None,
    producer_sequence: int | None,
    on_duplicate: str,
    deliver_at: datetime | Duration | None,
) -> PublishReceipt:
    """Publish messages as one commit, as :meth:`spark_mq.Queue.publish` describes."""
    txn = _publish_txn(producer_id, producer_sequence, on_duplicate)
    now = context.now()
    times = context.settings.default_times(now)
    if deliver_at is not None:
        times = {**times, "deliver_at": check_time("deliver_at", deliver_at, now)}
    table = to_publish(messages, now, times)
    try:
        return publish_table(context, table, txn)
    except DuplicatePublish as error:
        # Only the latest number has a receipt: older ones need a look at the whole log.
        first = None
        if txn is not None and error.data["last_sequence"] == txn[1]:
            first = context.messages.receipt(*txn)
        if on_duplicate == "skip":
            return replace(first or PublishReceipt(None, range(0)), duplicate=True)
        raise DuplicatePublish(str(error), **{**error.data, "receipt": first}) from None


def _publish_txn(
    producer_id: str | None, producer_sequence: int | None, on_duplicate: str
) -> tuple[str, int] | None:
    """Return the application transaction of a publish. Raise InvalidOption."""
    if (producer_id is None) != (producer_sequence is None):
        raise InvalidOption(
            "producer_id and producer_sequence go together",
            option="producer_sequence",
            value=producer_sequence,
        )
    skip = validate_choice("on_duplicate", on_duplicate, ("raise", "skip")) == "skip"
    if skip and producer_id is None:
        raise InvalidOption(
            "on_duplicate='skip' needs a producer_id and a producer_sequence: without these no "
            "call is known to repeat another",
            option="on_duplicate",
            value=on_duplicate,
        )
    if producer_id is None:
        return None
    number = validate_count("producer_sequence", producer_sequence, least=0, most=2**63 - 1)
    return producer_txn(producer_id), number
